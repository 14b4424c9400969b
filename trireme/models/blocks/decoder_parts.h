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

/// Each token goes to the experts with the largest shares. Tensor ranks hold a part of every expert, as of an MLP. Data
/// ranks hold all of them, each for its own tokens; or each has experts of its own (BuildOptions::expert_axis), to which
/// the tokens of all travel, and back.
class Experts {
 public:
  Experts(const nn::Builder& block, const DecoderConfig& config);
  /// stream -> stream. Collective over tp, and over dp where data ranks have experts of their own.
  Routed forward(const at::Tensor& x, const nn::Context& context) const;

 private:
  /// What the experts make of rows that are ordered by them, `counts` [experts] for each. Collective over dp where data
  /// ranks have experts of their own.
  at::Tensor apply(const at::Tensor& rows, const at::Tensor& counts, const nn::Context& context) const;
  /// The same of this rank's experts alone. Local.
  at::Tensor run(const at::Tensor& rows, const std::vector<int64_t>& counts, const nn::Context& context) const;

  DecoderConfig::Experts options_;
  const comm::Comm *tp_, *dp_;
  std::vector<layout::Range> held_;  // experts, by the data rank that has them; one range: all are here
  layout::Range own_ = {};           // this rank's
  layout::Sbp stream_;
  nn::Activation activation_;
  nn::Param* router_;
  std::vector<nn::ColumnGroup> in_;
  std::vector<nn::Linear> out_;
};

}  // namespace trireme::models
