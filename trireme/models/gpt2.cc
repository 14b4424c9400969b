// GPT-2 (Radford et al., "Language models are unsupervised multitask learners", 2019) with Hugging Face's names,
// configuration keys and initial values. Weights of linear layers are stored [in, out].
#include <cmath>

#include "trireme/models/blocks/decoder.h"

namespace trireme::models {
namespace {

DecoderConfig read(ConfigReader& get) {
  DecoderConfig c{.heads_key = "n_head", .hidden_key = "n_embd", .vocab_size = 50257, .hidden = 768, .layers = 12, .heads = 12,
                  .orientation = nn::Orientation::in_out, .tied = true, .max_positions = 1024, .query_bias = true,
                  .attention_out_bias = true, .activation = "gelu_new", .mlp_bias = true, .embedding_dropout = 0.1,
                  .attention_dropout = 0.1, .residual_dropout = 0.1};
  c.names = {.model = "transformer", .tokens = "wte", .blocks = "h", .final_norm = "ln_f", .positions = "wpe",
             .query = "attn.c_attn", .key = "attn.c_attn", .value = "attn.c_attn", .attention_out = "attn.c_proj",
             .up = "mlp.c_fc", .down = "mlp.c_proj", .attention_norm = "ln_1", .mlp_norm = "ln_2", .token_classes = "classifier"};
  get("vocab_size", c.vocab_size);
  get("n_positions", c.max_positions);
  get("n_embd", c.hidden);
  get("n_layer", c.layers);
  get("n_head", c.heads);
  std::optional<int64_t> inner;
  get("n_inner", inner);
  c.inner = inner.value_or(4 * c.hidden);
  get("resid_pdrop", c.residual_dropout, 0, 0.999);
  get("embd_pdrop", c.embedding_dropout, 0, 0.999);
  get("attn_pdrop", c.attention_dropout, 0, 0.999);
  get("layer_norm_epsilon", c.norm_eps, 0, 1);
  get("initializer_range", c.init, 0, 10);
  // Outputs onto the residual stream start smaller, as many as there are of them.
  c.residual_init = c.init / std::sqrt(2.0 * static_cast<double>(c.layers));
  get("activation_function", c.activation);
  get("tie_word_embeddings", c.tied);
  bool scaled = true;
  get("scale_attn_weights", scaled);
  get("scale_attn_by_inverse_layer_idx", c.scale_by_layer);
  get.ignore({"n_ctx", "reorder_and_upcast_attn", "summary_activation", "summary_first_dropout", "summary_proj_to_labels",
              "summary_type", "summary_use_proj"});
  // transformers' defaults point at GPT-2's own end token, which a smaller vocabulary lacks.
  for (const char* key : {"bos_token_id", "eos_token_id"})
    if (!get.has(key)) get.note(key, c.vocab_size > 50256 ? base::Json(50256) : base::Json());
  c.kv_heads = c.heads;
  c.head_size = head_size_of(c);
  if (scaled) c.scale = 1 / std::sqrt(static_cast<double>(c.head_size));
  return c;
}

}  // namespace

Family gpt2_family() {
  return decoder_family({.name = "gpt2", .class_name = "GPT2", .answers = true, .causal_class = "GPT2LMHeadModel"}, read);
}

}  // namespace trireme::models
