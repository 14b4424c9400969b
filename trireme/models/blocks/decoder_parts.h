#pragma once
// Parts of a decoder's block (decoder.h): attention between its projections, MLP and mixture of
// experts. Each reads of a DecoderConfig what concerns it.

#include <optional>

#include "trireme/models/blocks/decoder.h"
#include "trireme/models/blocks/sites.h"

namespace trireme::models {

class Attention {
 public:
  Attention(const nn::Builder& block, const DecoderConfig& config, int64_t index);
  /// stream -> stream. Collective over tp.
  at::Tensor forward(const at::Tensor& x, const nn::Context& context) const;

 private:
  DecoderConfig config_;
  nn::Builder builder_;
  nn::ColumnGroup in_;
  nn::Linear out_;
  std::optional<nn::RmsNorm> query_norm_, key_norm_;
  std::optional<nn::Rotary> rotary_;
  at::Tensor slopes_;  // of the local heads, fp32
  double scale_;
  int64_t window_ = 0;
};

class Mlp {
 public:
  Mlp(const nn::Builder& block, const DecoderConfig& config);
  /// stream -> stream. Collective over tp.
  at::Tensor forward(const at::Tensor& x, const nn::Context& context) const;

 private:
  nn::Activation activation_;
  bool gated_;
  nn::ColumnGroup in_;
  nn::Linear out_;
};

struct Routed {
  at::Tensor out = {};                  // stream
  at::Tensor chosen = {}, shares = {};  // [experts]: choices of this micro-batch, sums of shares; invariant
};

/// Each token goes to the experts with the largest shares. Every rank holds a part of every expert, as of an MLP.
class Experts {
 public:
  Experts(const nn::Builder& block, const DecoderConfig& config);
  /// stream -> stream. Collective over tp.
  Routed forward(const at::Tensor& x, const nn::Context& context) const;

 private:
  DecoderConfig::Experts options_;
  const comm::Comm* tp_;
  layout::Sbp stream_;
  nn::Activation activation_;
  nn::Param* router_;
  std::vector<nn::ColumnGroup> in_;
  std::vector<nn::Linear> out_;
};

}  // namespace trireme::models
