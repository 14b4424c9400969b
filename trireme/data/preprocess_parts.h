#pragma once
// The finished parts of a preprocessing run: datasets PREFIX.parts/00000.0, 00001.0, ... (one a
// key), each with a record of what had been done after it. Internal to preprocess.cc.

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/base/json.h"
#include "trireme/data/document_encoder.h"
#include "trireme/data/inputs.h"

namespace trireme::data {

/// What a run has done up to a place of its input.
struct PreprocessState {
  InputPosition position;
  int64_t line = 0;         // of a JSON lines file at position
  int64_t input_bytes = 0;  // done
  int64_t documents = 0, tokens = 0, text_bytes = 0, empty = 0, skipped = 0, duplicates = 0;
  std::vector<std::string> errors;
};

class PreprocessParts {
 public:
  /// Takes the folder up, alone (ConfigError while another process holds it). Parts of an earlier
  /// run with the same `job` stay, anything else in the folder goes. `with_skipped`: parts that
  /// left out bad documents may stay.
  PreprocessParts(const std::string& prefix, int64_t keys, const base::Json& job,
                  bool with_skipped);
  /// Removes the folder when there is no finished part in it.
  ~PreprocessParts();
  PreprocessParts(const PreprocessParts&) = delete;
  PreprocessParts& operator=(const PreprocessParts&) = delete;

  /// State after the last finished part.
  const PreprocessState& state() const { return state_; }
  int64_t count() const { return count_; }
  /// Of the part's dataset for key number `key`.
  std::string prefix_of(int64_t part, int64_t key) const;
  /// What documents of the finished parts are known by, where duplicates are looked for.
  std::vector<TextHash> hashes() const;
  /// Makes the datasets at prefix_of(count(), ...) the next finished part.
  void add(const PreprocessState& state, const std::vector<TextHash>& hashes);
  /// Removes the folder and everything in it.
  void clear();

 private:
  bool take_up(const base::Json& job, bool with_skipped);

  std::string record_of(int64_t part) const;

  std::string folder_;
  int64_t keys_;
  int lock_ = -1;
  int64_t count_ = 0;
  PreprocessState state_;
};

}  // namespace trireme::data
