// BERT (Devlin et al., 2019) and that of Megatron-LM (Shoeybi et al., 2019), whose norms come first.
#include "trireme/models/blocks/bert_like.h"

namespace trireme::models {
namespace {

FamilyHeads heads(const BertConfig& c) {
  const std::string pooler = "bert.pooler.dense", words = "cls.predictions.";
  return {.vocab = word_scores(c, "bert",
                               {.bias = words + "bias",
                                .dense = words + "transform.dense",
                                .activation = c.hidden_act,
                                .norm = words + "transform.LayerNorm"},
                               words + "decoder"),
          .relation = pooled(pooler, 0, "cls.seq_relationship"),
          .classes = pooled(pooler, c.head_dropout()),
          .choices = pooled(pooler, c.head_dropout()),
          .token_dropout = c.head_dropout()};
}

BertConfig megatron_usual() {
  BertConfig c;
  c.vocab_size = 29056, c.hidden_size = 1024, c.num_hidden_layers = 24, c.num_attention_heads = 16;
  c.intermediate_size = 4096;
  return c;
}

}  // namespace

Family bert_family() {
  return bert_like_family(
      {.family = "bert", .class_name = "Bert", .prefix = "bert", .heads = heads});
}

Family megatron_bert_family() {
  return bert_like_family({.family = "megatron-bert",
                           .class_name = "MegatronBert",
                           .prefix = "bert",
                           .usual = megatron_usual(),
                           .heads = heads,
                           .norms_first = true});
}

}  // namespace trireme::models
