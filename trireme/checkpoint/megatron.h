#pragma once
// Models from the checkpoint folders of old Megatron-LM (before its core had formats of its own) and of LiBai, which took over
// its models, as Hugging Face folders that everything else takes:
//
//   Megatron-LM  latest_checkpointed_iteration.txt; mp_rank_TT[_PPP]/model_optim_rng.pt for each tensor-parallel rank and stage
//   LiBai        config.yaml, last_checkpoint, model_NNNNNNN/model: OneFlow's own format (oneflow.h), always whole
//
// Names, splits and the orders in which versions keep queries, keys and values are tables.

#include <string>

#include "trireme/checkpoint/convert.h"

namespace trireme::checkpoint {

/// Does the folder hold, or name, weights of one of the two?
bool has_megatron_files(const std::string& folder);

/// Writes config.json and model.safetensors (in the stored type, or options.dtype) of a GPT (as GPT-2), BERT (as
/// megatron-bert) or T5 (as Blenderbot, whose model it is) into a new folder, one tensor in memory at a time. A padded
/// vocabulary stays padded. Returns the number of tensors. ConfigError when `destination` exists; FormatError for other models,
/// a rank that lacks, and tensors that lack or are left over.
int64_t convert_megatron(const std::string& folder, const std::string& destination,
                         const ConvertOptions& options);

}  // namespace trireme::checkpoint
