#pragma once
// What the tests of trireme/data share: a folder that cleans up after itself and the text of an
// expected error.

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/support/temporary_folder.h"
#include "trireme/base/io.h"
#include "trireme/data/dataset.h"

namespace trireme::data {

using test::TemporaryFolder;

/// The message of the E that `run` throws; empty (and a failure) when it throws none.
template <class E, class Run>
std::string message_of(Run&& run) {
  try {
    run();
  } catch (const E& e) {
    return e.what();
  } catch (const std::exception& e) {
    ADD_FAILURE() << "another exception: " << e.what();
    return "";
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

/// A sample's fields by name; those of floats hold them as they are.
using SampleFields = std::map<std::string, std::vector<double>>;
inline SampleFields read_fields(const Dataset& dataset, int64_t index) {
  const std::vector<FieldSpec> specs = dataset.fields();
  std::vector<std::vector<int64_t>> ids(specs.size());
  std::vector<std::vector<float>> reals(specs.size());
  std::vector<Slot> row;
  for (size_t f = 0; f < specs.size(); ++f) {
    ids[f].resize(specs[f].size());
    reals[f].resize(specs[f].size());
    row.push_back(specs[f].dtype == base::DType::f32 ? Slot{.reals = reals[f].data()}
                                                     : Slot{.ids = ids[f].data()});
  }
  dataset.read(index, row);
  SampleFields fields;
  for (size_t f = 0; f < specs.size(); ++f) {
    auto& values = fields[specs[f].name];
    if (specs[f].dtype == base::DType::f32)
      values.assign(reals[f].begin(), reals[f].end());
    else
      values.assign(ids[f].begin(), ids[f].end());
  }
  return fields;
}

/// A WordPiece tokenizer of these words after BERT's five special tokens; the file's path.
inline std::string word_piece(const TemporaryFolder& folder,
                              const std::vector<std::string>& words) {
  std::string text = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
  for (const std::string& word : words) text += word + "\n";
  base::write_file_atomic(folder / "vocab.txt", text);
  return folder / "vocab.txt";
}

}  // namespace trireme::data
