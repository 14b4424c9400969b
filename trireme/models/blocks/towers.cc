#include "trireme/models/blocks/towers.h"

#include <ATen/ATen.h>

#include <cmath>

namespace trireme::models {
namespace {

using layout::Init;
using layout::Sbp;
using nn::Builder;
using nn::Context;
using nn::State;

/// Between the towers: the image's first state goes along with the text's stream.
class Turn : public nn::Layer {
 public:
  Turn(const Builder& b, const TowersSpec& spec)
      : builder_(b),
        hidden_(spec.text.hidden),
        image_hidden_(spec.image.hidden),
        positions_(spec.image.positions.fixed),
        norm_(b.whole() / spec.image_norm, image_hidden_, spec.image.norm.eps),
        words_(b / spec.words, spec.vocab, hidden_, Init::normal(spec.deviation)),
        places_((b / spec.places)
                    .param("weight", {spec.max_places, hidden_}, Init::normal(spec.deviation),
                           b.stream_param())) {}

  State forward(State in, const Context& context) override {
    const layout::Range held = nn::stream_range(builder_, context.seq);
    const at::Tensor image =
        whole_stream(builder_, in.at("hidden"), context.over(positions_)).select(1, 0);
    const at::Tensor words = words_.embed(context.batch.tensors.at("input_ids"), context);
    return {{"hidden", words + nn::embedding(at::arange(held.begin, held.end, at::kLong), places_,
                                             0, context)},
            {"image", norm_.forward(image, context)}};
  }

  nn::StateSpec describe(const nn::StateSpec&, const nn::BatchShape& shape) const override {
    const base::DType dtype = builder_.options().dtype;
    return {{"hidden",
             {shape.rows, nn::stream_range(builder_, shape.seq).size(), hidden_},
             dtype,
             true},
            {"image", {shape.rows, image_hidden_}, dtype, true}};
  }

 private:
  Builder builder_;
  int64_t hidden_, image_hidden_, positions_;
  nn::LayerNorm norm_;
  nn::VocabTable words_;
  nn::Param* places_;
};

/// Scores of every text of the micro-batch for every image.
class Meeting : public nn::Layer {
 public:
  Meeting(const Builder& b, const TowersSpec& spec)
      : builder_(b),
        end_(spec.end),
        norm_(b / spec.text_norm, spec.text.hidden, spec.text.norm.eps),
        text_(b.whole() / spec.text_projection, spec.text.hidden, spec.features,
              options(spec.text.hidden)),
        image_(b.whole() / spec.image_projection, spec.image.hidden, spec.features,
               options(spec.image.hidden)),
        scale_(b.param(spec.scale, {}, Init::constant(spec.first_scale), Sbp::invariant())) {}

  State forward(State in, const Context& context) override {
    const at::Tensor ids = context.batch.tensors.at("input_ids");
    // Old configurations name 2 as the end; there the end is the highest id.
    const at::Tensor last = end_ == 2 ? ids.argmax(1) : ids.eq(end_).to(at::kInt).argmax(1);
    at::Tensor x = whole_stream(builder_, norm_.forward(in.at("hidden"), context), context);
    x = x.index({at::arange(x.size(0), last.options()), last});
    const at::Tensor text = unit(text_.forward(x, context)),
                     image = unit(image_.forward(in.at("image"), context));
    return {{"logits_per_text", at::matmul(text, image.t()) * nn::use(scale_, context).exp()},
            {"text_embeds", text},
            {"image_embeds", image}};
  }

 private:
  static nn::Linear::Options options(int64_t hidden) {
    return {.init = Init::normal(1 / std::sqrt(static_cast<double>(hidden))), .bias = false};
  }
  static at::Tensor unit(const at::Tensor& x) { return x / x.square().sum(-1, true).sqrt(); }

  Builder builder_;
  int64_t end_;
  nn::LayerNorm norm_;
  nn::Linear text_, image_;
  nn::Param* scale_;
};

}  // namespace

nn::ModelDef make_towers(const TowersSpec& spec, int tp, const std::string& image_heads,
                         const std::string& text_heads) {
  check_heads(spec.text.heads, tp, text_heads);
  check_heads(spec.image.heads, tp, image_heads);
  nn::ModelDef def;
  def.vocab_size = spec.vocab;
  def.generates = false;
  def.max_positions = spec.max_places;
  add_rules(spec.image, def.policy);
  def.policy.push_back({spec.words, nn::Style::vocab});
  def.trains_on = {{"pixel_values", 3}, {"input_ids"}};
  def.layers.push_back(patch_link(spec.patches));
  for (const std::string& name : spec.image_blocks)
    def.layers.push_back(block_link(spec.image, name));
  def.layers.push_back(
      {"turn", false, [spec](Builder& b) { return std::make_unique<Turn>(b, spec); }});
  for (const std::string& name : spec.text_blocks)
    def.layers.push_back(block_link(spec.text, name));
  def.layers.push_back(
      {"meeting", false, [spec](Builder& b) { return std::make_unique<Meeting>(b, spec); }});
  def.loss = [](const State& out, const nn::Batch& batch, const comm::Comm&) {
    const at::Tensor scores = out.at("logits_per_text").to(at::kDouble),
                     own = at::arange(batch.rows, scores.options().dtype(at::kLong));
    auto side = [&](const at::Tensor& s) {
      return at::cross_entropy_loss(s, own, {}, at::Reduction::Sum);
    };
    return (side(scores) + side(scores.t())) / 2;
  };
  def.loss_weight = [](const nn::Batch& batch) { return batch.rows; };
  return def;
}

}  // namespace trireme::models
