// ALBERT (Lan et al., 2020): narrow embeddings and few sets of weights, each of which several
// blocks share, wherever they lie.
#include "trireme/base/error.h"
#include "trireme/models/blocks/encoder.h"
#include "trireme/models/family.h"

namespace trireme::models {
namespace {

struct AlbertConfig {
  int64_t vocab_size = 30000, embedding_size = 128, hidden_size = 4096, num_hidden_layers = 12,
          num_hidden_groups = 1, num_attention_heads = 64, intermediate_size = 16384,
          inner_group_num = 1, max_position_embeddings = 512, type_vocab_size = 2, pad_token_id = 0;
  double hidden_dropout_prob = 0, attention_probs_dropout_prob = 0, classifier_dropout_prob = 0.1,
         initializer_range = 0.02, layer_norm_eps = 1e-12;
  std::string hidden_act = "gelu_new";
  bool tie_word_embeddings = true;
};

void visit(ConfigReader& get, AlbertConfig& c) {
  get("vocab_size", c.vocab_size);
  get("embedding_size", c.embedding_size);
  get("hidden_size", c.hidden_size);
  get("num_hidden_layers", c.num_hidden_layers);
  get("num_hidden_groups", c.num_hidden_groups);
  get("num_attention_heads", c.num_attention_heads);
  get("intermediate_size", c.intermediate_size);
  get("inner_group_num", c.inner_group_num);
  get("max_position_embeddings", c.max_position_embeddings);
  get("type_vocab_size", c.type_vocab_size);
  get("pad_token_id", c.pad_token_id, 0);
  get("hidden_dropout_prob", c.hidden_dropout_prob, 0, 0.999);
  get("attention_probs_dropout_prob", c.attention_probs_dropout_prob, 0, 0.999);
  get("classifier_dropout_prob", c.classifier_dropout_prob, 0, 0.999);
  get("initializer_range", c.initializer_range, 0, 10);
  get("layer_norm_eps", c.layer_norm_eps, 0, 1);
  get("hidden_act", c.hidden_act);
  get("tie_word_embeddings", c.tie_word_embeddings);
}

/// `resolved`: the tree with every key as it came to be.
AlbertConfig read(const base::Json& tree, base::Json* resolved = nullptr) {
  AlbertConfig c;
  ConfigReader get(tree, "albert");
  visit(get, c);
  get.only("position_embedding_type", "absolute");
  get.ignore({"head", "num_labels", "pooling", "normalize", "net_structure_type", "gap_size",
              "num_memory_blocks", "down_scale_factor"});
  get.finish();
  if (resolved) *resolved = get.resolved();
  check_divides("num_attention_heads", c.num_attention_heads, "hidden_size", c.hidden_size);
  nn::find_activation(c.hidden_act);
  return c;
}

HeadSpec head(const base::Json& tree, const AlbertConfig& c) {
  HeadSpec h{.kind = head_of(
                 tree, "albert",
                 {HeadKind::masked_lm, HeadKind::pretraining, HeadKind::sequence_classification,
                  HeadKind::token_classification, HeadKind::multiple_choice,
                  HeadKind::question_answering, HeadKind::embedding},
                 HeadKind::masked_lm),
             .hidden = c.hidden_size,
             .deviation = c.initializer_range,
             .second_label = "sentence_order_label",
             .problem = tree.value("problem_type", std::string())};
  const RowScores pooled{.dense = "albert.pooler",
                         .activation = "tanh",
                         .dropout = c.classifier_dropout_prob,
                         .out = "classifier",
                         .labels = labels_of(tree)};
  switch (h.kind) {
    case HeadKind::pretraining:
      h.rows = pooled;
      h.rows->out = "sop_classifier.classifier", h.rows->name = "relationship";
      [[fallthrough]];
    case HeadKind::masked_lm:
      h.vocab = {.table = "albert.embeddings.word_embeddings",
                 .vocab = c.vocab_size,
                 .features = c.embedding_size,
                 .bias = "predictions.bias",
                 .dense = "predictions.dense",
                 .activation = c.hidden_act,
                 .norm = "predictions.LayerNorm",
                 .norm_kind = {.eps = c.layer_norm_eps},
                 .deviation = c.initializer_range};
      if (!c.tie_word_embeddings)
        h.vocab->table = "predictions.decoder", h.vocab->bias = "predictions.decoder.bias";
      break;
    case HeadKind::sequence_classification:
    case HeadKind::multiple_choice:
      h.rows = pooled;
      if (h.kind == HeadKind::multiple_choice) h.rows->labels = 1;
      break;
    case HeadKind::token_classification:
      h.tokens = {
          .dropout = c.classifier_dropout_prob, .out = "classifier", .labels = labels_of(tree)};
      break;
    case HeadKind::question_answering:
      h.tokens = {.out = "qa_outputs", .labels = 2};
      break;
    default:
      h.vector = vector_of(tree);
  }
  return h;
}

nn::ModelDef make(const base::Json& tree, int tp) {
  const AlbertConfig c = read(tree);
  const std::string e = "albert.embeddings.";
  EncoderSpec spec;
  spec.embeddings = {.words = e + "word_embeddings",
                     .places = e + "position_embeddings",
                     .types = e + "token_type_embeddings",
                     .norm = e + "LayerNorm",
                     .projection = "albert.encoder.embedding_hidden_mapping_in",
                     .vocab = c.vocab_size,
                     .max_places = c.max_position_embeddings,
                     .kinds = c.type_vocab_size,
                     .features = c.embedding_size,
                     .hidden = c.hidden_size,
                     .padding = c.pad_token_id,
                     .norm_kind = {.eps = c.layer_norm_eps},
                     .dropout = c.hidden_dropout_prob,
                     .deviation = c.initializer_range};
  // No dropout behind the second half of a block.
  spec.block = {.hidden = c.hidden_size,
                .heads = c.num_attention_heads,
                .inner = c.intermediate_size,
                .self = {"attention.query", "attention.key", "attention.value", "attention.dense",
                         "attention.LayerNorm"},
                .mlp = {.in = "ffn", .out = "ffn_output", .norm = "full_layer_layer_norm"},
                .norm = {.eps = c.layer_norm_eps},
                .activation = c.hidden_act,
                .dropout = c.hidden_dropout_prob,
                .mlp_dropout = false,
                .attention_dropout = c.attention_probs_dropout_prob,
                .deviations = Deviations::all(c.initializer_range)};
  for (int64_t i = 0; i < c.num_hidden_layers; ++i)
    for (int64_t inner = 0; inner < c.inner_group_num; ++inner)
      spec.blocks.push_back(fmt::format("albert.encoder.albert_layer_groups.{}.albert_layers.{}",
                                        i * c.num_hidden_groups / c.num_hidden_layers, inner));
  spec.head = head(tree, c);
  return make_encoder(spec, tp);
}

base::Json resolve(const base::Json& tree) {
  base::Json out;
  const AlbertConfig c = read(tree, &out);
  write_head(out, "Albert", head(tree, c).kind, labels_of(tree));
  return out;
}

}  // namespace

Family albert_family() {
  return {
      make,
      resolve,
      {.architecture = "AlbertForMaskedLM",
       .heads = "masked LM, pretraining, classes of rows and tokens, choices, answers, embedding",
       .tensor = "divides num_attention_heads",
       .ties = "blocks; head and tokens"}};
}

}  // namespace trireme::models
