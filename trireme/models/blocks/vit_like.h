#pragma once
// What the families of plain vision transformers share: configuration, patches and blocks, with the
// names of Hugging Face's ViT under a base name of their own.

#include <string>

#include "trireme/models/blocks/encoder.h"
#include "trireme/models/blocks/vision.h"
#include "trireme/models/family.h"

namespace trireme::models {

struct VitConfig {
  int64_t hidden_size = 768, num_hidden_layers = 12, num_attention_heads = 12,
          intermediate_size = 3072, num_channels = 3;
  double hidden_dropout_prob = 0, attention_probs_dropout_prob = 0, initializer_range = 0.02,
         layer_norm_eps = 1e-12;
  std::string hidden_act = "gelu";
  bool qkv_bias = true;
  std::pair<int64_t, int64_t> image = {224, 224}, patch = {16, 16};
};

void visit(ConfigReader& get, VitConfig& c);
/// The sizes of image and patch. ConfigError where they cannot be.
void read_sizes(const base::Json& tree, VitConfig& c);
/// Fills in what `read_sizes` takes where nothing is given, for `resolve`.
void write_sizes(base::Json& resolved);
/// ConfigError for values that do not go together.
void check(const VitConfig& c);

/// `tokens`: names that follow "<base>.embeddings.".
PatchSpec vit_patches(const VitConfig& c, const std::string& base,
                      const std::vector<std::string>& tokens = {"cls_token"});
BlockSpec vit_block(const VitConfig& c, const Positions& positions);
/// The scope of block i.
std::string vit_block_name(const std::string& base, int64_t i);

}  // namespace trireme::models
