#pragma once
// Towers: a chain of images, then one of texts, whose states meet in one space (Radford et al., 2021). The loss asks of each
// text which image of its micro-batch it belongs to, and of each image which text: a function of a micro-batch of one data
// rank, of which a step takes the mean over rows.

#include <string>

#include "trireme/models/blocks/encoder.h"
#include "trireme/models/blocks/vision.h"

namespace trireme::models {

/// Full names of modules, `scale` of a parameter; the image is its stream's first state, the text the one at `end`.
struct TowersSpec {
  PatchSpec patches = {};
  BlockSpec image = {}, text = {};
  std::vector<std::string> image_blocks = {}, text_blocks = {};
  std::string image_norm = {}, text_norm = {};  // behind the last block
  std::string words = {}, places = {};
  int64_t vocab = 0, max_places = 0;
  double deviation = 0.02;  // of words and places
  std::string image_projection = {}, text_projection = {};
  int64_t features = 0;  // of the space in which they meet
  std::string scale = {};
  double first_scale = 0;
  int64_t end = -1;  // the token that ends a text; 2: the highest id of each
};

/// Batches hold `pixel_values` and `input_ids`. `tp` must divide the heads of both: else ConfigError names the keys.
nn::ModelDef make_towers(const TowersSpec& spec, int tp, const std::string& image_heads,
                         const std::string& text_heads);

}  // namespace trireme::models
