#include "trireme/models/blocks/llama_like.h"

#include <cmath>

#include "trireme/models/blocks/rope.h"

namespace trireme::models {

LlamaLike::LlamaLike(ConfigReader& get, DecoderConfig given, const Defaults& defaults) : config(std::move(given)) {
  DecoderConfig& c = config;
  c.rms = true;
  c.names.gate = "mlp.gate_proj";
  get("vocab_size", c.vocab_size);
  get("hidden_size", c.hidden);
  get("num_hidden_layers", c.layers);
  get("num_attention_heads", c.heads);
  get("intermediate_size", c.inner);
  get("rms_norm_eps", c.norm_eps, 0, 1);
  get("initializer_range", c.init, 0, 10);
  get(defaults.activation_key, c.activation);
  get("tie_word_embeddings", c.tied);
  get("attention_dropout", c.attention_dropout, 0, 0.999);
  // Absent it is the family's; null, the number of heads.
  const base::Json* kv_heads = get.value_of("num_key_value_heads");
  if (kv_heads) get("num_key_value_heads", c.kv_heads);
  if (c.kv_heads == 0 || (!kv_heads && get.has("num_key_value_heads"))) c.kv_heads = c.heads;
  get.note("num_key_value_heads", c.kv_heads);
  c.head_size = defaults.head_size;
  if (get.value_of("head_dim")) get("head_dim", c.head_size);
  if (c.head_size == 0) c.head_size = head_size_of(c);
  get.note("head_dim", c.head_size);
  get.ignore({"max_sequence_length"});
  read_padding(get, c);
  c.scale = 1 / std::sqrt(static_cast<double>(c.head_size));
  int64_t positions = defaults.positions;
  get("max_position_embeddings", positions);
  const RopeDefaults rope{.head_size = c.head_size, .max_positions = positions, .theta = defaults.theta};
  c.rotary = defaults.rope == Rope::one ? std::vector{read_rope(get, rope)} : read_ropes_by_layer_type(get, rope);
}

void LlamaLike::read_window(ConfigReader& get, std::optional<int64_t> window) {
  if (get.has("sliding_window") && !get.value_of("sliding_window")) window.reset();
  get("sliding_window", window);
  if (window) config.windows.assign(config.layers, *window);
}

void LlamaLike::read_layer_types(ConfigReader& get, int64_t window, const std::function<bool(int64_t)>& slides) {
  const base::Json* types = get.value_of("layer_types");
  if (types && (!types->is_array() || std::ssize(*types) != config.layers))
    get.refuse("layer_types", *types, fmt::format("a list of {} words, one a layer", config.layers));
  base::Json out = base::Json::array();
  for (int64_t i = 0; i < config.layers; ++i) {
    bool sliding = slides(i);
    if (types) {
      const base::Json& type = (*types)[i];
      if (type != "sliding_attention" && type != "full_attention")
        get.refuse("layer_types", *types, "the words sliding_attention and full_attention");
      sliding = type == "sliding_attention";
    }
    config.windows.push_back(sliding ? window : 0);
    out.push_back(sliding ? "sliding_attention" : "full_attention");
  }
  get.note("layer_types", out);
}

void read_balance(ConfigReader& get, DecoderConfig& config) {
  bool taken = false;
  double factor = 0.001;
  get("output_router_logits", taken);
  get("router_aux_loss_coef", factor, 0, 1e6);
  config.experts.balance = taken ? factor : 0;
}

}  // namespace trireme::models
