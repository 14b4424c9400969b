// CLIP (Radford et al., 2021): a chain of images, then one of texts, whose last states meet in one
// space. Names are those of Hugging Face's files.
#include <cmath>

#include "trireme/models/blocks/towers.h"
#include "trireme/models/family.h"

namespace trireme::models {
namespace {

struct Tower : EncoderKeys {
  Tower() { layer_norm_eps = 1e-5, hidden_act = "quick_gelu"; }
  double attention_dropout = 0, initializer_factor = 1;
};
struct ClipConfig {
  ClipConfig() { text.hidden_size = 512, text.intermediate_size = 2048, text.num_attention_heads = 8; }
  Tower text = {}, vision = {};
  int64_t vocab_size = 49408, max_position_embeddings = 77, eos_token_id = 49407, num_channels = 3,
          projection_dim = 512;
  double logit_scale_init_value = 2.6592, initializer_factor = 1;
  ImageSizes sizes = {};
};

void visit(ConfigReader& get, Tower& t) {
  visit(get, static_cast<EncoderKeys&>(t));
  get("attention_dropout", t.attention_dropout, 0, 0.999);
  get("initializer_factor", t.initializer_factor, 0, 100);
  get.only("dropout", 0.0);
  get.ignore({"projection_dim"});  // the whole model's is read
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
ClipConfig read(const base::Json& tree, base::Json* resolved) {
  ClipConfig c;
  const base::Json text = part(tree, "text_config"), vision = part(tree, "vision_config");
  ConfigReader of_text(text, "clip", "model.text_config"),
      of_vision(vision, "clip", "model.vision_config"), get(tree, "clip");
  visit_text(of_text, c);
  of_text.finish();
  visit(of_vision, c.vision);
  of_vision("num_channels", c.num_channels);
  of_vision.ignore({"image_size", "patch_size"});
  of_vision.finish();
  c.sizes = read_sizes(vision, {.patch = {32, 32}});
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
  check(c.text), check(c.vision);
  return c;
}

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

nn::ModelDef make(const ClipConfig& c, int tp) {
  const std::string image = "vision_model.", text = "text_model.";
  const PatchSpec patches{.projection = image + "embeddings.patch_embedding",
                          .tokens = {image + "embeddings.class_embedding"},
                          .places = image + "embeddings.position_embedding.weight",
                          .flat = true,
                          .bias = false,
                          .norm = image + "pre_layrnorm",
                          .norm_kind = {.eps = c.vision.layer_norm_eps},
                          .channels = c.num_channels,
                          .height = c.sizes.image.first,
                          .width = c.sizes.image.second,
                          .patch_height = c.sizes.patch.first,
                          .patch_width = c.sizes.patch.second,
                          .hidden = c.vision.hidden_size,
                          .deviation = c.vision.initializer_range * c.vision.initializer_factor};
  return make_towers(
      {.patches = patches,
       .image = block_of(c.vision, {.fixed = patches.positions()}, false),
       .text = block_of(c.text, {}, true),
       .image_blocks = numbered(image + "encoder.layers", c.vision.num_hidden_layers),
       .text_blocks = numbered(text + "encoder.layers", c.text.num_hidden_layers),
       .image_norm = image + "post_layernorm",
       .text_norm = text + "final_layer_norm",
       .words = text + "embeddings.token_embedding",
       .places = text + "embeddings.position_embedding",
       .vocab = c.vocab_size,
       .max_places = c.max_position_embeddings,
       .deviation = 0.02 * c.text.initializer_factor,
       .image_projection = "visual_projection",
       .text_projection = "text_projection",
       .features = c.projection_dim,
       .scale = "logit_scale",
       .first_scale = c.logit_scale_init_value,
       .end = c.eos_token_id},
      tp, "vision_config.num_attention_heads", "text_config.num_attention_heads");
}

}  // namespace

Family clip_family() {
  return family_of<ClipConfig>(read, make,
                               {.architecture = "CLIPModel",
                                .task = "images and texts",
                                .tensor = "divides num_attention_heads of both"});
}

}  // namespace trireme::models
