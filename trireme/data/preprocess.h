#pragma once
// Preprocessing: text to indexed datasets. Workers encode pieces of the input side by side; the
// results are written in the order of the input, so the files do not depend on the number of
// workers.
//
// Long runs survive a kill: every few hundred MB a part is finished under PREFIX.parts, and the
// same command goes on after the last one. The datasets themselves appear at the end, whole. An
// empty document is left out, as Megatron-LM does.
//
//   auto tokenizer = text::Tokenizer::load("out/tokenizer");
//   auto summary = preprocess(*tokenizer, {.inputs = {"books/**/*.txt"},
//                                          .output = "out/books", .split = {95, 5}});

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trireme/data/indexed.h"
#include "trireme/data/inputs.h"
#include "trireme/text/tokenizer.h"

namespace trireme::data {

struct PreprocessProgress {
  int64_t bytes = 0, total_bytes = 0;  // of the input files; the total leaves out compressed ones
  int64_t documents = 0, tokens = 0;
};

struct PreprocessOptions {
  std::vector<std::string> inputs;  // files, folders, patterns, "-"
  std::string output;               // the prefix
  InputFormat format = InputFormat::automatic;
  std::vector<std::string> keys = {"text"};  // of JSON lines: each makes a dataset, PREFIX_KEY
  bool split_sentences = false;  // a document is a sequence a sentence (text/sentences.h)
  bool dedupe = false;           // leave out documents whose text came before
  IndexFormat index_format = IndexFormat::megatron;
  bool append_eod = false;         // the tokenizer's end of document after each document
  std::vector<double> split = {};  // of PREFIX_train, _valid and _test; empty: all in PREFIX
  bool skip_errors = false;        // leave a bad document out and count it; else stop
  bool overwrite = false;          // replace a dataset that stands there; else refuse
  int workers = 0;                 // 0: one a core
  int64_t part_bytes = 256 << 20;  // input between two points from which a killed run goes on
  std::function<void(const PreprocessProgress&)> progress = {};
};

struct PreprocessSummary {
  struct Output {
    std::string prefix;
    int64_t documents = 0, tokens = 0;
  };
  std::vector<Output> outputs;
  int64_t documents = 0, tokens = 0;
  int64_t text_bytes = 0;           // of the documents written
  int64_t empty = 0, skipped = 0;   // documents left out: without a token, with an error
  int64_t duplicates = 0;           // documents left out: their text came before
  std::vector<std::string> errors;  // the first of those, "file:line: what"
  int64_t resumed_bytes = 0;        // input that an earlier run had done
};

/// Encodes all documents. Ids are stored as token_dtype(vocab_size) says. Documents are split in
/// their order at round-half-even(share * documents), as Megatron-LM does. ConfigError: a dataset
/// under the prefix, no document, an empty split, no end of document; FormatError: a bad document
/// (file:line); IoError. On an error nothing new shows under the prefix, but for finished parts
/// where the same command can go on after them.
PreprocessSummary preprocess(const text::Tokenizer& tokenizer, const PreprocessOptions& options);

}  // namespace trireme::data
