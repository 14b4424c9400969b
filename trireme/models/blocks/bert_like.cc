#include "trireme/models/blocks/bert_like.h"

namespace trireme::models {
namespace {

/// `resolved`: the tree with every key as it came to be.
BertConfig read(const BertLike& like, const base::Json& tree, base::Json* resolved = nullptr) {
  BertConfig c = like.usual;
  ConfigReader get(tree, like.family);
  visit(get, c);
  get("classifier_dropout", c.classifier_dropout, 0, 0.999);
  get.only("is_decoder", false);
  get.only("position_embedding_type", "absolute");
  if (like.visit) like.visit(get, c);
  get.ignore({"head", "pooling", "normalize"});
  // Of a pooler that the first BERT's code had besides.
  get.ignore({"directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head",
              "pooler_type"});
  get.finish();
  if (resolved) *resolved = get.resolved();
  if (c.embedding_size == 0) c.embedding_size = c.hidden_size;
  check(c);
  return c;
}

HeadKind kind_of(const BertLike& like, const base::Json& tree) {
  return head_of(tree, like.family, text_heads(like.pretraining), HeadKind::masked_lm);
}

nn::ModelDef make(const BertLike& like, const base::Json& tree, int tp) {
  const BertConfig c = read(like, tree);
  EncoderSpec spec{
      .embeddings = bert_embeddings(c, like.prefix),
      .block = {.hidden = c.hidden_size,
                .heads = c.num_attention_heads,
                .inner = c.intermediate_size,
                .self = {"attention.self.query", "attention.self.key", "attention.self.value",
                         "attention.output.dense", "attention.output.LayerNorm"},
                .mlp = {.in = "intermediate.dense", .out = "output.dense", .norm = "output.LayerNorm"},
                .norm = {.eps = c.layer_norm_eps},
                .activation = c.hidden_act,
                .dropout = c.hidden_dropout_prob,
                .attention_dropout = c.attention_probs_dropout_prob,
                .deviations = Deviations::all(c.initializer_range)},
      .blocks = numbered(like.prefix + ".encoder.layer", c.num_hidden_layers),
      .head = {.kind = kind_of(like, tree),
               .hidden = c.hidden_size,
               .norm_kind = {.eps = c.layer_norm_eps},
               .deviation = c.initializer_range,
               .problem = tree.value("problem_type", std::string())}};
  if (c.embedding_size != c.hidden_size)
    spec.embeddings.projection = like.prefix + ".embeddings_project";
  spec.embeddings.places_skip_padding = like.places_skip_padding;
  if (like.norms_first) {
    spec.embeddings.norm = "";
    spec.block.self.norm = "attention.ln", spec.block.mlp.norm = "ln", spec.block.norm_first = true;
    spec.head.norm = like.prefix + ".encoder.ln";
  }
  add_scores(spec.head, like.heads(c), labels_of(tree), tree);
  return make_encoder(spec, tp);
}

base::Json resolve(const BertLike& like, const base::Json& tree) {
  base::Json out;
  read(like, tree, &out);
  write_head(out, like.class_name, kind_of(like, tree), labels_of(tree));
  return out;
}

}  // namespace

void visit(ConfigReader& get, BertConfig& c) {
  visit(get, static_cast<EncoderKeys&>(c));
  visit_dropouts(get, c);
  get("vocab_size", c.vocab_size);
  get("max_position_embeddings", c.max_position_embeddings);
  get("type_vocab_size", c.type_vocab_size);
  get("pad_token_id", c.pad_token_id, 0);
  get("tie_word_embeddings", c.tie_word_embeddings);
}

EmbeddingSpec bert_embeddings(const BertConfig& c, const std::string& prefix) {
  const std::string e = prefix + ".embeddings.";
  return {.words = e + "word_embeddings",
          .places = e + "position_embeddings",
          .types = e + "token_type_embeddings",
          .norm = e + "LayerNorm",
          .vocab = c.vocab_size,
          .max_places = c.max_position_embeddings,
          .kinds = c.type_vocab_size,
          .features = c.embedding_size,
          .hidden = c.hidden_size,
          .padding = c.pad_token_id,
          .norm_kind = {.eps = c.layer_norm_eps},
          .dropout = c.hidden_dropout_prob,
          .deviation = c.initializer_range};
}

RowScores pooled(const std::string& dense, double dropout, const std::string& out) {
  return {.dense = dense, .activation = "tanh", .dropout = dropout, .out = out};
}

VocabScores word_scores(const BertConfig& c, const std::string& prefix, VocabScores names,
                        const std::string& decoder) {
  names.table = prefix + ".embeddings.word_embeddings";
  if (!c.tie_word_embeddings) names.table = decoder, names.bias = decoder + ".bias";
  names.vocab = c.vocab_size;
  names.features = c.embedding_size;
  names.norm_kind = {.eps = c.layer_norm_eps};
  names.deviation = c.initializer_range;
  return names;
}

std::vector<HeadKind> text_heads(bool pretraining) {
  std::vector<HeadKind> kinds = {HeadKind::masked_lm, HeadKind::sequence_classification,
                                 HeadKind::token_classification, HeadKind::multiple_choice,
                                 HeadKind::question_answering, HeadKind::embedding};
  if (pretraining) kinds.insert(kinds.begin() + 1, HeadKind::pretraining);
  return kinds;
}

Support text_support(const std::string& class_name, bool pretraining) {
  return {.architecture = class_name + "ForMaskedLM",
          .heads = text_heads(pretraining),
          .tensor = "divides num_attention_heads",
          .ties = "head and tokens"};
}

Family bert_like_family(const BertLike& like) {
  return {.make = [like](const base::Json& tree, int tp) { return make(like, tree, tp); },
          .resolve = [like](const base::Json& tree) { return resolve(like, tree); },
          .support = text_support(like.class_name, like.pretraining)};
}

}  // namespace trireme::models
