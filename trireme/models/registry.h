#pragma once
// Registry: models from their configurations. A family is one .cc file: configuration, blocks, policy; and one line in
// registry.cc, or in a plugin (family.h).

#include <string>

#include "trireme/base/json.h"
#include "trireme/nn/layer.h"

namespace trireme::models {

/// Makes a model from its configuration tree (Hugging Face's keys). `tree["family"]`, or `model_type` as
/// config.json spells it, names the family. Unknown keys and values out of range are ConfigErrors. `tp` is checked
/// against what must divide evenly (heads).
nn::ModelDef make_model(const base::Json& tree, int tp);

/// The tree with every key of the family filled in: what is saved as config.json.
base::Json resolve_model(const base::Json& tree);

/// ConfigError where `given`, keys beside `pretrained`, names a family that cannot begin with the weights of the folder
/// `pretrained`, whose own tree is `held`.
void check_begins_with(const base::Json& given, const base::Json& held, const std::string& pretrained);

}  // namespace trireme::models
