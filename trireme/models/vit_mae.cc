// Masked autoencoders (He et al., 2022): an encoder sees a part of an image's patches, a smaller
// decoder draws the others. Names are those of Hugging Face's ViTMAEForPreTraining; a ViT takes the
// encoder over (`pretrained` with `family: vit`). The loss is a sum over patches that were left
// out, of each the mean over its pixels.
#include <ATen/ATen.h>

#include "trireme/base/error.h"
#include "trireme/models/blocks/vit_like.h"

namespace trireme::models {
namespace {

using layout::Init;
using layout::Sbp;
using nn::Batch;
using nn::Builder;
using nn::Context;
using nn::State;

struct MaeConfig {
  VitConfig encoder = {};
  int64_t decoder_num_attention_heads = 16, decoder_hidden_size = 512,
          decoder_num_hidden_layers = 8, decoder_intermediate_size = 2048;
  double mask_ratio = 0.75;
  bool norm_pix_loss = false;

  VitConfig decoder() const {
    VitConfig c = encoder;
    c.hidden_size = decoder_hidden_size, c.num_attention_heads = decoder_num_attention_heads;
    c.intermediate_size = decoder_intermediate_size;
    return c;
  }
  /// The whole image, or (`masked`) what the encoder sees.
  PatchSpec patches(bool masked) const {
    PatchSpec spec = vit_patches(encoder, "vit");
    spec.fixed_places = true;
    if (masked) spec.left_out = mask_ratio;
    return spec;
  }
};

/// `resolved`: the tree with every key as it came to be.
MaeConfig read(const base::Json& tree, base::Json* resolved) {
  MaeConfig c;
  ConfigReader get(tree, "vit_mae");
  visit(get, c.encoder);
  get("decoder_num_attention_heads", c.decoder_num_attention_heads);
  get("decoder_hidden_size", c.decoder_hidden_size);
  get("decoder_num_hidden_layers", c.decoder_num_hidden_layers);
  get("decoder_intermediate_size", c.decoder_intermediate_size);
  get("mask_ratio", c.mask_ratio, 0.001, 0.999);
  get("norm_pix_loss", c.norm_pix_loss);
  get.only("head", "pretraining");
  get.finish();
  c.encoder.sizes = read_sizes(tree);
  if (resolved) {
    *resolved = get.resolved("ViTMAEForPreTraining");
    resolved->erase("head");
    write_sizes(*resolved);
  }
  check(c.encoder);
  check_divides("decoder_num_attention_heads", c.decoder_num_attention_heads, "decoder_hidden_size",
                c.decoder_hidden_size);
  check_divides(c.encoder.sizes);
  for (const auto& [key, size] : {std::pair{"hidden_size", c.encoder.hidden_size},
                                  {"decoder_hidden_size", c.decoder_hidden_size}})
    if (size % 4 != 0)
      throw base::ConfigError(fmt::format(
          "model.{} {}: places are sines and cosines of columns and rows; give a multiple of 4",
          key, size));
  const PatchSpec seen = c.patches(true);
  if (seen.kept() < 1 || seen.kept() == seen.patches())
    throw base::ConfigError(fmt::format(
        "model.mask_ratio {} leaves the encoder {} of {} patches; expected some, but not all",
        c.mask_ratio, seen.kept(), seen.patches()));
  return c;
}

/// Between the halves: what the encoder saw goes back to its places, the others get a token of
/// their own.
class Turn : public nn::Layer {
 public:
  Turn(const Builder& b, const MaeConfig& c)
      : builder_(b),
        seen_(c.patches(true)),
        hidden_(c.decoder_hidden_size),
        norm_(b.whole() / "vit.layernorm", c.encoder.hidden_size, c.encoder.layer_norm_eps),
        embed_(b.whole() / "decoder.decoder_embed", c.encoder.hidden_size, hidden_,
               {.init = Init::normal(c.encoder.initializer_range)}),
        token_(b.param("decoder.mask_token", {1, 1, hidden_},
                       Init::normal(c.encoder.initializer_range), Sbp::invariant())),
        places_(b.buffer("decoder.decoder_pos_embed", {1, seen_.positions(), hidden_},
                         Init::waves(seen_.width / seen_.patch_width, hidden_))) {}

  State forward(State in, const Context& given) override {
    const Context context = given.over(seen_.seen());
    at::Tensor x = whole_stream(builder_, in.at("hidden"), context);
    x = embed_.forward(norm_.forward(x, context), context);
    const at::Tensor kept = kept_patches(seen_, context).unsqueeze(-1).expand({-1, -1, hidden_});
    const at::Tensor blank = nn::use(token_, context).expand({x.size(0), seen_.patches(), hidden_});
    x = at::cat({x.narrow(1, 0, 1), blank.scatter(1, kept, x.narrow(1, 1, seen_.kept()))}, 1) +
        places_->data;
    return {{"hidden", own_stream(builder_, x, given.over(seen_.positions()))}};
  }

  nn::StateSpec describe(const nn::StateSpec&, const nn::BatchShape& shape) const override {
    const int64_t held = nn::stream_range(builder_, seen_.positions()).size();
    return {{"hidden", {shape.rows, held, hidden_}, builder_.options().dtype, true}};
  }

 private:
  Builder builder_;
  PatchSpec seen_;
  int64_t hidden_;
  nn::LayerNorm norm_;
  nn::Linear embed_;
  nn::Param* token_;
  nn::Param* places_;
};

/// The pixels of every patch ("logits"), and which the encoder did not see ("mask").
class Drawing : public nn::Layer {
 public:
  Drawing(const Builder& b, const MaeConfig& c)
      : builder_(b),
        seen_(c.patches(true)),
        pixels_(seen_.patch_height * seen_.patch_width * seen_.channels),
        norm_(b / "decoder.decoder_norm", c.decoder_hidden_size, c.encoder.layer_norm_eps),
        out_(b / "decoder.decoder_pred", c.decoder_hidden_size, pixels_,
             {.init = Init::normal(c.encoder.initializer_range)}) {}

  State forward(State in, const Context& given) override {
    const Context context = given.over(seen_.positions());
    const at::Tensor x = whole_stream(
        builder_, out_.forward(norm_.forward(in.at("hidden"), context), context), context);
    const at::Tensor mask = at::ones({x.size(0), seen_.patches()}, at::kLong);
    return {{"logits", x.narrow(1, 1, seen_.patches())},
            {"mask", mask.scatter(1, kept_patches(seen_, context), int64_t{0})}};
  }

  nn::StateSpec describe(const nn::StateSpec&, const nn::BatchShape& shape) const override {
    return {{"logits", {shape.rows, seen_.patches(), pixels_}, builder_.options().dtype, true},
            {"mask", {shape.rows, seen_.patches()}, base::DType::i64, false}};
  }

 private:
  Builder builder_;
  PatchSpec seen_;
  int64_t pixels_;
  nn::LayerNorm norm_;
  nn::Linear out_;
};

void add_loss(const MaeConfig& c, nn::ModelDef& def) {
  const PatchSpec seen = c.patches(true);
  def.loss = [seen, normal = c.norm_pix_loss](const State& out, const Batch& batch,
                                              const comm::Comm&) {
    at::Tensor wanted = pixels_of_patches(seen, batch.tensors.at("pixel_values").to(at::kDouble));
    if (normal)
      wanted = (wanted - wanted.mean(-1, true)) / (wanted.var({-1}, true, true) + 1e-6).sqrt();
    const at::Tensor errors = (out.at("logits").to(at::kDouble) - wanted).square().mean(-1);
    return (errors * out.at("mask")).sum();
  };
  def.loss_weight = [left = seen.patches() - seen.kept()](const Batch& batch) {
    return batch.rows * left;
  };
}

nn::ModelDef make(const MaeConfig& c, int tp) {
  nn::ModelDef def;
  def.generates = false;
  def.trains_on = {{"pixel_values", 3}};
  check_heads(c.encoder.num_attention_heads, tp, "num_attention_heads");
  check_heads(c.decoder_num_attention_heads, tp, "decoder_num_attention_heads");
  const PatchSpec seen = c.patches(true);
  const BlockSpec encoder = vit_block(c.encoder, {.fixed = seen.seen()}),
                  decoder = vit_block(c.decoder(), {.fixed = seen.positions()});
  add_rules(encoder, def.policy);
  def.layers.push_back(patch_link(seen));
  for (const std::string& name : vit_blocks(c.encoder, "vit"))
    def.layers.push_back(block_link(encoder, name));
  def.layers.push_back({"turn", false, [c](Builder& b) { return std::make_unique<Turn>(b, c); }});
  for (const std::string& name : numbered("decoder.decoder_layers", c.decoder_num_hidden_layers))
    def.layers.push_back(block_link(decoder, name));
  def.layers.push_back(
      {"drawing", false, [c](Builder& b) { return std::make_unique<Drawing>(b, c); }, false, {"pixel_values"}});
  add_loss(c, def);
  return def;
}

}  // namespace

Family vit_mae_family() {
  return family_of<MaeConfig>(
      read, make,
      {.architecture = "ViTMAEForPreTraining",
       .task = "pixels that were left out",
       .tensor = "divides num_attention_heads and decoder_num_attention_heads",
       .tokenizer = ""});
}

}  // namespace trireme::models
