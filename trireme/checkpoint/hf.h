#pragma once
// Hugging Face folders: how their tensor names map to the model's own, and which side files travel
// with a checkpoint. config.json needs no map: the model tree's keys are Hugging Face's.

#include <optional>
#include <string>
#include <vector>

#include "trireme/base/json.h"

namespace trireme::checkpoint {

/// The model's name of a stored tensor, or nothing for a buffer that is no weight (GPT-2's
/// attention masks, Llama's frequencies). Files of a bare model lack the prefix ("transformer.").
std::optional<std::string> model_name(const base::Json& config, const std::string& stored);

/// What Hugging Face's class, which `architectures` names, calls the model's tensor `name` in its files.
std::string file_name(const base::Json& config, const std::string& name);

/// The parameter that a stored tensor only repeats, because the configuration ties them (GPT-2:
/// lm_head.weight is transformer.wte.weight); empty for all others. `name` is the model's.
std::string tied_to(const base::Json& config, const std::string& name);

/// Copies the files that go along with weights (of the tokenizer, of how to generate and of how images are prepared: those of
/// `from` that Hugging Face knows; or `from` itself when it is a file) into `folder`, durably. IoError when `from` does not exist.
void copy_tokenizer(const std::string& from, const std::string& folder);

}  // namespace trireme::checkpoint
