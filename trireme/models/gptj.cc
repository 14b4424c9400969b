// GPT-J (Wang and Komatsuzaki, 2021): rotary positions on part of each head, attention and MLP side by side.
#include <cmath>

#include "trireme/models/blocks/decoder.h"

namespace trireme::models {
namespace {

DecoderConfig read(ConfigReader& get) {
  DecoderConfig c{.heads_key = "n_head", .hidden_key = "n_embd", .vocab_size = 50400, .hidden = 4096, .layers = 28, .heads = 16, .max_positions = 2048, .head_bias = true,
                  .activation = "gelu_new", .mlp_bias = true, .parallel = true};
  c.names = {.model = "transformer", .tokens = "wte", .blocks = "h", .final_norm = "ln_f",
             .query = "attn.q_proj", .key = "attn.k_proj", .value = "attn.v_proj", .attention_out = "attn.out_proj",
             .up = "mlp.fc_in", .down = "mlp.fc_out", .attention_norm = "ln_1", .mlp_norm = ""};
  get("vocab_size", c.vocab_size);
  get("n_embd", c.hidden);
  get("n_layer", c.layers);
  get("n_head", c.heads);
  get("n_positions", c.max_positions);
  get("layer_norm_epsilon", c.norm_eps, 0, 1);
  get("initializer_range", c.init, 0, 10);
  get("activation_function", c.activation);
  get("tie_word_embeddings", c.tied);
  get("embd_pdrop", c.embedding_dropout, 0, 0.999);
  get("attn_pdrop", c.attention_dropout, 0, 0.999);
  get("resid_pdrop", c.residual_dropout, 0, 0.999);
  std::optional<int64_t> inner;
  get("n_inner", inner);
  c.inner = inner.value_or(4 * c.hidden);
  int64_t rotary = 64;
  get("rotary_dim", rotary, 2);
  get.ignore({"rotary", "scale_attn_weights", "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type",
              "summary_use_proj"});
  c.kv_heads = c.heads;
  c.head_size = head_size_of(c);
  c.scale = 1 / std::sqrt(static_cast<double>(c.head_size));
  if (rotary > c.head_size) get.refuse("rotary_dim", rotary, fmt::format("at most the {} features of a head", c.head_size));
  c.rotary = {{.size = rotary, .interleaved = true}};
  return c;
}

}  // namespace

Family gptj_family() { return decoder_family({.name = "gptj", .class_name = "GPTJ", .token_classes = false, .answers = true}, read); }

}  // namespace trireme::models
