#include <fmt/format.h>

#include "tests/ranks/pipeline_support.h"
#include "trireme/data/batch.h"
#include "trireme/nn/layers.h"
#include "trireme/nn/loss.h"

namespace trireme::pipeline::testing {

namespace {

constexpr int64_t kVocab = 13, kHidden = 6, kPadding = 0;

using base::DType;
using nn::BatchShape;
using nn::Builder;
using nn::Context;
using nn::State;
using nn::StateSpec;

nn::Param* shared_table(const Builder& b) {
  return (b / "shared").param("weight", {kVocab, kHidden}, layout::Init::normal(0.5),
                              layout::Sbp::invariant());
}

nn::TensorSpec stream(const char* name, int64_t rows, int64_t seq) {
  return {name, {rows, seq, kHidden}, DType::f64, true};
}

class EncoderEmbedding : public nn::Layer {
 public:
  explicit EncoderEmbedding(const Builder& b) : table_(shared_table(b)) {}
  State forward(State, const Context& context) override {
    return {{"hidden", nn::embedding(context.batch.tensors.at("source"), table_, 0, context)}};
  }
  StateSpec describe(const StateSpec&, const BatchShape& shape) const override {
    return {stream("hidden", shape.rows, shape.source_seq)};
  }

 private:
  nn::Param* table_;
};

/// x + dropout(tanh(linear(x))) + shared bias, and in the decoder what the encoder's output says.
class Block : public nn::Layer {
 public:
  Block(const Builder& b, const std::string& name, bool decoder, double dropout)
      : decoder_(decoder),
        dropout_(dropout),
        layer_(b.layer_index()),
        linear_(b / name / "linear", kHidden, kHidden, {.init = layout::Init::normal(0.4)}),
        bias_((b / "bias").param("weight", {kHidden}, layout::Init::normal(0.3),
                                 layout::Sbp::invariant())) {}

  State forward(State in, const Context& context) override {
    at::Tensor x = in.at("hidden");
    at::Tensor y = nn::add_bias(at::tanh(linear_.forward(x, context)), bias_, context);
    if (decoder_) y = y + attend(y, in.at("memory"), context.batch.tensors.at("source"));
    in.set("hidden", x + nn::dropout(y, dropout_, layer_, 0, 0, context));
    return in;
  }

 private:
  static at::Tensor attend(const at::Tensor& x, const at::Tensor& memory, const at::Tensor& source) {
    at::Tensor scores = at::matmul(x, memory.transpose(1, 2));
    scores = scores.masked_fill(source.eq(kPadding).unsqueeze(1), -1e30);
    return at::matmul(at::softmax(scores, -1), memory);
  }

  bool decoder_;
  double dropout_;
  int layer_;
  nn::Linear linear_;
  nn::Param* bias_;
};

/// The encoder's stream becomes the memory that travels on; the decoder's begins.
class Turn : public nn::Layer {
 public:
  explicit Turn(const Builder& b) : table_(shared_table(b)) {}
  State forward(State in, const Context& context) override {
    return {{"hidden", nn::embedding(context.batch.tensors.at("target"), table_, 0, context)},
            {"memory", in.at("hidden")}};
  }
  StateSpec describe(const StateSpec&, const BatchShape& shape) const override {
    return {stream("hidden", shape.rows, shape.seq), stream("memory", shape.rows, shape.source_seq)};
  }

 private:
  nn::Param* table_;
};

class Head : public nn::Layer {
 public:
  explicit Head(const Builder& b) : table_(shared_table(b)) {}
  State forward(State in, const Context& context) override {
    return {{"logits", nn::linear(in.at("hidden"), table_, nullptr, nn::Orientation::out_in, context)}};
  }

 private:
  nn::Param* table_;
};

}  // namespace

nn::ModelDef encoder_decoder(const EncoderDecoderOptions& options) {
  nn::ModelDef def;
  auto add_blocks = [&](const char* half, int count, bool decoder) {
    for (int i = 0; i < count; ++i)
      def.layers.push_back({fmt::format("{}.{}", half, i), true, [=](Builder& b) {
                              return std::make_unique<Block>(b, fmt::format("{}.{}", half, i),
                                                             decoder, options.dropout);
                            }});
  };
  def.layers.push_back(
      {"encoder_embedding", false, [](Builder& b) { return std::make_unique<EncoderEmbedding>(b); }});
  add_blocks("encoder", options.encoder, false);
  def.layers.push_back({"turn", false, [](Builder& b) { return std::make_unique<Turn>(b); }});
  add_blocks("decoder", options.decoder, true);
  def.layers.push_back({"head", false, [](Builder& b) { return std::make_unique<Head>(b); }});
  def.loss = [](const State& out, const nn::Batch& batch, const comm::Comm& tp) {
    return nn::cross_entropy_sum(out.at("logits"), batch.tensors.at("labels"), 0, tp);
  };
  def.loss_weight = [](const nn::Batch& batch) {
    return nn::count_labels(batch.tensors.at("labels"));
  };
  return def;
}

std::vector<nn::Batch> make_pairs(int count, int64_t rows) {
  std::vector<nn::Batch> batches;
  for (int64_t m = 0; m < count; ++m) {
    const int64_t source = 5 + m % 2, target = 3 + m % 3;
    auto index = [&](int64_t seq) {
      return at::arange(rows * seq, at::kLong).view({rows, seq}) + 100 * m;
    };
    nn::Batch batch;
    at::Tensor tokens = (index(source) * 7).remainder(kVocab - 1) + 1;
    tokens.narrow(1, source - 1 - m % 2, 1).fill_(kPadding);
    at::Tensor labels = (index(target) * 5).remainder(kVocab);
    batch.tensors = {{"source", tokens},
                     {"target", (index(target) * 3).remainder(kVocab)},
                     {"labels", labels.masked_fill(labels.remainder(4).eq(m % 4), data::kIgnoreLabel)}};
    batch.rows = rows;
    batch.seq = target;
    batch.source_seq = source;
    batch.samples = at::arange(m * rows, (m + 1) * rows, at::kLong);
    batches.push_back(batch);
  }
  return batches;
}

}  // namespace trireme::pipeline::testing
