#include "trireme/models/blocks/probe.h"

#include <ATen/ATen.h>

#include "trireme/models/blocks/encoder.h"
#include "trireme/nn/batch_norm.h"

namespace trireme::models {
namespace {

/// One place leaves, so the stream is whole on every rank.
class Standardized : public nn::Layer {
 public:
  Standardized(const nn::Builder& b, const HeadSpec& head)
      : dtype_(b.options().dtype),
        positions_(head.positions),
        hidden_(head.hidden),
        mean_(head.rows->pool == RowPool::mean),
        norm_(b / head.norm, head.hidden, head.norm_kind),
        rows_(b / "classifier_norm", head.hidden, {.affine = false}) {}

  nn::State forward(nn::State in, const nn::Context& given) override {
    const nn::Context context = given.over(positions_.of(given.batch.shape()));
    at::Tensor x = in.at("hidden");
    x = norm_.forward(mean_ ? x : x.narrow(1, 0, 1), context);
    return {{"hidden", rows_.forward(mean_ ? x.mean(1, true) : x, context)}};
  }
  nn::StateSpec describe(const nn::StateSpec&, const nn::BatchShape& shape) const override {
    return {{"hidden", {shape.rows, 1, hidden_}, dtype_, true}};
  }

 private:
  base::DType dtype_;
  Positions positions_;
  int64_t hidden_;
  bool mean_;
  AnyNorm norm_;
  nn::BatchNorm rows_;
};

}  // namespace

void add_probe(HeadSpec head, nn::ModelDef& def) {
  def.layers.push_back(
      {"probe", false, [head](nn::Builder& b) { return std::make_unique<Standardized>(b, head); }});
  def.whole_batches = true;
  head.norm = "", head.rows->pool = RowPool::first, head.positions = {.fixed = 1};
  add_head(head, def);
  keep_whole(def);
}

}  // namespace trireme::models
