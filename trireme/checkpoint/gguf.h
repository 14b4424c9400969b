#pragma once
// Models from GGUF files, as Hugging Face folders that everything else takes.

#include <string>

#include "trireme/checkpoint/convert.h"

namespace trireme::checkpoint {

/// Writes config.json, model.safetensors (fp32, or options.dtype) and the tokenizer of a GGUF file of a Llama, Mistral,
/// Mixtral, Qwen2, Qwen3 (with experts too), Gemma 2 or 3, Phi-3 or GPT-2 model into a new folder, one tensor in memory at a time. Returns the number of tensors. ConfigError when
/// `destination` exists; FormatError for another architecture, a tensor or key that lacks or is left over, and for rotary
/// factors as tensors.
int64_t convert_gguf(const std::string& file, const std::string& destination, const ConvertOptions& options);

}  // namespace trireme::checkpoint
