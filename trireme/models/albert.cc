// ALBERT (Lan et al., 2020): narrow embeddings and few sets of weights, each of which several
// blocks share, wherever they lie.
#include "trireme/models/blocks/bert_like.h"

namespace trireme::models {
namespace {

struct AlbertConfig : BertConfig {
  AlbertConfig() {
    vocab_size = 30000, embedding_size = 128, hidden_size = 4096, num_attention_heads = 64;
    intermediate_size = 16384, hidden_act = "gelu_new";
    hidden_dropout_prob = attention_probs_dropout_prob = 0;
  }
  int64_t num_hidden_groups = 1, inner_group_num = 1;
  double classifier_dropout_prob = 0.1;
};

/// `resolved`: the tree with every key as it came to be.
AlbertConfig read(const base::Json& tree, base::Json* resolved = nullptr) {
  AlbertConfig c;
  ConfigReader get(tree, "albert");
  visit(get, c);
  get("embedding_size", c.embedding_size);
  get("num_hidden_groups", c.num_hidden_groups);
  get("inner_group_num", c.inner_group_num);
  get("classifier_dropout_prob", c.classifier_dropout_prob, 0, 0.999);
  get.only("position_embedding_type", "absolute");
  get.ignore({"head", "pooling", "normalize", "net_structure_type", "gap_size",
              "num_memory_blocks", "down_scale_factor"});
  get.finish();
  if (resolved) *resolved = get.resolved();
  check(c);
  return c;
}

HeadKind kind_of(const base::Json& tree) {
  return head_of(tree, "albert", text_heads(true), HeadKind::masked_lm);
}

FamilyHeads heads(const AlbertConfig& c, int64_t labels) {
  const double dropout = c.classifier_dropout_prob;
  RowScores relation = pooled("albert.pooler", dropout, "sop_classifier.classifier");
  relation.labels = labels;
  return {.vocab = word_scores(c, "albert",
                               {.bias = "predictions.bias",
                                .dense = "predictions.dense",
                                .activation = c.hidden_act,
                                .norm = "predictions.LayerNorm"},
                               "predictions.decoder"),
          .relation = relation,
          .classes = pooled("albert.pooler", dropout),
          .choices = pooled("albert.pooler", dropout),
          .token_dropout = dropout};
}

nn::ModelDef make(const base::Json& tree, int tp) {
  const AlbertConfig c = read(tree);
  // No dropout behind the second half of a block.
  EncoderSpec spec{
      .embeddings = bert_embeddings(c, "albert"),
      .block = {.hidden = c.hidden_size,
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
                .deviations = Deviations::all(c.initializer_range)},
      .blocks = {},
      .head = {.kind = kind_of(tree),
               .hidden = c.hidden_size,
               .deviation = c.initializer_range,
               .second_label = "sentence_order_label",
               .problem = tree.value("problem_type", std::string())}};
  spec.embeddings.projection = "albert.encoder.embedding_hidden_mapping_in";
  for (int64_t i = 0; i < c.num_hidden_layers; ++i)
    for (int64_t inner = 0; inner < c.inner_group_num; ++inner)
      spec.blocks.push_back(fmt::format("albert.encoder.albert_layer_groups.{}.albert_layers.{}",
                                        i * c.num_hidden_groups / c.num_hidden_layers, inner));
  add_scores(spec.head, heads(c, labels_of(tree)), labels_of(tree), tree);
  return make_encoder(spec, tp);
}

base::Json resolve(const base::Json& tree) {
  base::Json out;
  read(tree, &out);
  write_head(out, "Albert", kind_of(tree), labels_of(tree));
  return out;
}

}  // namespace

Family albert_family() {
  Support support = text_support("Albert", true);
  support.ties = "blocks; head and tokens";
  return {.make = make, .resolve = resolve, .support = support};
}

}  // namespace trireme::models
