#pragma once
// The files of a byte-level BPE tokenizer: Hugging Face's tokenizer.json (format 1.0) with
// tokenizer_config.json, and GPT-2's vocab.json with merges.txt (OpenAI names them encoder.json and
// vocab.bpe).
//
// Reading is strict. A damaged file is a FormatError with the file and the place; a tokenizer that
// needs what is not supported (another model, a normalizer, ...) is a ConfigError that names it.

#include <string>

#include "trireme/text/byte_level_tokenizer.h"

namespace trireme::text {

ByteLevelSpec read_tokenizer_json(const std::string& path);
ByteLevelSpec read_gpt2_files(const std::string& vocabulary_path, const std::string& merges_path);
/// Writes tokenizer.json and tokenizer_config.json into an existing folder.
void write_tokenizer_files(const ByteLevelSpec& spec, const std::string& folder);

}  // namespace trireme::text
