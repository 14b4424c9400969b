#pragma once
// What the families of plain vision transformers share: configuration, patches and blocks, with the
// names of Hugging Face's ViT under a base name of their own.

#include <string>

#include "trireme/models/blocks/encoder.h"
#include "trireme/models/blocks/vision.h"
#include "trireme/models/family.h"

namespace trireme::models {

struct VitConfig : EncoderKeys {
  int64_t num_channels = 3;
  bool qkv_bias = true;
  ImageSizes sizes = {};
};

/// All keys but those of `sizes`, which are read_sizes' (vision.h).
void visit(ConfigReader& get, VitConfig& c);

/// `tokens`: names that follow "<base>.embeddings.".
PatchSpec vit_patches(const VitConfig& c, const std::string& base,
                      const std::vector<std::string>& tokens = {"cls_token"});
BlockSpec vit_block(const VitConfig& c, const Positions& positions);
/// The scopes of its blocks.
std::vector<std::string> vit_blocks(const VitConfig& c, const std::string& base);

}  // namespace trireme::models
