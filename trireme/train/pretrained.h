#pragma once
// One call that lays a Hugging Face model out over tensor x pipeline ranks, and one that brings its weights back. What is
// left of the ranks are data ranks. Each reads the bytes of its own slices, nothing else.
//
//   auto model = train::from_pretrained("org/model", {.tensor_parallel_size = 2, .pipeline_parallel_size = 2}, world);
//   ...a loop on model.assembly, see examples/finetune.cc...
//   train::save_pretrained(model, "out/finetuned", world);

#include <memory>
#include <string>
#include <vector>

#include "trireme/train/assembly.h"

namespace trireme::train {

struct ParallelOptions {
  int tensor_parallel_size = 1, pipeline_parallel_size = 1;
  int64_t micro_batches = 1;      // of a step
  std::string schedule = "1f1b";  // any that schedule::generate knows
  bool sequence_parallel = false;
  layout::Axis expert_axis = layout::Axis::tp;  // dp: data ranks share out a mixture's experts
  int zero_stage = 0;
  base::DType dtype = base::DType::f32;
  bool gradients = true;                  // false: for evaluation and generation
  bool gradient_checkpointing = false;    // recompute every block
  bool fuse = true;                       // fused kernels (train.fuse)
  uint64_t seed = 0;                      // draws weights that no file has
  base::Json config = base::Json::object();  // keys that win over the model's own, as from_pretrained(name, key=value)
  std::vector<std::string> freeze = {};   // patterns of full names that stay as they are
  bool strict = true;                     // false: weights that the files lack are drawn, and `mismatch` tells which
};

struct ParallelModel {
  std::unique_ptr<Assembly> assembly;
  base::Json config;                  // every key filled in
  pipeline::StageOptions stage = {};  // for the Executor
  checkpoint::Mismatch mismatch = {};
  std::string source = {};            // whose tokenizer goes along when it is saved; empty: none
  ParallelOptions options = {};       // that it was laid out by
};

/// The model of a folder, or of a name in Hugging Face's cache (checkpoint/hub.h): safetensors or pytorch_model.bin, one
/// file or several, a checkpoint of trireme, or OSLO's split files. ConfigError, FormatError. Collective over the world.
ParallelModel from_pretrained(const std::string& name_or_folder, const ParallelOptions& options, dist::World& world);

/// The model that a config.json's tree names, with weights drawn from the seed: the same whatever the layout. ConfigError.
/// Collective over the world.
ParallelModel from_config(const base::Json& config, const ParallelOptions& options, dist::World& world);

/// Gives the model a vocabulary of `size` tokens: the first ones of those there are, and new ones that begin as
/// checkpoint::Resizing says, in every table and head that has a place for each; ties stay. Its parameters move, so call it before an optimizer or an
/// executor is made of them. ConfigError for a family without a vocabulary. Collective over the world.
void resize_token_embeddings(ParallelModel& model, int64_t size, dist::World& world);

enum class SaveFormat : uint8_t {
  safetensors,  // config.json, model.safetensors
  bin,          // config.json, pytorch_model.bin
  oslo,         // config.json, pytorch_model_tp=T_pp=P.bin of the model's own layout
};

/// Writes the weights, an adapter merged into them, into a new folder, with config.json and the tokenizer's files; whole or not at all. No rank holds
/// more than one whole tensor. ConfigError when `folder` exists, IoError. Collective over the world.
void save_pretrained(const ParallelModel& model, const std::string& folder, dist::World& world,
                     SaveFormat format = SaveFormat::safetensors);

/// The same under the names that OSLO's users know.
inline ParallelModel from_pretrained_with_parallel(const std::string& name_or_folder, const ParallelOptions& options,
                                                   dist::World& world) {
  return from_pretrained(name_or_folder, options, world);
}
inline ParallelModel from_config_with_parallel(const base::Json& config, const ParallelOptions& options,
                                               dist::World& world) {
  return from_config(config, options, world);
}
inline void save_pretrained_with_parallel(const ParallelModel& model, const std::string& folder, dist::World& world,
                                          bool save_with_merging = false) {
  save_pretrained(model, folder, world, save_with_merging ? SaveFormat::bin : SaveFormat::oslo);
}

}  // namespace trireme::train
