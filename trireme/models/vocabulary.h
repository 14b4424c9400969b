#pragma once
// Vocabulary: a model with another number of tokens. Which tensors have a place for each, and in which dimension, is what
// differs between the two models' parameters: no list of names says it.
//
//   const base::Json tree = with_vocabulary(config, 50304);   // make_model(tree, tp) has the tables to match

#include "trireme/base/json.h"

namespace trireme::models {

/// The tree of the same model with so many tokens. ConfigError for a family that has no vocabulary, or where other keys (the
/// padding's token) do not go with it.
base::Json with_vocabulary(const base::Json& tree, int64_t size);

}  // namespace trireme::models
