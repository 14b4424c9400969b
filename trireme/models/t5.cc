// T5 (Raffel et al., 2020), its version 1.1 and those with gates: root-mean-square norms, no
// biases, and for each half one table of relative biases that all its blocks share.
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/models/blocks/encoder.h"
#include "trireme/models/family.h"

namespace trireme::models {
namespace {

struct T5Config {
  int64_t vocab_size = 32128, d_model = 512, d_kv = 64, d_ff = 2048, num_layers = 6, num_heads = 8,
          relative_attention_num_buckets = 32, relative_attention_max_distance = 128,
          decoder_start_token_id = 0, eos_token_id = 1;
  std::optional<int64_t> num_decoder_layers = {};
  double dropout_rate = 0.1, classifier_dropout = 0, layer_norm_epsilon = 1e-6,
         initializer_factor = 1;
  std::string feed_forward_proj = "relu";
  bool tie_word_embeddings = true, scale_decoder_outputs = true;

  bool gated() const { return feed_forward_proj.starts_with("gated-"); }
  std::string activation() const {
    const std::string name = gated() ? feed_forward_proj.substr(6) : feed_forward_proj;
    return gated() && name == "gelu" ? "gelu_new" : name;
  }
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
  get("tie_word_embeddings", c.tie_word_embeddings);
  get("scale_decoder_outputs", c.scale_decoder_outputs);
}

/// `resolved`: the tree with every key as it came to be.
T5Config read(const base::Json& tree, base::Json* resolved = nullptr) {
  T5Config c;
  // The first version ties its output to the words and scales what goes in; where nothing is said,
  // both go together.
  if (tree.contains("tie_word_embeddings") && tree["tie_word_embeddings"] == false)
    c.scale_decoder_outputs = false;
  ConfigReader get(tree, "t5");
  visit(get, c);
  get.ignore({"head", "pooling", "normalize", "dense_act_fn", "is_gated_act", "n_positions", "decoder_layers"});
  get.finish();
  if (resolved) *resolved = get.resolved();
  nn::find_activation(c.activation());
  return c;
}

HeadKind kind_of(base::Json tree) {
  // Both halves without a head, and what a model with one was called once.
  for (const char* whole : {"T5Model", "T5WithLMHeadModel"})
    if (tree.value("architectures", base::Json()) == base::Json::array({whole})) tree.erase("architectures");
  return head_of(
      tree, "t5",
      {HeadKind::seq2seq, HeadKind::sequence_classification, HeadKind::token_classification,
       HeadKind::question_answering, HeadKind::embedding},
      HeadKind::seq2seq);
}

/// Scores of classes look at what the decoder makes of the source, moved on by one place, or at the
/// encoder's states.
bool encoder_alone(HeadKind kind) {
  return kind == HeadKind::token_classification || kind == HeadKind::embedding;
}

HeadSpec head(const base::Json& tree, const T5Config& c, HeadKind kind) {
  const double factor = c.initializer_factor,
               narrow = factor / std::sqrt(static_cast<double>(c.d_model));
  HeadSpec h{.kind = kind,
             .hidden = c.d_model,
             .norm = encoder_alone(kind) ? "encoder.final_layer_norm" : "decoder.final_layer_norm",
             .norm_kind = {.eps = c.layer_norm_epsilon, .rms = true},
             .norm_dropout = c.dropout_rate,
             .deviation = narrow,
             .problem = tree.value("problem_type", std::string())};
  add_scores(h,
             {.vocab = {.table = c.tie_word_embeddings ? "shared" : "lm_head",
                        .vocab = c.vocab_size,
                        .features = c.d_model,
                        .scale = c.scale_decoder_outputs
                                     ? 1 / std::sqrt(static_cast<double>(c.d_model))
                                     : 1,
                        .deviation = factor},
              .classes = {.pool = RowScores::Pool::last_end,
                          .end = c.eos_token_id,
                          .dropout_first = c.classifier_dropout,
                          .dense = "classification_head.dense",
                          .activation = "tanh",
                          .dropout = c.classifier_dropout,
                          .out = "classification_head.out_proj"},
              .token_dropout = c.classifier_dropout},
             labels_of(tree), tree);
  return h;
}

nn::ModelDef make(const base::Json& tree, int tp) {
  const T5Config c = read(tree);
  const HeadKind kind = kind_of(tree);
  const bool two_texts = kind == HeadKind::seq2seq;
  const double factor = c.initializer_factor,
               narrow = factor / std::sqrt(static_cast<double>(c.d_model));
  const HeadSpec scores = head(tree, c, kind);
  auto attention = [](const std::string& layer, const std::string& name) {
    const std::string a = layer + "." + name + ".";
    return AttentionNames{a + "q", a + "k", a + "v", a + "o", layer + ".layer_norm"};
  };
  auto half = [&](const std::string& name, bool decoder) {
    const std::string last = decoder ? "layer.2" : "layer.1", d = last + ".DenseReluDense.";
    BlockSpec block{
        .hidden = c.d_model,
        .heads = c.num_heads,
        .inner = c.d_ff,
        .head_size = c.d_kv,
        .self = attention("layer.0", "SelfAttention"),
        .mlp = {.in = d + (c.gated() ? "wi_1" : "wi"),
                .out = d + "wo",
                .norm = last + ".layer_norm",
                .gate = c.gated() ? d + "wi_0" : ""},
        .norm = scores.norm_kind,
        .norm_first = true,
        .bias = false,
        .activation = c.activation(),
        .dropout = c.dropout_rate,
        .attention_dropout = c.dropout_rate,
        .inner_dropout = c.dropout_rate,
        .scale = 1,
        .causal = decoder,
        .deviations = {.query = narrow / std::sqrt(static_cast<double>(c.d_kv)),
                       .key = narrow,
                       .value = narrow,
                       .out = factor / std::sqrt(static_cast<double>(c.num_heads * c.d_kv)),
                       .mlp_in = narrow,
                       .mlp_out = factor / std::sqrt(static_cast<double>(c.d_ff))},
        .positions = {.source = two_texts && !decoder},
        .memory = {.source = two_texts}};
    if (decoder) block.cross = attention("layer.1", "EncDecAttention");
    block.relative = {.table = name + ".block.0.layer.0.SelfAttention.relative_attention_bias",
                      .buckets = c.relative_attention_num_buckets,
                      .max_distance = c.relative_attention_max_distance,
                      .both_ways = !decoder,
                      .deviation = narrow};
    if (decoder) block.mask = "decoder_attention_mask";
    return block;
  };
  auto embeddings = [&](const std::string& ids, bool source) {
    return EmbeddingSpec{.words = "shared",
                         .vocab = c.vocab_size,
                         .features = c.d_model,
                         .hidden = c.d_model,
                         .dropout = c.dropout_rate,
                         .deviation = factor,
                         .ids = ids,
                         .positions = {.source = two_texts && source}};
  };
  const std::vector<std::string> blocks = numbered("encoder.block", c.num_layers);
  if (encoder_alone(kind))
    return make_encoder({.embeddings = embeddings("input_ids", true),
                         .block = half("encoder", false),
                         .blocks = blocks,
                         .head = scores},
                        tp);
  return make_encoder_decoder(
      {.source = embeddings("input_ids", true),
       .target = embeddings(two_texts ? "decoder_input_ids" : "input_ids", false),
       .encoder = half("encoder", false),
       .decoder = half("decoder", true),
       .encoder_blocks = blocks,
       .decoder_blocks = numbered("decoder.block", c.num_decoder_layers.value_or(c.num_layers)),
       .encoder_norm = "encoder.final_layer_norm",
       .head = scores,
       .start = c.decoder_start_token_id,
       .one_text = !two_texts},
      tp);
}

base::Json resolve(const base::Json& tree) {
  base::Json out;
  read(tree, &out);
  out["is_encoder_decoder"] = true;
  const HeadKind kind = kind_of(tree);
  write_head(out, kind == HeadKind::embedding ? "T5Encoder" : "T5", kind, labels_of(tree));
  return out;
}

}  // namespace

Family t5_family() {
  return {make,
          resolve,
          {.architecture = "T5ForConditionalGeneration",
           .heads = "sequence to sequence, classes of rows and tokens, answers, embedding",
           .tensor = "divides num_heads",
           .ties = "head and tokens of both halves; biases"}};
}

}  // namespace trireme::models
