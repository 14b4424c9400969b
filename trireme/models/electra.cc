// ELECTRA (Clark et al., 2020): BERT's block behind narrow embeddings; its pretraining asks of each token whether it was
// replaced.
#include "trireme/models/blocks/bert_like.h"

namespace trireme::models {
namespace {

void visit_own(ConfigReader& get, BertConfig& c) {
  get("embedding_size", c.embedding_size);
  get("summary_activation", c.summary_activation);
  get("summary_last_dropout", c.summary_last_dropout, 0, 0.999);
  get.only("summary_type", "first");
  get.only("summary_use_proj", true);
}

FamilyHeads heads(const BertConfig& c) {
  return {.vocab = word_scores(c, "electra",
                               {.bias = "generator_lm_head.bias",
                                .dense = "generator_predictions.dense",
                                .activation = "gelu",
                                .norm = "generator_predictions.LayerNorm"},
                               "generator_lm_head"),
          .classes = {.dropout_first = c.head_dropout(),
                      .dense = "classifier.dense",
                      .activation = "gelu",
                      .dropout = c.head_dropout(),
                      .out = "classifier.out_proj"},
          .choices = {.dense = "sequence_summary.summary",
                      .activation = c.summary_activation,
                      .dropout = c.summary_last_dropout,
                      .out = "classifier"},
          .token_dropout = c.head_dropout(),
          .pretraining = TokenScores{.dense = "discriminator_predictions.dense",
                                     .activation = c.hidden_act,
                                     .out = "discriminator_predictions.dense_prediction",
                                     .labels = 1}};
}

BertConfig usual() {
  BertConfig c;
  c.hidden_size = 256, c.num_attention_heads = 4, c.intermediate_size = 1024;
  c.embedding_size = 128;
  return c;
}

}  // namespace

Family electra_family() {
  return bert_like_family({.family = "electra",
                           .class_name = "Electra",
                           .prefix = "electra",
                           .usual = usual(),
                           .heads = heads,
                           .visit = visit_own});
}

}  // namespace trireme::models
