// T5 (Raffel et al., 2020), its version 1.1 and those with gates, and mT5 (Xue et al., 2021): root-mean-square norms, no
// biases, and for each half one table of relative biases that all its blocks share.
#include <cmath>

#include "trireme/models/blocks/encoder_decoder_family.h"

namespace trireme::models {
namespace {

struct T5Config {
  int64_t vocab_size = 32128, d_model = 512, d_kv = 64, d_ff = 2048, num_layers = 6, num_heads = 8, relative_attention_num_buckets = 32,
          relative_attention_max_distance = 128, decoder_start_token_id = 0, eos_token_id = 1;
  std::optional<int64_t> num_decoder_layers = {};
  double dropout_rate = 0.1, classifier_dropout = 0, layer_norm_epsilon = 1e-6, initializer_factor = 1;
  std::string feed_forward_proj = "relu";
  bool tie_word_embeddings = true, scale_decoder_outputs = true;

  bool gated() const { return feed_forward_proj.starts_with("gated-"); }
  std::string activation() const {
    const std::string name = gated() ? feed_forward_proj.substr(6) : feed_forward_proj;
    return gated() && name == "gelu" ? "gelu_new" : name;
  }
  /// Of weights that add up `inputs` numbers.
  double deviation(int64_t inputs) const { return initializer_factor / std::sqrt(static_cast<double>(inputs)); }
};

void visit(ConfigReader& get, T5Config& c) {
  get("vocab_size", c.vocab_size);
  get("d_model", c.d_model);
  get("d_kv", c.d_kv);
  get("d_ff", c.d_ff);
  get("num_layers", c.num_layers);
  get("num_decoder_layers", c.num_decoder_layers);
  get("num_heads", c.num_heads);
  get("relative_attention_num_buckets", c.relative_attention_num_buckets, 4);
  get("relative_attention_max_distance", c.relative_attention_max_distance);
  get("decoder_start_token_id", c.decoder_start_token_id, 0);
  get("eos_token_id", c.eos_token_id, 0);
  get("dropout_rate", c.dropout_rate, 0, 0.999);
  get("classifier_dropout", c.classifier_dropout, 0, 0.999);
  get("layer_norm_epsilon", c.layer_norm_epsilon, 0, 1);
  get("initializer_factor", c.initializer_factor, 0, 100);
  get("feed_forward_proj", c.feed_forward_proj);
  // The first version ties its output to the words and scales what goes in; where nothing is said, both go together.
  get("tie_word_embeddings", c.tie_word_embeddings);
  c.scale_decoder_outputs &= c.tie_word_embeddings;
  get("scale_decoder_outputs", c.scale_decoder_outputs);
  get.ignore({"dense_act_fn", "is_gated_act", "n_positions", "decoder_layers"});
}

BlockSpec half(const T5Config& c, bool decoder) {
  auto attention = [](const std::string& layer, const std::string& name) {
    const std::string a = layer + "." + name + ".";
    return AttentionNames{a + "q", a + "k", a + "v", a + "o", layer + ".layer_norm"};
  };
  const std::string last = decoder ? "layer.2" : "layer.1", dense = last + ".DenseReluDense.";
  const double narrow = c.deviation(c.d_model);
  BlockSpec block{.hidden = c.d_model,
                  .heads = c.num_heads,
                  .inner = c.d_ff,
                  .head_size = c.d_kv,
                  .self = attention("layer.0", "SelfAttention"),
                  .mlp = {.in = dense + (c.gated() ? "wi_1" : "wi"), .out = dense + "wo", .norm = last + ".layer_norm",
                          .gate = c.gated() ? dense + "wi_0" : ""},
                  .norm = {.eps = c.layer_norm_epsilon, .rms = true},
                  .norm_first = true,
                  .bias = false,
                  .activation = c.activation(),
                  .dropout = c.dropout_rate,
                  .attention_dropout = c.dropout_rate,
                  .inner_dropout = c.dropout_rate,
                  .scale = 1,
                  .causal = decoder,
                  .deviations = {.query = narrow / std::sqrt(static_cast<double>(c.d_kv)), .key = narrow, .value = narrow,
                                 .out = c.deviation(c.num_heads * c.d_kv), .mlp_in = narrow, .mlp_out = c.deviation(c.d_ff)}};
  if (decoder) block.cross = attention("layer.1", "EncDecAttention");
  block.relative = {.table = std::string(decoder ? "decoder" : "encoder") + ".block.0.layer.0.SelfAttention.relative_attention_bias",
                    .buckets = c.relative_attention_num_buckets,
                    .max_distance = c.relative_attention_max_distance,
                    .both_ways = !decoder,
                    .deviation = narrow};
  return block;
}

Halves read(ConfigReader& get, const T5Config& usual) {
  T5Config c = usual;
  visit(get, c);
  nn::find_activation(c.activation());
  const EmbeddingSpec words{.words = "shared", .vocab = c.vocab_size, .features = c.d_model, .hidden = c.d_model,
                            .dropout = c.dropout_rate, .deviation = c.initializer_factor};
  return {.chain = {.source = words,
                    .target = words,
                    .encoder = half(c, false),
                    .decoder = half(c, true),
                    .encoder_blocks = numbered("encoder.block", c.num_layers),
                    .decoder_blocks = numbered("decoder.block", c.num_decoder_layers.value_or(c.num_layers)),
                    .encoder_norm = "encoder.final_layer_norm",
                    .norm_dropout = c.dropout_rate,
                    .head = {.hidden = c.d_model,
                             .norm = "decoder.final_layer_norm",
                             .norm_kind = {.eps = c.layer_norm_epsilon, .rms = true},
                             .norm_dropout = c.dropout_rate,
                             .deviation = c.deviation(c.d_model)},
                    .start = c.decoder_start_token_id},
          .scores = {.vocab = {.table = c.tie_word_embeddings ? "shared" : "lm_head", .vocab = c.vocab_size, .features = c.d_model,
                               .scale = c.scale_decoder_outputs ? 1 / std::sqrt(static_cast<double>(c.d_model)) : 1,
                               .deviation = c.initializer_factor},
                     .classes = classes_at_end(c.eos_token_id, c.classifier_dropout),
                     .token_dropout = c.classifier_dropout}};
}

Family t5_like_family(const std::string& name, const std::string& class_name, const T5Config& usual = {}) {
  return encoder_decoder_family(
      {.name = name,
       .class_name = class_name,
       .heads = {HeadKind::sequence_classification, HeadKind::token_classification, HeadKind::question_answering, HeadKind::embedding},
       .of_encoder = {HeadKind::token_classification, HeadKind::embedding},
       .tensor = "divides num_heads",
       .ties = "head and tokens of both halves; biases"},
      [usual](ConfigReader& get, HeadKind) { return read(get, usual); });
}

}  // namespace

Family t5_family() { return t5_like_family("t5", "T5"); }

Family mt5_family() {
  T5Config usual;
  usual.vocab_size = 250112, usual.d_ff = 1024, usual.num_layers = 8, usual.num_heads = 6;
  usual.feed_forward_proj = "gated-gelu", usual.scale_decoder_outputs = false;
  return t5_like_family("mt5", "MT5", usual);
}

}  // namespace trireme::models
