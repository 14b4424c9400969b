#pragma once
// The folder where Hugging Face's tools keep what they downloaded. Nothing here downloads.

#include <string>

namespace trireme::checkpoint {

/// The folder of the model that `name` names: "org/model", or "model", with "@revision" (a branch, tag or commit; main
/// otherwise), as huggingface_hub lays its cache out. $HF_HUB_CACHE, $HF_HOME/hub, $XDG_CACHE_HOME/huggingface/hub or
/// ~/.cache/huggingface/hub is looked at. ConfigError with the command that downloads it where it is not there.
std::string cached_model(const std::string& name);

}  // namespace trireme::checkpoint
