#include "trireme/checkpoint/adapter.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/checkpoint/folder.h"
#include "trireme/checkpoint/hf.h"
#include "trireme/dist/redistribute.h"
#include "trireme/nn/low_rank.h"

namespace trireme::checkpoint {
namespace {

constexpr const char* kPrefix = "base_model.model.";
// What follows a module's name: matrices whose product is the difference, the norms of DoRA.
constexpr const char *kDown = ".lora_A.weight", *kUp = ".lora_B.weight",
                     *kMagnitude = ".lora_magnitude_vector.weight",
                     *kOldMagnitude = ".lora_magnitude_vector";

bool starts(const base::Json& config, const char* key) {
  return config.contains(key) && config[key].is_boolean() && config[key].get<bool>();
}

const base::Json* pattern_of(const base::Json& config, const char* key, const std::string& module) {
  if (!config.contains(key) || !config[key].is_object()) return nullptr;
  for (const auto& [pattern, value] : config[key].items())
    if (nn::matches_module(pattern, module)) return &value;
  return nullptr;
}

}  // namespace

Adapter::Adapter(const std::string& folder, const base::Json& model)
    : path_(folder + "/adapter_model.safetensors"),
      file_(path_),
      config_(base::read_json(folder + "/adapter_config.json")) {
  const std::string where = folder + "/adapter_config.json";
  const std::string type = config_.value("peft_type", "");
  if (type != "LORA") {
    throw base::ConfigError(
        fmt::format("{}: peft_type is \"{}\"; LORA (with DoRA) can be merged", where, type));
  }
  if (const std::string bias = config_.value("bias", "none"); bias != "none")
    throw base::ConfigError(fmt::format("{}: bias is \"{}\"; only \"none\" can be merged", where, bias));
  for (const auto& [stored, _] : file_.tensors()) {
    unused_.insert(stored);
    std::string name = stored;
    if (name.starts_with(kPrefix)) name = name.substr(std::string_view(kPrefix).size());
    std::string what = "whole";
    for (const char* end : {kDown, kUp, kMagnitude, kOldMagnitude}) {
      if (!name.ends_with(end)) continue;
      name = name.substr(0, name.size() - std::string_view(end).size()) + ".weight";
      what = end == kOldMagnitude ? kMagnitude : end;
      break;
    }
    if (name.find("lora_") != std::string::npos)
      throw base::ConfigError(fmt::format("{}: tensor \"{}\" cannot be merged", path_, stored));
    if (auto mapped = model_name(model, name)) parts_[*mapped][what] = stored;
  }
}

at::Tensor Adapter::tensor(const std::string& stored) {
  unused_.erase(stored);
  const formats::StoredTensor& tensor = file_.at(stored);
  return at::from_blob(const_cast<std::byte*>(tensor.bytes.data()), tensor.shape,
                       at::TensorOptions(dist::scalar_type(tensor.dtype)));
}

double Adapter::scale_of(const std::string& module, int64_t rank) const {
  double alpha = config_.value("lora_alpha", 8.0);
  if (const base::Json* own = pattern_of(config_, "alpha_pattern", module)) alpha = own->get<double>();
  const auto r = static_cast<double>(rank);
  return starts(config_, "use_rslora") ? alpha / std::sqrt(r) : alpha / r;
}

at::Tensor Adapter::merged(const std::string& name, const at::Tensor& weight) {
  auto found = parts_.find(name);
  if (found == parts_.end()) return weight;
  std::map<std::string, std::string>& parts = found->second;
  const at::ScalarType type = weight.scalar_type(),
                       wide = type == at::kDouble ? at::kDouble : at::kFloat;
  auto refuse = [&](const std::string& stored, const at::Tensor& given) {
    throw base::FormatError(fmt::format("{}: tensor \"{}\" of shape [{}] does not fit \"{}\" of shape [{}]",
                                        path_, stored, fmt::join(given.sizes(), ", "), name,
                                        fmt::join(weight.sizes(), ", ")));
  };
  if (parts.contains("whole")) {
    at::Tensor whole = tensor(parts["whole"]);
    if (whole.sizes() != weight.sizes()) refuse(parts["whole"], whole);
    return whole.to(type);
  }
  if (!parts.contains(kDown) || !parts.contains(kUp)) {
    throw base::FormatError(
        fmt::format("{}: there is a part of an adapter of \"{}\", but not both lora_A and lora_B", path_, name));
  }
  at::Tensor down = tensor(parts[kDown]).to(wide), up = tensor(parts[kUp]).to(wide);
  const bool turned = starts(config_, "fan_in_fan_out");  // weights are [in, out]
  if (weight.dim() != 2 || down.dim() != 2 || up.dim() != 2 || up.size(1) != down.size(0)) refuse(parts[kUp], up);
  at::Tensor base = turned ? weight.to(wide).t() : weight.to(wide);
  if (base.size(0) != up.size(0)) refuse(parts[kUp], up);
  if (base.size(1) != down.size(1)) refuse(parts[kDown], down);
  const std::string module = name.substr(0, name.rfind('.'));
  at::Tensor sum = base + at::mm(up, down) * scale_of(module, down.size(0));
  if (parts.contains(kMagnitude)) {
    at::Tensor norms = at::linalg_vector_norm(sum, 2, at::IntArrayRef{1}, true);
    sum = sum * (tensor(parts[kMagnitude]).to(wide).reshape({-1, 1}) / norms);
  }
  return (turned ? sum.t() : sum).to(type).contiguous();
}

void Adapter::check_used() const {
  if (unused_.empty()) return;
  throw base::FormatError(fmt::format("{}: tensor \"{}\" belongs to no parameter of the model ({} of {} tensors do not)",
                                      path_, *unused_.begin(), unused_.size(), file_.tensors().size()));
}

namespace {

/// PEFT's word for what a model is for, by the class that its configuration names; null where PEFT has none.
base::Json task_of(const base::Json& model) {
  const base::Json classes = model.value("architectures", base::Json());
  const std::string name = classes.is_array() && !classes.empty() && classes[0].is_string() ? classes[0].get<std::string>() : "";
  for (const auto& [end, task] : {std::pair("ForCausalLM", "CAUSAL_LM"),
                                  {"LMHeadModel", "CAUSAL_LM"},
                                  {"ForSequenceClassification", "SEQ_CLS"},
                                  {"ForTokenClassification", "TOKEN_CLS"},
                                  {"ForQuestionAnswering", "QUESTION_ANS"},
                                  {"ForConditionalGeneration", "SEQ_2_SEQ_LM"}})
    if (name.ends_with(end)) return task;
  const bool bare = name.ends_with("Model") && name.find("For") == name.npos;
  return bare ? base::Json("FEATURE_EXTRACTION") : base::Json();
}

}  // namespace

int64_t convert_to_peft(const Checkpoint& source, const std::string& destination) {
  const base::Json& model = source.model_config();
  std::vector<formats::TensorEntry> entries;
  const auto file_name = [](const std::string& name) { return kPrefix + name; };
  std::map<std::string, std::string> names;  // in the file -> of the checkpoint
  for (const auto& [name, tensor] : source.tensors()) {
    if (tensor.optimizer || !nn::is_low_rank(name)) continue;
    entries.push_back({file_name(name), tensor.dtype, tensor.shape});
    names[file_name(name)] = name;
  }
  if (entries.empty() || !model.contains("adapter"))
    throw base::ConfigError(source.path() + ": it holds no adapter; train with model.adapter");
  base::Json settings = model["adapter"];
  settings.erase("path");
  settings.update({{"peft_type", "LORA"},
                   {"task_type", task_of(model)},
                   {"bias", "none"},
                   {"inference_mode", true},
                   {"fan_in_fan_out", model.value("model_type", "") == "gpt2"},
                   {"base_model_name_or_path", nullptr}});
  for (const auto& [key, value] : {std::pair("r", 8), std::pair("lora_alpha", 8)})
    if (!settings.contains(key)) settings[key] = value;
  build_folder(destination, [&](const std::string& folder) {
    formats::SafetensorsWriter writer(folder + "/adapter_model.safetensors", entries, {{"format", "pt"}});
    for (const formats::TensorEntry& entry : writer.order()) {
      const at::Tensor tensor = source.read_whole(names.at(entry.name)).contiguous();
      writer.write(entry.name, {static_cast<const std::byte*>(tensor.data_ptr()), tensor.nbytes()});
    }
    writer.close();
    base::FileWriter config(folder + "/adapter_config.json");
    config.write(settings.dump(2) + "\n");
    config.close();
  });
  return std::ssize(entries);
}

int64_t merge_adapter(const Checkpoint& source, const std::string& folder, const std::string& destination,
                      ConvertOptions options) {
  Adapter adapter(folder, source.model_config());
  options.change = [&](const std::string& name, const at::Tensor& tensor) { return adapter.merged(name, tensor); };
  options.check = [&] { adapter.check_used(); };
  return convert_to_hf(source, destination, options);
}

int64_t merge_own_adapter(const Checkpoint& source, const std::string& destination, const ConvertOptions& options) {
  // As PEFT would have it, for as long as merging takes.
  const std::string own = fmt::format("{}.adapter-{}", destination, ::getpid());
  convert_to_peft(source, own);
  const auto removal = std::shared_ptr<void>(nullptr, [&](void*) { std::filesystem::remove_all(own); });
  return merge_adapter(source, own, destination, options);
}

}  // namespace trireme::checkpoint
