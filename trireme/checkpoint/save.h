#pragma once
// Saving: all ranks write one checkpoint folder, ROOT/step_00000100, that is there whole or not at
// all.
//
// Split: each rank writes the parts it owns (model_rank_00000.safetensors,
// optimizer_rank_00000.safetensors), so each element is written once in the job. Merged: rank 0
// writes Hugging Face's layout (model.safetensors) and optimizer.safetensors, tensor by tensor as
// the owners send their parts; no rank holds more than one tensor. Beside them lie config.json, the
// tokenizer's files, index.json (split) and, written last, trireme.json.

#include <string>
#include <vector>

#include "trireme/checkpoint/index.h"
#include "trireme/checkpoint/manifest.h"
#include "trireme/comm/comm.h"
#include "trireme/nn/tensor_part.h"

namespace trireme::checkpoint {

struct SaveRequest {
  std::string root;   // the run's checkpoints folder
  Manifest manifest;  // checksums are filled in by save
  std::vector<nn::TensorPart> parameters, optimizer;
  std::string tokenizer;  // folder or file whose tokenizer goes along; empty: none
  int max_to_keep = 0;    // newest checkpoints that stay; 0: all
};

/// Collective over the job's ranks. Writes the checkpoint, points ROOT/latest at it, removes older
/// ones and what interrupted saves left; returns its path. An error on any rank (IoError: disk
/// full) is thrown on all, nothing partial stays and the run can go on.
std::string save(const SaveRequest& request, const comm::Comm& world);

/// Writes parts into `folder` under `file`; returns the checksums by name. Local.
std::map<std::string, uint64_t> write_parts(const std::string& folder, const std::string& file,
                                            const std::vector<nn::TensorPart>& parts);

/// Name of a rank's file in a split checkpoint: "model_rank_00003.safetensors".
std::string rank_file(bool optimizer, int rank);

/// Writes config.json and copies the tokenizer's files (from `tokenizer`, unless empty). Local.
void write_model_files(const std::string& folder, const base::Json& model_config,
                       const std::string& tokenizer);

/// Writes index.json (null: none) and, last of all, trireme.json with the checksums of the other
/// files in `folder`. Local.
void write_manifest(const std::string& folder, Manifest manifest, const Index* index);

}  // namespace trireme::checkpoint
