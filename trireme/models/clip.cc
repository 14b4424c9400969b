// CLIP (Radford et al., 2021): a chain of images, then one of texts, whose last states meet in one
// space. The loss asks of each text which image of its micro-batch it belongs to, and of each image
// which text: a function of a micro-batch of one data rank, of which a step takes the mean over
// rows.
#include <ATen/ATen.h>

#include <cmath>

#include "trireme/base/error.h"
#include "trireme/dist/redistribute.h"
#include "trireme/models/blocks/encoder.h"
#include "trireme/models/blocks/vision.h"
#include "trireme/models/family.h"

namespace trireme::models {
namespace {

using layout::Init;
using layout::Sbp;
using nn::Builder;
using nn::Context;
using nn::State;

struct Tower {
  int64_t hidden_size = 512, intermediate_size = 2048, num_hidden_layers = 12,
          num_attention_heads = 8;
  double layer_norm_eps = 1e-5, attention_dropout = 0, initializer_range = 0.02,
         initializer_factor = 1;
  std::string hidden_act = "quick_gelu";
};
struct ClipConfig {
  Tower text = {},
        vision = {.hidden_size = 768, .intermediate_size = 3072, .num_attention_heads = 12};
  int64_t vocab_size = 49408, max_position_embeddings = 77, eos_token_id = 49407, num_channels = 3,
          projection_dim = 512;
  double logit_scale_init_value = 2.6592, initializer_factor = 1;
  std::pair<int64_t, int64_t> image = {224, 224}, patch = {32, 32};
};

void visit(ConfigReader& get, Tower& t) {
  get("hidden_size", t.hidden_size);
  get("intermediate_size", t.intermediate_size);
  get("num_hidden_layers", t.num_hidden_layers);
  get("num_attention_heads", t.num_attention_heads);
  get("layer_norm_eps", t.layer_norm_eps, 0, 1);
  get("attention_dropout", t.attention_dropout, 0, 0.999);
  get("initializer_range", t.initializer_range, 0, 10);
  get("initializer_factor", t.initializer_factor, 0, 100);
  get("hidden_act", t.hidden_act);
}

void visit_text(ConfigReader& get, ClipConfig& c) {
  visit(get, c.text);
  get("vocab_size", c.vocab_size);
  get("max_position_embeddings", c.max_position_embeddings);
  get("eos_token_id", c.eos_token_id, 0);
}

base::Json part(const base::Json& tree, const char* key) {
  return tree.contains(key) && tree[key].is_object() ? tree[key] : base::Json::object();
}

/// `resolved`: the tree with every key as it came to be.
ClipConfig read(const base::Json& tree, base::Json* resolved = nullptr) {
  ClipConfig c;
  const base::Json text = part(tree, "text_config"), vision = part(tree, "vision_config");
  ConfigReader of_text(text, "clip", "model.text_config"),
      of_vision(vision, "clip", "model.vision_config"), get(tree, "clip");
  visit_text(of_text, c);
  of_text.ignore({"projection_dim"});
  of_text.finish();
  visit(of_vision, c.vision);
  of_vision("num_channels", c.num_channels);
  of_vision.ignore({"projection_dim", "image_size", "patch_size"});
  of_vision.finish();
  c.image = size_of(vision, "image_size", 224), c.patch = size_of(vision, "patch_size", 32);
  get("projection_dim", c.projection_dim);
  get("logit_scale_init_value", c.logit_scale_init_value, -100, 100);
  get("initializer_factor", c.initializer_factor, 0, 100);
  get.ignore({"text_config", "vision_config", "text_config_dict", "vision_config_dict"});
  get.finish();
  if (resolved) {
    *resolved = get.resolved("CLIPModel");
    (*resolved)["text_config"] = text;
    (*resolved)["text_config"].update(of_text.values());
    (*resolved)["vision_config"] = vision;
    (*resolved)["vision_config"].update(of_vision.values());
  }
  for (const Tower& tower : {c.text, c.vision}) {
    check_divides("num_attention_heads", tower.num_attention_heads, "hidden_size",
                  tower.hidden_size);
    nn::find_activation(tower.hidden_act);
  }
  return c;
}

/// x whole on every rank.
at::Tensor whole(const Builder& b, const at::Tensor& x, const Context& context) {
  return b.stream().is_split()
             ? dist::redistribute(x, b.tp(), b.stream(), Sbp::invariant(), context.seq)
             : x;
}

/// Between the towers: the image's first state goes along with the text's stream.
class Turn : public nn::Layer {
 public:
  Turn(const Builder& b, const ClipConfig& c, int64_t positions)
      : builder_(b),
        hidden_(c.text.hidden_size),
        image_hidden_(c.vision.hidden_size),
        positions_(positions),
        norm_(b.whole() / "vision_model" / "post_layernorm", image_hidden_,
              c.vision.layer_norm_eps),
        words_(b / "text_model.embeddings.token_embedding", c.vocab_size, hidden_,
               Init::normal(0.02 * c.text.initializer_factor)),
        places_((b / "text_model.embeddings.position_embedding")
                    .param("weight", {c.max_position_embeddings, hidden_},
                           Init::normal(0.02 * c.text.initializer_factor), b.stream_param())) {}

  State forward(State in, const Context& context) override {
    const layout::Range held = nn::stream_range(builder_, context.seq);
    const at::Tensor image =
        whole(builder_, in.at("hidden"), context.over(positions_)).select(1, 0);
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
  Meeting(const Builder& b, const ClipConfig& c)
      : builder_(b),
        end_(c.eos_token_id),
        norm_(b / "text_model.final_layer_norm", c.text.hidden_size, c.text.layer_norm_eps),
        text_(b.whole() / "text_projection", c.text.hidden_size, c.projection_dim,
              options(c.text.hidden_size)),
        image_(b.whole() / "visual_projection", c.vision.hidden_size, c.projection_dim,
               options(c.vision.hidden_size)),
        scale_(b.param("logit_scale", {}, Init::constant(c.logit_scale_init_value),
                       Sbp::invariant())) {}

  State forward(State in, const Context& context) override {
    const at::Tensor ids = context.batch.tensors.at("input_ids");
    // Old configurations name 2 as the end; there the end is the highest id.
    const at::Tensor last = end_ == 2 ? ids.argmax(1) : ids.eq(end_).to(at::kInt).argmax(1);
    at::Tensor x = whole(builder_, norm_.forward(in.at("hidden"), context), context);
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

BlockSpec block_of(const Tower& t, const Positions& positions, bool causal) {
  const double layers = 2.0 * static_cast<double>(t.num_hidden_layers),
               hidden = static_cast<double>(t.hidden_size);
  const double in = t.initializer_factor / std::sqrt(hidden * layers),
               out = t.initializer_factor / std::sqrt(hidden);
  return {.hidden = t.hidden_size,
          .heads = t.num_attention_heads,
          .inner = t.intermediate_size,
          .self = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj",
                   "layer_norm1"},
          .mlp = {.in = "mlp.fc1", .out = "mlp.fc2", .norm = "layer_norm2"},
          .norm = {.eps = t.layer_norm_eps},
          .norm_first = true,
          .activation = t.hidden_act,
          .attention_dropout = t.attention_dropout,
          .causal = causal,
          .mask = causal ? "attention_mask" : "",
          .deviations = {in, in, in, out, t.initializer_factor / std::sqrt(2 * hidden), in},
          .positions = positions};
}

nn::ModelDef make(const base::Json& tree, int tp) {
  const ClipConfig c = read(tree);
  check_heads(c.text.num_attention_heads, tp, "text_config.num_attention_heads");
  check_heads(c.vision.num_attention_heads, tp, "vision_config.num_attention_heads");
  const PatchSpec patches{.projection = "vision_model.embeddings.patch_embedding",
                          .tokens = {"vision_model.embeddings.class_embedding"},
                          .places = "vision_model.embeddings.position_embedding.weight",
                          .flat = true,
                          .bias = false,
                          .norm = "vision_model.pre_layrnorm",
                          .norm_kind = {.eps = c.vision.layer_norm_eps},
                          .channels = c.num_channels,
                          .height = c.image.first,
                          .width = c.image.second,
                          .patch_height = c.patch.first,
                          .patch_width = c.patch.second,
                          .hidden = c.vision.hidden_size,
                          .deviation = c.vision.initializer_range * c.vision.initializer_factor};
  const int64_t positions = patches.positions();
  nn::ModelDef def;
  def.vocab_size = c.vocab_size;
  def.generates = false;
  def.max_positions = c.max_position_embeddings;
  const BlockSpec image = block_of(c.vision, {.fixed = positions}, false),
                  text = block_of(c.text, {}, true);
  add_rules(image, def.policy);
  def.policy.push_back({"text_model.embeddings.token_embedding", nn::Style::vocab});
  def.trains_on = {{"pixel_values", 3}, {"input_ids"}};
  def.layers.push_back(patch_link(patches));
  for (int64_t i = 0; i < c.vision.num_hidden_layers; ++i)
    def.layers.push_back(block_link(image, fmt::format("vision_model.encoder.layers.{}", i)));
  def.layers.push_back({"turn", false, [c, positions](Builder& b) {
                          return std::make_unique<Turn>(b, c, positions);
                        }});
  for (int64_t i = 0; i < c.text.num_hidden_layers; ++i)
    def.layers.push_back(block_link(text, fmt::format("text_model.encoder.layers.{}", i)));
  def.layers.push_back(
      {"meeting", false, [c](Builder& b) { return std::make_unique<Meeting>(b, c); }});
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

base::Json resolve(const base::Json& tree) {
  base::Json out;
  read(tree, &out);
  return out;
}

}  // namespace

Family clip_family() {
  return {make,
          resolve,
          {.architecture = "CLIPModel",
           .heads = "images and texts",
           .tensor = "divides num_attention_heads of both"}};
}

}  // namespace trireme::models
