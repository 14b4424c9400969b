#pragma once
// The residual stream of an image: its patches as vectors, tokens of the model before them, a
// learned place for each.

#include <string>
#include <utility>
#include <vector>

#include "trireme/base/json.h"
#include "trireme/models/blocks/heads.h"
#include "trireme/nn/layers.h"

namespace trireme::models {

/// Full names; of modules where they end in a module's name, else of parameters.
struct PatchSpec {
  std::string projection;                // module: a convolution that sees each patch once
  std::vector<std::string> tokens = {};  // parameters: stand before the patches
  std::string places = "";               // parameter; empty: none
  bool fixed_places = false;             // sines and cosines (layout::Init::waves), a buffer
  double left_out =
      0;  // share of the patches that the stream lacks, others in each row (kept_patches)
  bool flat =
      false;  // tokens are [hidden] and places [n, hidden], else [1, 1, hidden] and [1, n, hidden]
  bool bias = true;
  std::string norm = "";  // module; empty: none
  Norm norm_kind = {};
  bool norm_before_places = false;
  int64_t channels = 3, height = 0, width = 0, patch_height = 0, patch_width = 0, hidden = 0;
  double dropout = 0, deviation = 0.02;

  int64_t patches() const { return (height / patch_height) * (width / patch_width); }
  /// Those that have a place, and those in the stream.
  int64_t positions() const { return patches() + static_cast<int64_t>(tokens.size()); }
  int64_t kept() const {
    return static_cast<int64_t>(static_cast<double>(patches()) * (1 - left_out));
  }
  int64_t seen() const { return kept() + static_cast<int64_t>(tokens.size()); }
};

/// Of a configuration's image_size and patch_size.
struct ImageSizes {
  std::pair<int64_t, int64_t> image = {224, 224}, patch = {16, 16};
};
/// Where a key is absent it is `otherwise`. ConfigError unless a patch lies within the image.
ImageSizes read_sizes(const base::Json& tree, const ImageSizes& otherwise = {});
/// ConfigError unless patches fill the image.
void check_divides(const ImageSizes& sizes);
/// Fills in what `read_sizes` takes where nothing is given, for `resolve`.
void write_sizes(base::Json& resolved, const ImageSizes& otherwise = {});

/// Leaves out x, the branch of a residual layer, for whole samples (Huang et al., stochastic depth, 2016).
at::Tensor drop_path(const at::Tensor& x, double p, int layer, int site, const nn::Context& context);

/// The first link of a chain that looks at `pixel_values` [rows, channels, height, width].
nn::LayerDef patch_link(const PatchSpec& spec);

/// The patches that a pass keeps of each row, [rows, spec.kept()]: drawn by coordinate (sample,
/// patch), the same in every link and on every layout; or those of the least `noise` [rows,
/// patches], where the batch has that.
at::Tensor kept_patches(const PatchSpec& spec, const nn::Context& context);
/// What pixel_values [rows, channels, height, width] show of each patch: [rows, patches, height *
/// width * channels of one].
at::Tensor pixels_of_patches(const PatchSpec& spec, const at::Tensor& pixels);

/// A list of numbers >= 1; `otherwise` where the key is not there.
std::vector<int64_t> numbers_of(const base::Json& tree, const char* key,
                                const std::vector<int64_t>& otherwise);
/// A size that Hugging Face gives as a number or as [height, width]; `otherwise` where the key is
/// not there.
std::pair<int64_t, int64_t> size_of(const base::Json& tree, const char* key, int64_t otherwise);

}  // namespace trireme::models
