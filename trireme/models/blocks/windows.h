#pragma once
// Windows: blocks that attend within windows of an image, and the merging of neighbours between stages (Liu et al., Swin,
// 2021). The second version (Liu et al., 2022) compares directions of queries and keys, makes the bias of a distance by a
// small network, and normalises what a branch gives instead of what it takes. The stream must be whole on every tensor rank
// (keep_whole): a window may lie anywhere in it.

#include <string>
#include <vector>

#include "trireme/nn/layer.h"

namespace trireme::models {

/// One block as it lies: `height` x `width` positions of `hidden` features.
struct WindowSpec {
  int64_t height = 0, width = 0, hidden = 0, heads = 0, window = 0, shift = 0,
          pretrained_window = 0;
  bool v2 = false, qkv_bias = true;
  double mlp_ratio = 4, drop_path = 0, dropout = 0, attention_dropout = 0, deviation = 0.02,
         eps = 1e-5;
  std::string activation = "gelu";
  int64_t padded(int64_t size) const { return (size + window - 1) / window * window; }
  int64_t windows() const { return padded(height) / window * (padded(width) / window); }
};

struct WindowStages {
  WindowSpec first = {};  // but for heads, window, shifts and dropping of branches
  std::vector<int64_t> depths = {}, heads = {}, pretrained_windows = {};  // of each stage
  int64_t window = 7;
  double drop_path = 0;  // of the last block; it grows from 0
};
/// Adds the blocks, PREFIX.STAGE.blocks.I, and between stages the merging of four neighbours into one position of twice the
/// features; returns the last stage as it lies. ConfigError where heads, windows and `tp` do not suit.
WindowSpec add_stages(const WindowStages& stages, const std::string& prefix, int tp, nn::ModelDef& def);

}  // namespace trireme::models
