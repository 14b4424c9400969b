#pragma once
// A DeepSpeed configuration (ds_config.json) as settings of a run. A named subset is understood:
// batch sizes, fp16 and bf16, the ZeRO stage, optimizer, scheduler and clipping. Of the other keys,
// those that only tune DeepSpeed's own machinery are listed, those that would change the training
// are refused, and "auto" leaves a key to the run's own file.
//
//   DeepSpeed given = read_deepspeed("ds_config.json");
//   RunConfig config = load("run.yaml", given.settings);

#include <string>
#include <string_view>
#include <vector>

namespace trireme::config {

struct DeepSpeed {
  std::vector<std::string> settings;             // "train.global_batch_size=32": overrides
  std::vector<std::string> without_counterpart;  // keys that change nothing here
};

/// ConfigError naming the file and the key: unknown keys with the nearest name, features that are
/// not here, values that contradict each other. Keys and their meaning: DeepSpeed's documentation of
/// its configuration JSON.
DeepSpeed read_deepspeed(const std::string& path);
/// The same from text; `source` names it in errors.
DeepSpeed parse_deepspeed(std::string_view text, const std::string& source);

}  // namespace trireme::config
