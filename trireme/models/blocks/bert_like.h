#pragma once
// What BERT's kin share: keys of the configuration, what stands before the blocks, the block and the chain. A family says
// what is called otherwise.

#include <optional>
#include <string>
#include <vector>

#include "trireme/models/blocks/encoder.h"
#include "trireme/models/family.h"

namespace trireme::models {

struct BertConfig : EncoderKeys {
  BertConfig() { hidden_dropout_prob = attention_probs_dropout_prob = 0.1; }
  int64_t vocab_size = 30522, max_position_embeddings = 512, type_vocab_size = 2, pad_token_id = 0,
          embedding_size = 0;  // 0: hidden_size
  std::optional<double> classifier_dropout = {};
  bool tie_word_embeddings = true;
  // ELECTRA's.
  double summary_last_dropout = 0.1;
  std::string summary_activation = "gelu";

  double head_dropout() const { return classifier_dropout.value_or(hidden_dropout_prob); }
};

/// All keys but embedding_size, classifier_dropout and ELECTRA's.
void visit(ConfigReader& get, BertConfig& c);

EmbeddingSpec bert_embeddings(const BertConfig& c, const std::string& prefix);
/// A dense layer on the first token's state, as BERT's pooler.
RowScores pooled(const std::string& dense, double dropout = 0, const std::string& out = "classifier");
/// `names` filled in: scores by the table of words or, where that is not tied, by the module `decoder`.
VocabScores word_scores(const BertConfig& c, const std::string& prefix, VocabScores names,
                        const std::string& decoder);
/// Masked language models with or without a second task; they come with every head for texts.
std::vector<HeadKind> text_heads(bool pretraining);
/// A row of `trireme models`; `class_name` without the head's.
Support text_support(const std::string& class_name, bool pretraining);

struct BertLike {
  std::string family = {}, class_name = {}, prefix = {};  // prefix: of parameters
  bool pretraining = true;                 // is there a head for it?
  BertConfig usual = {};
  FamilyHeads (*heads)(const BertConfig& c) = nullptr;
  void (*visit)(ConfigReader& get, BertConfig& c) = nullptr;  // keys of its own; null: none
  bool places_skip_padding = false, norms_first = false;
};
Family bert_like_family(const BertLike& like);

}  // namespace trireme::models
