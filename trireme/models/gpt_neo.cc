// GPT-Neo (Black et al., 2021): GPT-2 with every other layer's attention in a window, and scores that are not scaled.
#include "trireme/base/error.h"
#include "trireme/models/blocks/decoder.h"

namespace trireme::models {
namespace {

// [[["global", "local"], 12]]: the words of each entry, so many times.
std::vector<int64_t> read_windows(ConfigReader& get, int64_t layers, int64_t window) {
  base::Json types = base::Json::parse(R"([[["global", "local"], 12]])");
  if (const base::Json* given = get.value_of("attention_types")) types = *given;
  get.note("attention_types", types);
  std::vector<int64_t> windows;
  for (const base::Json& entry : types)
    for (int64_t repeat = 0; repeat < entry.at(1).get<int64_t>(); ++repeat)
      for (const base::Json& word : entry.at(0)) {
        if (word != "global" && word != "local") get.refuse("attention_types", types, "words global and local");
        windows.push_back(word == "local" ? window : 0);
      }
  if (std::ssize(windows) != layers)
    get.refuse("attention_types", types, fmt::format("{} layers in all, as num_layers says", layers));
  return windows;
}

DecoderConfig read(ConfigReader& get) {
  DecoderConfig c{.heads_key = "num_heads", .vocab_size = 50257, .hidden = 2048, .layers = 24, .heads = 16, .tied = true, .max_positions = 2048,
                  .attention_out_bias = true, .activation = "gelu_new", .mlp_bias = true};
  c.names = {.model = "transformer", .tokens = "wte", .blocks = "h", .final_norm = "ln_f", .positions = "wpe",
             .query = "attn.attention.q_proj", .key = "attn.attention.k_proj", .value = "attn.attention.v_proj",
             .attention_out = "attn.attention.out_proj", .up = "mlp.c_fc", .down = "mlp.c_proj",
             .attention_norm = "ln_1", .mlp_norm = "ln_2", .token_classes = "classifier"};
  get("vocab_size", c.vocab_size);
  get("hidden_size", c.hidden);
  get("num_layers", c.layers);
  get("num_heads", c.heads);
  get("max_position_embeddings", c.max_positions);
  get("layer_norm_epsilon", c.norm_eps, 0, 1);
  get("initializer_range", c.init, 0, 10);
  get("activation_function", c.activation);
  get("tie_word_embeddings", c.tied);
  get("embed_dropout", c.embedding_dropout, 0, 0.999);
  get("attention_dropout", c.attention_dropout, 0, 0.999);
  get("resid_dropout", c.residual_dropout, 0, 0.999);
  std::optional<int64_t> inner;
  get("intermediate_size", inner);
  c.inner = inner.value_or(4 * c.hidden);
  int64_t window = 256;
  get("window_size", window);
  c.windows = read_windows(get, c.layers, window);
  get.ignore({"attention_layers", "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type",
              "summary_use_proj"});
  c.kv_heads = c.heads;
  c.head_size = head_size_of(c);
  return c;
}

}  // namespace

Family gpt_neo_family() { return decoder_family({.name = "gpt_neo", .class_name = "GPTNeo", .answers = true}, read); }

}  // namespace trireme::models
