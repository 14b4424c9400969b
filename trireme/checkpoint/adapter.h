#pragma once
// Adapter: a small file of differences to a model's weights, as PEFT writes it (adapter_config.json,
// adapter_model.safetensors): LoRA (Hu et al., 2021), DoRA (Liu et al., 2024) and modules that were
// trained whole. It is merged into the weights; nothing of it is left in the model.
//
//   Adapter adapter("out/adapter", checkpoint.model_config());
//   at::Tensor weight = adapter.merged("model.layers.0.self_attn.q_proj.weight", base);

#include <ATen/core/Tensor.h>

#include <map>
#include <set>
#include <string>

#include "trireme/base/json.h"
#include "trireme/checkpoint/convert.h"
#include "trireme/checkpoint/load.h"
#include "trireme/formats/safetensors.h"

namespace trireme::checkpoint {

class Adapter {
 public:
  /// `model`: the configuration of the model that it belongs to. FormatError, or ConfigError for a
  /// kind of adapter that cannot be merged.
  Adapter(const std::string& folder, const base::Json& model);
  /// What a parameter of the model becomes, of its shape and type; computed in at least fp32.
  at::Tensor merged(const std::string& name, const at::Tensor& weight);
  /// FormatError when something in the file belongs to no parameter that was asked for.
  void check_used() const;

 private:
  at::Tensor tensor(const std::string& stored);
  double scale_of(const std::string& module, int64_t rank) const;

  std::string path_;
  formats::SafetensorsFile file_;
  base::Json config_;
  std::map<std::string, std::map<std::string, std::string>> parts_;  // parameter -> what -> stored name
  std::set<std::string> unused_;
};

/// convert_to_hf with the adapter of PEFT's `folder` merged into the weights.
int64_t merge_adapter(const Checkpoint& source, const std::string& folder, const std::string& destination,
                      ConvertOptions options);
/// The same with the adapter that `source` was trained with.
int64_t merge_own_adapter(const Checkpoint& source, const std::string& destination, const ConvertOptions& options);

/// Writes PEFT's folder of the adapter that `source` was trained with (nn/low_rank.h). Returns the number of tensors.
/// ConfigError when there is none, or `destination` exists.
int64_t convert_to_peft(const Checkpoint& source, const std::string& destination);

}  // namespace trireme::checkpoint
