#pragma once
// Identity: what decides which tokens sample n of a run's training data holds. A checkpoint carries
// it, so that a run does not go on in other data than it began with. Not a proof of equality: of
// the ids it hashes samples.
//
// Paths are told for messages only; a dataset may move.
//
//   refuse_change(identity_from(saved), train_data->identity(), checkpoint.path());

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/base/json.h"

namespace trireme::data {

struct SourceIdentity {
  std::string path;
  double weight = 1;  // of the blend's samples
  int64_t documents = 0, tokens = 0;
  uint64_t fingerprint = 0;  // of the files' content
  std::string samples = {};  // how they are made of it, where that is not the plain way
};

struct Identity {
  int64_t seq_length = 0;
  std::vector<SourceIdentity> sources;
};

base::Json to_json(const Identity& identity);
/// FormatError when a field is missing or of another type.
Identity identity_from(const base::Json& json);

/// ConfigError that names the first difference between the data of `checkpoint` (its folder) and
/// the run's own.
void refuse_change(const Identity& saved, const Identity& own, const std::string& checkpoint);

}  // namespace trireme::data
