// RoBERTa (Liu et al., 2019): BERT's block; places count tokens that are no padding, and heads have names of their own.
#include "trireme/models/blocks/bert_like.h"

namespace trireme::models {
namespace {

FamilyHeads heads(const BertConfig& c) {
  return {.vocab = word_scores(c, "roberta",
                               {.bias = "lm_head.bias",
                                .dense = "lm_head.dense",
                                .activation = "gelu",
                                .norm = "lm_head.layer_norm"},
                               "lm_head.decoder"),
          .classes = {.dropout_first = c.head_dropout(),
                      .dense = "classifier.dense",
                      .activation = "tanh",
                      .dropout = c.head_dropout(),
                      .out = "classifier.out_proj"},
          .choices = pooled("roberta.pooler.dense", c.hidden_dropout_prob),
          .token_dropout = c.head_dropout()};
}

BertConfig usual() {
  BertConfig c;
  c.vocab_size = 50265, c.pad_token_id = 1;
  return c;
}

}  // namespace

Family roberta_family() {
  return bert_like_family({.family = "roberta",
                           .class_name = "Roberta",
                           .prefix = "roberta",
                           .pretraining = false,
                           .usual = usual(),
                           .heads = heads,
                           .places_skip_padding = true});
}

}  // namespace trireme::models
