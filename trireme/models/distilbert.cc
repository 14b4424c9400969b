// DistilBERT (Sanh et al., 2019): BERT's block under names of its own, without kinds of tokens and
// without a pooler.
#include "trireme/models/blocks/bert_like.h"

namespace trireme::models {
namespace {

constexpr double kEps = 1e-12;

struct DistilBertConfig {
  int64_t vocab_size = 30522, max_position_embeddings = 512, n_layers = 6, n_heads = 12, dim = 768,
          hidden_dim = 3072, pad_token_id = 0;
  double dropout = 0.1, attention_dropout = 0.1, qa_dropout = 0.1, seq_classif_dropout = 0.2,
         initializer_range = 0.02;
  std::string activation = "gelu";
  bool tie_word_embeddings = true, sinusoidal_pos_embds = false;
};

void visit(ConfigReader& get, DistilBertConfig& c) {
  get("vocab_size", c.vocab_size);
  get("max_position_embeddings", c.max_position_embeddings);
  get("n_layers", c.n_layers);
  get("n_heads", c.n_heads);
  get("dim", c.dim);
  get("hidden_dim", c.hidden_dim);
  get("pad_token_id", c.pad_token_id, 0);
  get("dropout", c.dropout, 0, 0.999);
  get("attention_dropout", c.attention_dropout, 0, 0.999);
  get("qa_dropout", c.qa_dropout, 0, 0.999);
  get("seq_classif_dropout", c.seq_classif_dropout, 0, 0.999);
  get("initializer_range", c.initializer_range, 0, 10);
  get("activation", c.activation);
  get("tie_word_embeddings", c.tie_word_embeddings);
  get("sinusoidal_pos_embds",
      c.sinusoidal_pos_embds);  // says how places begin; files hold them either way
}

/// `resolved`: the tree with every key as it came to be.
DistilBertConfig read(const base::Json& tree, base::Json* resolved = nullptr) {
  DistilBertConfig c;
  ConfigReader get(tree, "distilbert");
  visit(get, c);
  get.ignore({"head", "pooling", "normalize", "tie_weights_"});
  get.finish();
  if (resolved) *resolved = get.resolved();
  check_divides("n_heads", c.n_heads, "dim", c.dim);
  nn::find_activation(c.activation);
  return c;
}

HeadKind kind_of(const base::Json& tree) {
  return head_of(tree, "distilbert", text_heads(false), HeadKind::masked_lm);
}

FamilyHeads heads(const DistilBertConfig& c) {
  const RowScores rows{.dense = "pre_classifier",
                       .activation = "relu",
                       .dropout = c.seq_classif_dropout,
                       .out = "classifier"};
  return {.vocab = {.table = c.tie_word_embeddings ? "distilbert.embeddings.word_embeddings"
                                                   : "vocab_projector",
                    .vocab = c.vocab_size,
                    .features = c.dim,
                    .bias = "vocab_projector.bias",
                    .dense = "vocab_transform",
                    .activation = c.activation,
                    .norm = "vocab_layer_norm",
                    .norm_kind = {.eps = kEps},
                    .deviation = c.initializer_range},
          .classes = rows,
          .choices = rows,
          .token_dropout = c.dropout,
          .answer_dropout = c.qa_dropout};
}

nn::ModelDef make(const base::Json& tree, int tp) {
  const DistilBertConfig c = read(tree);
  const std::string e = "distilbert.embeddings.";
  EncoderSpec spec;
  spec.embeddings = {.words = e + "word_embeddings",
                     .places = e + "position_embeddings",
                     .norm = e + "LayerNorm",
                     .vocab = c.vocab_size,
                     .max_places = c.max_position_embeddings,
                     .features = c.dim,
                     .hidden = c.dim,
                     .padding = c.pad_token_id,
                     .norm_kind = {.eps = kEps},
                     .dropout = c.dropout,
                     .deviation = c.initializer_range};
  // No dropout behind the attention.
  spec.block = {.hidden = c.dim,
                .heads = c.n_heads,
                .inner = c.hidden_dim,
                .self = {"attention.q_lin", "attention.k_lin", "attention.v_lin",
                         "attention.out_lin", "sa_layer_norm"},
                .mlp = {.in = "ffn.lin1", .out = "ffn.lin2", .norm = "output_layer_norm"},
                .norm = {.eps = kEps},
                .activation = c.activation,
                .dropout = c.dropout,
                .attention_out_dropout = false,
                .attention_dropout = c.attention_dropout,
                .deviations = Deviations::all(c.initializer_range)};
  spec.blocks = numbered("distilbert.transformer.layer", c.n_layers);
  spec.head = {.kind = kind_of(tree),
               .hidden = c.dim,
               .deviation = c.initializer_range,
               .problem = tree.value("problem_type", std::string())};
  add_scores(spec.head, heads(c), labels_of(tree), tree);
  return make_encoder(spec, tp);
}

base::Json resolve(const base::Json& tree) {
  base::Json out;
  read(tree, &out);
  write_head(out, "DistilBert", kind_of(tree), labels_of(tree));
  return out;
}

}  // namespace

Family distilbert_family() {
  Support support = text_support("DistilBert", false);
  support.tensor = "divides n_heads";
  return {.make = make, .resolve = resolve, .support = support};
}

}  // namespace trireme::models
