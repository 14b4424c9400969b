#include "trireme/config/deepspeed.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/base/io.h"
#include "trireme/base/json.h"
#include "trireme/base/nearest.h"

namespace trireme::config {
namespace {

using base::ConfigError;
using base::Json;

struct Counterpart {
  std::string_view key, ours;
};

// Keys whose value is taken as it is.
constexpr Counterpart kSame[] = {
    {"train_batch_size", "train.global_batch_size"},
    {"train_micro_batch_size_per_gpu", "train.train_micro_batch_size"},
    {"gradient_accumulation_steps", "train.num_accumulation_steps"},
    {"zero_optimization.stage", "train.zero_optimization.stage"},
    {"steps_per_print", "train.log_period"},
    {"seed", "train.seed"},
    {"optimizer.params.lr", "optim.lr"},
    {"optimizer.params.betas", "optim.betas"},
    {"optimizer.params.eps", "optim.eps"},
    {"optimizer.params.weight_decay", "optim.weight_decay"},
    {"optimizer.params.momentum", "optim.momentum"},
    {"optimizer.params.nesterov", "optim.nesterov"},
};

// The same, of `train.amp` for fp16.
constexpr Counterpart kScale[] = {
    {"fp16.loss_scale_window", "growth_interval"},
    {"fp16.hysteresis", "hysteresis"},
    {"fp16.min_loss_scale", "min_scale"},
};

// Keys, or whole sections, that tune how DeepSpeed works and not what it computes.
constexpr std::string_view kTuning[] = {
    "zero_optimization.allgather_partitions", "zero_optimization.allgather_bucket_size",
    "zero_optimization.overlap_comm", "zero_optimization.reduce_scatter",
    "zero_optimization.reduce_bucket_size", "zero_optimization.contiguous_gradients",
    "zero_optimization.round_robin_gradients", "zero_optimization.sub_group_size",
    "zero_optimization.stage3_max_live_parameters", "zero_optimization.stage3_max_reuse_distance",
    "zero_optimization.stage3_prefetch_bucket_size",
    "zero_optimization.stage3_param_persistence_threshold",
    "zero_optimization.stage3_gather_16bit_weights_on_model_save",
    "zero_optimization.stage3_gather_fp16_weights_on_model_save",
    "zero_optimization.ignore_unused_parameters", "zero_optimization.load_from_fp32_weights",
    "zero_optimization.elastic_checkpoint", "zero_optimization.memory_efficient_linear",
    "optimizer.params.torch_adam", "optimizer.params.fused", "optimizer.legacy_fusion",
    "activation_checkpointing", "wall_clock_breakdown", "dump_state", "memory_breakdown",
    "flops_profiler", "comms_logger", "tensorboard", "wandb", "csv_monitor", "aio", "checkpoint",
    "communication_data_type", "data_types", "prescale_gradients", "gradient_predivide_factor",
    "sparse_gradients", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer",
    "dataloader_drop_last", "disable_allgather", "graph_harvesting",
    "scheduler.params.last_batch_iteration",
};

// Sections that would change the training, refused where they are on.
constexpr std::string_view kFeatures[] = {
    "zero_optimization.offload_param", "zero_optimization.offload_optimizer",
    "zero_optimization.cpu_offload", "zero_optimization.cpu_offload_params",
    "zero_optimization.zero_hpz_partition_size", "zero_optimization.zero_quantized_weights",
    "zero_optimization.zero_quantized_gradients", "zero_optimization.mics_shard_size",
    "sparse_attention", "compression_training", "curriculum_learning", "data_efficiency",
    "elasticity", "autotuning", "amp", "progressive_layer_drop", "eigenvalue", "quantize_training",
    "pipeline", "moe", "hybrid_engine", "inference", "fp16.fp16_master_weights_and_grads",
    "optimizer.params.amsgrad", "optimizer.params.max_coeff", "optimizer.params.min_coeff",
    "optimizer.params.freeze_step",
};

// Keys that one of the functions below reads.
constexpr std::string_view kHandled[] = {
    "gradient_clipping", "optimizer.type", "optimizer.params.adam_w_mode",
    "optimizer.params.bias_correction", "fp16.enabled", "bf16.enabled", "fp16.auto_cast",
    "fp16.loss_scale", "fp16.initial_scale_power", "fp16.loss_scale_window", "fp16.hysteresis",
    "fp16.min_loss_scale", "fp16.consecutive_hysteresis",
    "scheduler.type", "scheduler.params.warmup_min_lr", "scheduler.params.warmup_max_lr",
    "scheduler.params.warmup_num_steps", "scheduler.params.warmup_type",
    "scheduler.params.total_num_steps", "scheduler.params.warmup_min_ratio",
    "scheduler.params.cos_min_ratio",
};

bool is_or_lies_in(std::string_view key, std::string_view section) {
  return key == section || (key.starts_with(section) && key[section.size()] == '.');
}

/// Does the value leave a feature off, as false, "none" or a section without `enabled: true` does?
bool is_off(const Json& value) {
  if (value.is_null() || value == false || value == 0 || value == "none") return true;
  if (!value.is_object()) return false;
  if (value.contains("enabled")) return value["enabled"] == false;
  return value.contains("device") && value["device"] == "none";
}

class Reader {
 public:
  Reader(const Json& root, const std::string& source) : root_(root), source_(source) {}

  DeepSpeed read() {
    refuse_features();
    flatten(root_, "");
    for (const Counterpart& same : kSame)
      if (const Json* value = find(same.key)) set(same.ours, *value);
    if (const Json* value = find("gradient_clipping"))  // 0 is DeepSpeed's word for none
      set("optim.clip_grad_max_norm", *value == 0 ? Json() : *value);
    precision();
    optimizer();
    scheduler();
    for (const auto& [key, value] : leaves_) account_for(key);
    return std::move(result_);
  }

 private:
  [[noreturn]] void refuse(std::string_view key, std::string_view why) const {
    throw ConfigError(fmt::format("{}: {}: {}", source_, key, why));
  }

  void set(std::string_view key, const Json& value) {
    result_.settings.push_back(fmt::format("{}={}", key, value.dump()));
  }

  void refuse_features() const {
    for (std::string_view feature : kFeatures) {
      const Json* at = &root_;
      for (size_t begin = 0; at && begin <= feature.size();) {
        const size_t end = std::min(feature.find('.', begin), feature.size());
        const std::string name(feature.substr(begin, end - begin));
        at = at->is_object() && at->contains(name) ? &(*at)[name] : nullptr;
        begin = end + 1;
      }
      if (at && !is_off(*at))
        refuse(feature, fmt::format("{} is not available here; remove it or switch it off",
                                    at->is_object() ? "this section" : at->dump()));
    }
  }

  void flatten(const Json& node, const std::string& path) {
    for (const auto& [name, value] : node.items()) {
      const std::string key = path.empty() ? name : path + "." + name;
      if (value.is_object() && !value.empty()) flatten(value, key);
      else leaves_.emplace(key, value);
    }
  }

  /// The value of a key that is there and not "auto".
  const Json* find(std::string_view key) const {
    auto at = leaves_.find(std::string(key));
    return at == leaves_.end() || at->second == "auto" ? nullptr : &at->second;
  }
  bool flag(std::string_view key, bool otherwise) const {
    const Json* value = find(key);
    if (!value) return otherwise;
    if (!value->is_boolean()) refuse(key, fmt::format("expected true or false, given {}", value->dump()));
    return value->get<bool>();
  }
  std::optional<std::string> text(std::string_view key) const {
    const Json* value = find(key);
    if (!value) return {};
    if (!value->is_string()) refuse(key, fmt::format("expected text, given {}", value->dump()));
    return value->get<std::string>();
  }
  double number(std::string_view key, double otherwise) const {
    const Json* value = find(key);
    if (!value) return otherwise;
    if (!value->is_number()) refuse(key, fmt::format("expected a number, given {}", value->dump()));
    return value->get<double>();
  }

  void precision() {
    const bool half = flag("fp16.enabled", false), brain = flag("bf16.enabled", false);
    if (half && brain) refuse("fp16.enabled", "fp16 and bf16 are both on; switch one off");
    if (flag("fp16.auto_cast", false))
      refuse("fp16.auto_cast", "weights are of the low precision themselves; set it to false");
    if (flag("fp16.consecutive_hysteresis", false))
      refuse("fp16.consecutive_hysteresis", "only a rise of the scale forgives overflows; remove it");
    if (!half && !brain) return;
    Json amp = {{"enabled", true}, {"dtype", half ? "fp16" : "bf16"}};
    if (half) {
      // 0 is DeepSpeed's word for a dynamic scale.
      if (const double fixed = number("fp16.loss_scale", 0); fixed != 0) amp["loss_scale"] = fixed;
      amp["initial_scale"] = std::exp2(number("fp16.initial_scale_power", 16));
      for (const Counterpart& same : kScale)
        if (const Json* value = find(same.key)) amp[same.ours] = *value;
    }
    set("train.amp", amp);
  }

  void optimizer() {
    const std::optional<std::string> type = text("optimizer.type");
    if (!type) return;
    static const std::map<std::string, std::string> names = {
        {"adam", "adam"}, {"adamw", "adamw"}, {"lamb", "lamb"}, {"lion", "lion"},
        {"sgd", "sgd"}, {"muon", "muon"}, {"adafactor", "adafactor"}};
    std::string lower = *type;
    std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
    const auto name = names.find(lower);
    if (name == names.end())
      refuse("optimizer.type", fmt::format("{} is not available; use Adam, AdamW, Lamb, Lion, SGD, "
                                           "Muon or Adafactor", *type));
    if (!flag("optimizer.params.bias_correction", true))
      refuse("optimizer.params.bias_correction", "moments are always corrected; remove it");
    // DeepSpeed's Adam decays weights apart from the gradient unless it is told otherwise.
    const bool decoupled = flag("optimizer.params.adam_w_mode", true);
    set("optim.name", lower == "adam" && decoupled ? "adamw" : name->second);
  }

  void scheduler() {
    const std::optional<std::string> type = text("scheduler.type");
    if (!type) return;
    static constexpr std::array<std::string_view, 3> known = {"WarmupLR", "WarmupDecayLR",
                                                              "WarmupCosineLR"};
    if (std::ranges::find(known, *type) == known.end())
      refuse("scheduler.type", fmt::format("{} is not available; use {}, or train.scheduler",
                                           *type, fmt::join(known, ", ")));
    if (text("scheduler.params.warmup_type").value_or("log") != "linear")
      refuse("scheduler.params.warmup_type",
             "only linear is available, and DeepSpeed's default is log: write \"linear\"");
    const bool cosine = *type == "WarmupCosineLR";
    const double peak = cosine ? number("optimizer.params.lr", 1e-3) : peak_rate();
    const double first = cosine ? number("scheduler.params.warmup_min_ratio", 0)
                                : number("scheduler.params.warmup_min_lr", 0) / peak;
    const double warmup = number("scheduler.params.warmup_num_steps", 1000);
    Json ours = {{"warmup_iter", static_cast<int64_t>(warmup)}, {"warmup_method", "linear"},
                 {"warmup_factor", first}};
    if (*type == "WarmupLR") {
      ours["name"] = "warmup_constant";
    } else {
      const double total = number("scheduler.params.total_num_steps", 0);
      if (total < warmup || total <= 0)
        refuse("scheduler.params.total_num_steps",
               fmt::format("{} needs it, and at least warmup_num_steps ({})", *type, warmup));
      ours["name"] = "wsd";  // without a stable part
      ours["decay_ratio"] = (total - warmup) / total;
      ours["decay_method"] = cosine ? "cosine" : "linear";
      ours["alpha"] = cosine ? number("scheduler.params.cos_min_ratio", 1e-4) : 0;
      set("train.train_iter", static_cast<int64_t>(total));
    }
    set("train.scheduler", ours);
  }

  double peak_rate() {
    const double peak = number("scheduler.params.warmup_max_lr", 1e-3);
    const double rate = number("optimizer.params.lr", peak);
    if (peak <= 0) refuse("scheduler.params.warmup_max_lr", "expected more than 0");
    if (rate != peak)
      refuse("scheduler.params.warmup_max_lr",
             fmt::format("{} contradicts optimizer.params.lr {}; DeepSpeed would take the former: "
                         "give both the same", peak, rate));
    if (!find("optimizer.params.lr")) set("optim.lr", peak);
    return peak;
  }

  void account_for(const std::string& key) {
    const auto is = [&](std::string_view section) { return is_or_lies_in(key, section); };
    if (std::ranges::any_of(kHandled, is) || std::ranges::any_of(kSame, is, &Counterpart::key))
      return;
    if (std::ranges::any_of(kTuning, is) || std::ranges::any_of(kFeatures, is)) {
      result_.without_counterpart.push_back(key);
      return;
    }
    std::vector<std::string> names;
    for (const Counterpart& same : kSame) names.emplace_back(same.key);
    for (std::string_view name : kHandled) names.emplace_back(name);
    for (std::string_view name : kTuning) names.emplace_back(name);
    const std::optional<std::string> near = base::nearest(key, names);
    refuse(key, near ? fmt::format("unknown key; did you mean {}?", *near)
                     : "unknown key; remove it, docs/training.md lists what is understood");
  }

  const Json& root_;
  const std::string& source_;
  std::map<std::string, Json> leaves_;
  DeepSpeed result_;
};

}  // namespace

DeepSpeed parse_deepspeed(std::string_view text, const std::string& source) {
  const Json root = base::parse_json(text, source);
  if (!root.is_object())
    throw ConfigError(fmt::format("{}: expected a JSON object of DeepSpeed's keys", source));
  return Reader(root, source).read();
}

DeepSpeed read_deepspeed(const std::string& path) {
  return parse_deepspeed(base::read_file(path), path);
}

}  // namespace trireme::config
