// BERT (Devlin et al., 2019), that of Megatron-LM (Shoeybi et al., 2019), whose norms come first,
// RoBERTa (Liu et al., 2019) and ELECTRA (Clark et al., 2020): one
// configuration and one block; they differ in names, in how places count and in their heads.
#include "trireme/base/error.h"
#include "trireme/models/blocks/encoder.h"
#include "trireme/models/family.h"

namespace trireme::models {
namespace {

enum class Kind : uint8_t { bert, roberta, electra, megatron };

struct BertConfig {
  int64_t vocab_size = 30522, hidden_size = 768, num_hidden_layers = 12, num_attention_heads = 12,
          intermediate_size = 3072, max_position_embeddings = 512, type_vocab_size = 2,
          pad_token_id = 0, embedding_size = 0;
  double hidden_dropout_prob = 0.1, attention_probs_dropout_prob = 0.1, initializer_range = 0.02,
         layer_norm_eps = 1e-12, summary_last_dropout = 0.1;
  std::optional<double> classifier_dropout = {};
  std::string hidden_act = "gelu", summary_activation = "gelu";
  bool tie_word_embeddings = true;

  double head_dropout() const { return classifier_dropout.value_or(hidden_dropout_prob); }
};

std::vector<HeadKind> heads(Kind kind) {
  std::vector<HeadKind> has = {HeadKind::masked_lm,
                               HeadKind::pretraining,
                               HeadKind::sequence_classification,
                               HeadKind::token_classification,
                               HeadKind::multiple_choice,
                               HeadKind::question_answering,
                               HeadKind::embedding};
  if (kind == Kind::roberta) std::erase(has, HeadKind::pretraining);
  return has;
}

/// Of parameters' names.
std::string prefix(Kind kind) {
  return kind == Kind::roberta ? "roberta" : kind == Kind::electra ? "electra" : "bert";
}
std::string family_name(Kind kind) {
  return kind == Kind::megatron ? "megatron-bert" : prefix(kind);
}
/// Whose heads are BERT's.
bool plain(Kind kind) {
  return kind == Kind::bert || kind == Kind::megatron;
}

void visit(ConfigReader& get, BertConfig& c, Kind kind) {
  get("vocab_size", c.vocab_size);
  get("hidden_size", c.hidden_size);
  get("num_hidden_layers", c.num_hidden_layers);
  get("num_attention_heads", c.num_attention_heads);
  get("intermediate_size", c.intermediate_size);
  get("max_position_embeddings", c.max_position_embeddings);
  get("type_vocab_size", c.type_vocab_size);
  get("pad_token_id", c.pad_token_id, 0);
  get("hidden_dropout_prob", c.hidden_dropout_prob, 0, 0.999);
  get("attention_probs_dropout_prob", c.attention_probs_dropout_prob, 0, 0.999);
  get("classifier_dropout", c.classifier_dropout, 0, 0.999);
  get("initializer_range", c.initializer_range, 0, 10);
  get("layer_norm_eps", c.layer_norm_eps, 0, 1);
  get("hidden_act", c.hidden_act);
  get("tie_word_embeddings", c.tie_word_embeddings);
  get.only("is_decoder", false);
  get.only("add_cross_attention", false);
  get.only("position_embedding_type", "absolute");
  if (kind != Kind::electra) return;
  get("embedding_size", c.embedding_size);
  get("summary_activation", c.summary_activation);
  get.only("summary_type", "first");
  get.only("summary_use_proj", true);
  get("summary_last_dropout", c.summary_last_dropout, 0, 0.999);
}

/// `resolved`: the tree with every key as it came to be.
BertConfig read(const base::Json& tree, Kind kind, base::Json* resolved = nullptr) {
  BertConfig c;
  if (kind == Kind::roberta) c.vocab_size = 50265, c.pad_token_id = 1;
  if (kind == Kind::electra)
    c.hidden_size = 256, c.num_attention_heads = 4, c.intermediate_size = 1024,
    c.embedding_size = 128;
  if (kind == Kind::megatron)
    c.vocab_size = 29056, c.hidden_size = 1024, c.num_hidden_layers = 24,
    c.num_attention_heads = 16, c.intermediate_size = 4096;
  ConfigReader get(tree, family_name(kind));
  visit(get, c, kind);
  get.ignore({"head", "num_labels", "pooling", "normalize"});
  get.finish();
  if (resolved) *resolved = get.resolved();
  if (c.embedding_size == 0) c.embedding_size = c.hidden_size;
  check_divides("num_attention_heads", c.num_attention_heads, "hidden_size", c.hidden_size);
  nn::find_activation(c.hidden_act);
  return c;
}

HeadSpec head(const base::Json& tree, const BertConfig& c, Kind kind) {
  const std::string base = prefix(kind), words = base + ".embeddings.word_embeddings";
  HeadSpec h{.kind = head_of(tree, family_name(kind), heads(kind), HeadKind::masked_lm),
             .hidden = c.hidden_size,
             .norm = kind == Kind::megatron ? "bert.encoder.ln" : "",
             .norm_kind = {.eps = c.layer_norm_eps},
             .deviation = c.initializer_range,
             .problem = tree.value("problem_type", std::string())};
  const int64_t labels = labels_of(tree);
  if (kind == Kind::electra && h.kind == HeadKind::pretraining) {
    h.tokens = {.dense = "discriminator_predictions.dense",
                .activation = c.hidden_act,
                .out = "discriminator_predictions.dense_prediction",
                .labels = 1};
    return h;
  }
  const RowScores pooled{.dense = base + ".pooler.dense", .activation = "tanh"};
  switch (h.kind) {
    case HeadKind::pretraining:
      h.rows = pooled;
      h.rows->out = "cls.seq_relationship", h.rows->name = "relationship";
      [[fallthrough]];
    case HeadKind::masked_lm: {
      VocabScores v{.table = words,
                    .vocab = c.vocab_size,
                    .features = c.embedding_size,
                    .bias = "cls.predictions.bias",
                    .dense = "cls.predictions.transform.dense",
                    .activation = c.hidden_act,
                    .norm = "cls.predictions.transform.LayerNorm",
                    .norm_kind = {.eps = c.layer_norm_eps},
                    .deviation = c.initializer_range};
      std::string decoder = "cls.predictions.decoder";
      if (kind == Kind::roberta)
        v.bias = "lm_head.bias", v.dense = "lm_head.dense", v.activation = "gelu",
        v.norm = "lm_head.layer_norm", decoder = "lm_head.decoder";
      if (kind == Kind::electra)
        v.bias = "generator_lm_head.bias", v.dense = "generator_predictions.dense",
        v.activation = "gelu", v.norm = "generator_predictions.LayerNorm",
        decoder = "generator_lm_head";
      if (!c.tie_word_embeddings) v.table = decoder, v.bias = decoder + ".bias";
      h.vocab = v;
      break;
    }
    case HeadKind::sequence_classification:
      h.rows = pooled;
      if (!plain(kind))
        h.rows = {.dropout_first = c.head_dropout(),
                  .dense = "classifier.dense",
                  .activation = kind == Kind::roberta ? "tanh" : "gelu"};
      h.rows->dropout = c.head_dropout();
      h.rows->out = plain(kind) ? "classifier" : "classifier.out_proj";
      h.rows->labels = labels;
      break;
    case HeadKind::multiple_choice:
      h.rows = pooled;
      if (kind == Kind::electra)
        h.rows = {.dense = "sequence_summary.summary", .activation = c.summary_activation};
      h.rows->dropout = plain(kind)             ? c.head_dropout()
                        : kind == Kind::roberta ? c.hidden_dropout_prob
                                                : c.summary_last_dropout;
      h.rows->out = "classifier", h.rows->labels = 1;
      break;
    case HeadKind::token_classification:
      h.tokens = {.dropout = c.head_dropout(), .out = "classifier", .labels = labels};
      break;
    case HeadKind::question_answering:
      h.tokens = {.out = "qa_outputs", .labels = 2};
      break;
    default:
      h.vector = vector_of(tree);
  }
  return h;
}

template <Kind kind>
nn::ModelDef make(const base::Json& tree, int tp) {
  const BertConfig c = read(tree, kind);
  const std::string base = prefix(kind), e = base + ".embeddings.";
  EncoderSpec spec;
  spec.embeddings = {
      .words = e + "word_embeddings",
      .places = e + "position_embeddings",
      .types = e + "token_type_embeddings",
      .norm = e + "LayerNorm",
      .projection = c.embedding_size == c.hidden_size ? "" : base + ".embeddings_project",
      .vocab = c.vocab_size,
      .max_places = c.max_position_embeddings,
      .kinds = c.type_vocab_size,
      .features = c.embedding_size,
      .hidden = c.hidden_size,
      .padding = c.pad_token_id,
      .places_skip_padding = kind == Kind::roberta,
      .norm_kind = {.eps = c.layer_norm_eps},
      .dropout = c.hidden_dropout_prob,
      .deviation = c.initializer_range};
  spec.block = {
      .hidden = c.hidden_size,
      .heads = c.num_attention_heads,
      .inner = c.intermediate_size,
      .self = {"attention.self.query", "attention.self.key", "attention.self.value",
               "attention.output.dense", "attention.output.LayerNorm"},
      .mlp = {.in = "intermediate.dense", .out = "output.dense", .norm = "output.LayerNorm"},
      .norm = {.eps = c.layer_norm_eps},
      .activation = c.hidden_act,
      .dropout = c.hidden_dropout_prob,
      .attention_dropout = c.attention_probs_dropout_prob,
      .deviations = Deviations::all(c.initializer_range)};
  if (kind == Kind::megatron) {
    spec.embeddings.norm = "";
    spec.block.self.norm = "attention.ln", spec.block.mlp.norm = "ln", spec.block.norm_first = true;
  }
  for (int64_t i = 0; i < c.num_hidden_layers; ++i)
    spec.blocks.push_back(fmt::format("{}.encoder.layer.{}", base, i));
  spec.head = head(tree, c, kind);
  return make_encoder(spec, tp);
}

template <Kind kind>
base::Json resolve(const base::Json& tree) {
  base::Json out;
  const BertConfig c = read(tree, kind, &out);
  write_head(out,
             kind == Kind::bert       ? "Bert"
             : kind == Kind::megatron ? "MegatronBert"
             : kind == Kind::roberta  ? "Roberta"
                                      : "Electra",
             head(tree, c, kind).kind, labels_of(tree));
  return out;
}

}  // namespace

Family bert_family() {
  return {
      make<Kind::bert>,
      resolve<Kind::bert>,
      {.architecture = "BertForMaskedLM",
       .heads = "masked LM, pretraining, classes of rows and tokens, choices, answers, embedding",
       .tensor = "divides num_attention_heads",
       .ties = "head and tokens"}};
}
Family roberta_family() {
  return {make<Kind::roberta>,
          resolve<Kind::roberta>,
          {.architecture = "RobertaForMaskedLM",
           .heads = "masked LM, classes of rows and tokens, choices, answers, embedding",
           .tensor = "divides num_attention_heads",
           .ties = "head and tokens"}};
}
Family megatron_bert_family() {
  return {
      make<Kind::megatron>,
      resolve<Kind::megatron>,
      {.architecture = "MegatronBertForMaskedLM",
       .heads = "masked LM, pretraining, classes of rows and tokens, choices, answers, embedding",
       .tensor = "divides num_attention_heads",
       .ties = "head and tokens"}};
}
Family electra_family() {
  return {
      make<Kind::electra>,
      resolve<Kind::electra>,
      {.architecture = "ElectraForMaskedLM",
       .heads = "masked LM, pretraining, classes of rows and tokens, choices, answers, embedding",
       .tensor = "divides num_attention_heads",
       .ties = "head and tokens"}};
}

}  // namespace trireme::models
