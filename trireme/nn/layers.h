#pragma once
// Layers' parts: tensor-parallel modules built from the parametric functions. Which way a weight is split comes
// from the policy; the activations' places follow:
//   column    stream -> replicated, weight split by outputs, result split(-1)
//   row       input split(-1), weight split by inputs, result partial -> stream
//   vocab     table split by rows
//   replicate everything at the stream's place

#include <memory>
#include <optional>

#include "trireme/nn/builder.h"
#include "trireme/nn/parametric.h"

namespace trireme::nn {

/// Rows [begin, end) of the sequence that this rank's residual stream holds.
layout::Range stream_range(const Builder& builder, int64_t seq);

class Linear {
 public:
  struct Options {
    Orientation orientation = Orientation::out_in;
    layout::Init init = layout::Init::normal(0.02);
    bool bias = true;
    int64_t granularity = 1;  // splits fall on multiples of this many features (a head's size)
    std::vector<int64_t> fused = {};       // of a column weight: sizes of its blocks, each split on its own
    std::vector<layout::Range> rows = {};  // of a column weight that every rank holds whole: the outputs of this rank
  };
  Linear(const Builder& builder, int64_t in, int64_t out, const Options& options);
  /// Collective over tp.
  at::Tensor forward(const at::Tensor& x, const Context& context) const;
  /// The product alone: a column weight's outputs of an input that is replicated already; a row weight's partial sum,
  /// without its bias where there are several ranks. Local, but for a row weight with an adapter's magnitudes: collective over tp.
  at::Tensor local(const at::Tensor& x, const Context& context) const;

 private:
  at::Tensor product(const at::Tensor& x, Param* weight, Param* bias, Orientation orientation, const Context& context) const;
  at::Tensor dropped(const at::Tensor& x, const Context& context) const;
  at::Tensor lengths() const;

  const comm::Comm* tp_;
  layout::Sbp stream_;
  Style style_;
  Orientation orientation_;
  Param* weight_ = nullptr;
  Param* bias_ = nullptr;
  std::vector<layout::Range> rows_;
  struct Adapter {  // LowRank's A and B, and its magnitudes where there are any
    Param *in = nullptr, *out = nullptr, *magnitude = nullptr;
    double scale = 0, dropout = 0;
    int layer = 0;      // of that dropout
    uint64_t site = 0;
  };
  std::shared_ptr<const Adapter> adapter_;  // null: the build wants none
};

/// Column weights that share one input, which is gathered once: query, key and value; gate and up. Outputs of one module
/// follow each other in a fused weight, each split on its own. An output of fewer granules than tensor ranks (key heads)
/// is held whole by all of them, each using the granule of its neighbourhood; then the ranks are a multiple of the granules.
class ColumnGroup {
 public:
  struct Output {
    std::string module;
    int64_t features = 0, granularity = 1;
  };
  ColumnGroup(const Builder& builder, int64_t in, const std::vector<Output>& outputs, Linear::Options options);
  /// The local part of each output. Collective over tp.
  std::vector<at::Tensor> forward(const at::Tensor& x, const Context& context) const;
  /// The same of an input that is replicated already. Local.
  std::vector<at::Tensor> local(const at::Tensor& x, const Context& context) const;

 private:
  const comm::Comm* tp_;
  layout::Sbp stream_;
  std::vector<Linear> linears_;
  std::vector<std::vector<int64_t>> sizes_;  // of the outputs of each
};

class LayerNorm {
 public:
  LayerNorm(const Builder& builder, int64_t features, double eps);
  at::Tensor forward(const at::Tensor& x, const Context& context) const {
    return layer_norm(x, weight_, bias_, eps_, context);
  }

 private:
  double eps_;
  Param* weight_;
  Param* bias_;
};

/// Root-mean-square normalisation (Zhang and Sennrich, 2019) over the last dimension, in at least fp32: x / rms times
/// (offset + weight). Local.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, double offset, const Context& context);

/// rms_norm with a parameter, which is drawn so that the factor begins as one.
class RmsNorm {
 public:
  RmsNorm(const Builder& builder, int64_t features, double eps, double offset = 0)
      : RmsNorm(builder, features, eps, offset, builder.stream_param()) {}
  /// `place` of the weight on tp: replicated where each rank normalises heads of its own.
  RmsNorm(const Builder& builder, int64_t features, double eps, double offset, layout::Sbp place);
  at::Tensor forward(const at::Tensor& x, const Context& context) const;

 private:
  double eps_, offset_;
  Param* weight_;
};

/// A table of token vectors, split by rows where the policy says `vocab`; also the output projection where the
/// model ties both.
class VocabTable {
 public:
  VocabTable(const Builder& builder, int64_t vocab, int64_t features, layout::Init init);
  /// ids [batch, seq] -> stream. Where `padding` stands among the ids, its row gets no gradient. Collective over tp.
  at::Tensor embed(const at::Tensor& ids, const Context& context, int64_t padding = -1) const;
  /// stream -> local logits [batch, seq, local vocab], plus `bias` [vocab] where there is one. Collective over tp.
  at::Tensor logits(const at::Tensor& x, const Context& context, Param* bias = nullptr) const;
  /// The loss of `labels` alone (head_cross_entropy_sum), as the Context requests it. Collective over tp.
  at::Tensor loss(const at::Tensor& x, const at::Tensor& labels, const Context& context, Param* bias = nullptr,
                  double soft_cap = 0) const;
  /// First global row of the local part.
  int64_t first() const;
  bool split() const { return split_; }

 private:
  const comm::Comm* tp_;
  layout::Sbp stream_;
  bool split_;
  Param* weight_;
};

/// Dropout of the residual stream [batch, seq, hidden] by global coordinates; identity in eval mode. `seq_begin` is
/// the first position that x holds, `first_feature` its first column. `layer` and `site` name the place in the model.
at::Tensor dropout(const at::Tensor& x, double p, int layer, int site, int64_t seq_begin, const Context& context,
                   int64_t first_feature = 0);

/// x + dropout(branch, ...), in one pass.
at::Tensor add_dropped(const at::Tensor& x, const at::Tensor& branch, double p, int layer, int site, int64_t seq_begin,
                       const Context& context);

/// Dropout of x [sample, b, c, d], or [sample, c, d], by coordinate, whatever the mode: `samples` are the rows' places in the
/// global batch, b, c and d those of x's first element along its other dimensions.
at::Tensor dropout_by_coordinate(const at::Tensor& x, double p, uint64_t key, const at::Tensor& samples, int64_t b,
                                 int64_t c, int64_t d = 0);

/// The activation named as Hugging Face names it: gelu, gelu_new, gelu_pytorch_tanh, relu, silu, tanh...; ConfigError
/// with the known names otherwise.
using Activation = at::Tensor (*)(const at::Tensor&);
Activation find_activation(const std::string& name);

/// activation(gate) * up, as gated units have it. Local.
at::Tensor gated(Activation activation, const at::Tensor& gate, const at::Tensor& up, const Context& context);

}  // namespace trireme::nn
