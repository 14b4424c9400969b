// A head and a criterion of one's own on a pretrained encoder: grades of texts, where a far miss counts less than its square.
#include <ATen/ATen.h>

#include "trireme/base/plugin.h"
#include "trireme/models/blocks/heads.h"
#include "trireme/models/family.h"
#include "trireme/models/registry.h"
#include "trireme/nn/layers.h"

namespace {

using namespace trireme;

struct Grade : nn::Layer {
  nn::Builder builder;
  nn::Linear out;
  Grade(const nn::Builder& b, int64_t hidden) : builder(b), out(b.whole() / "grade", hidden, 1, {}) {}
  nn::State forward(nn::State in, const nn::Context& context) override {
    const at::Tensor first = models::whole_stream(builder, in.at("hidden"), context).select(1, 0);
    return {{"grade", out.forward(first, context).squeeze(-1)}};
  }
  nn::StateSpec describe(const nn::StateSpec&, const nn::BatchShape& shape) const override {
    return {{"grade", {shape.rows}, builder.options().dtype, true}};
  }
};

base::Json encoder_of(base::Json tree) {
  tree["family"] = tree["model_type"] = "bert";
  tree["head"] = "embedding";
  return tree;
}

nn::ModelDef make(const base::Json& tree, int tp) {
  nn::ModelDef def = models::make_model(encoder_of(tree), tp);
  const int64_t hidden = tree.value("hidden_size", int64_t{768});
  def.layers.back() = {"grade", false, [hidden](nn::Builder& b) { return std::make_unique<Grade>(b, hidden); }};
  def.trains_on = {{"input_ids"}, {"labels", 0}};
  def.loss = [](const nn::State& out, const nn::Batch& batch, const comm::Comm&) {
    return at::huber_loss(out.at("grade").to(at::kDouble), batch.tensors.at("labels").to(at::kDouble), at::Reduction::Sum);
  };
  def.loss_weight = [](const nn::Batch& batch) { return batch.rows; };
  return def;
}

base::Json resolve(const base::Json& tree) {
  base::Json out = models::resolve_model(encoder_of(tree));
  out["model_type"] = "bert_grades";
  return out;
}

}  // namespace

TRIREME_PLUGIN() { models::families().add("bert_grades", {.make = make, .resolve = resolve, .begins_with = {"bert"}}); }
