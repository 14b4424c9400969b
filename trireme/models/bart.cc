// BART (Lewis et al., 2020): BERT's block in both halves, the decoder's with attention over the
// encoder's output.
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/models/blocks/encoder.h"
#include "trireme/models/family.h"

namespace trireme::models {
namespace {

constexpr int64_t kLabels = 3;
constexpr int64_t kFirstPlace = 2;  // the table of places begins with two rows that nothing uses

struct BartConfig {
  int64_t vocab_size = 50265, max_position_embeddings = 1024, d_model = 1024, encoder_layers = 12,
          encoder_ffn_dim = 4096, encoder_attention_heads = 16, decoder_layers = 12,
          decoder_ffn_dim = 4096, decoder_attention_heads = 16, pad_token_id = 1,
          decoder_start_token_id = 2, eos_token_id = 2;
  double dropout = 0.1, attention_dropout = 0, activation_dropout = 0, classifier_dropout = 0,
         init_std = 0.02, encoder_layerdrop = 0, decoder_layerdrop = 0;
  std::string activation_function = "gelu";
  bool scale_embedding = false, tie_word_embeddings = true;
};

void visit(ConfigReader& get, BartConfig& c) {
  get("vocab_size", c.vocab_size);
  get("max_position_embeddings", c.max_position_embeddings);
  get("d_model", c.d_model);
  get("encoder_layers", c.encoder_layers);
  get("encoder_ffn_dim", c.encoder_ffn_dim);
  get("encoder_attention_heads", c.encoder_attention_heads);
  get("decoder_layers", c.decoder_layers);
  get("decoder_ffn_dim", c.decoder_ffn_dim);
  get("decoder_attention_heads", c.decoder_attention_heads);
  get("pad_token_id", c.pad_token_id, 0);
  get("decoder_start_token_id", c.decoder_start_token_id, 0);
  get("eos_token_id", c.eos_token_id, 0);
  get("dropout", c.dropout, 0, 0.999);
  get("attention_dropout", c.attention_dropout, 0, 0.999);
  get("activation_dropout", c.activation_dropout, 0, 0.999);
  get("classifier_dropout", c.classifier_dropout, 0, 0.999);
  get("init_std", c.init_std, 0, 10);
  get("encoder_layerdrop", c.encoder_layerdrop, 0, 1);
  get("decoder_layerdrop", c.decoder_layerdrop, 0, 1);
  get("activation_function", c.activation_function);
  get("scale_embedding", c.scale_embedding);
  get("tie_word_embeddings", c.tie_word_embeddings);
}

/// `resolved`: the tree with every key as it came to be.
BartConfig read(const base::Json& tree, base::Json* resolved = nullptr) {
  BartConfig c;
  ConfigReader get(tree, "bart");
  visit(get, c);
  get.ignore({"head", "classif_dropout", "num_hidden_layers", "extra_pos_embeddings", "save_step", "replacing_rate", "force_bos_token_to_be_generated",
              "student_encoder_layers", "student_decoder_layers"});
  // What its first code could do besides, and that of its kin does.
  get.only("add_bias_logits", false);
  get.only("add_final_layer_norm", false);
  get.only("normalize_before", false);
  get.only("normalize_embedding", true);
  get.only("static_position_embeddings", false);
  get.finish();
  if (resolved) *resolved = get.resolved();
  if (c.encoder_layerdrop > 0 || c.decoder_layerdrop > 0)
    throw base::ConfigError(
        "model.encoder_layerdrop and decoder_layerdrop are not supported; set both to 0");
  check_divides("encoder_attention_heads", c.encoder_attention_heads, "d_model", c.d_model);
  check_divides("decoder_attention_heads", c.decoder_attention_heads, "d_model", c.d_model);
  nn::find_activation(c.activation_function);
  return c;
}

HeadKind kind_of(const base::Json& tree) {
  return head_of(tree, "bart",
                 {HeadKind::seq2seq, HeadKind::sequence_classification,
                  HeadKind::question_answering, HeadKind::causal_lm},
                 HeadKind::seq2seq);
}

/// The table of words, which the decoder alone has under a name of its own.
std::string words(HeadKind kind) {
  return kind == HeadKind::causal_lm ? "model.decoder.embed_tokens" : "model.shared";
}

HeadSpec head(const base::Json& tree, const BartConfig& c, HeadKind kind) {
  HeadSpec h{.kind = kind,
             .hidden = c.d_model,
             .deviation = c.init_std,
             .problem = tree.value("problem_type", std::string())};
  FamilyHeads heads{.vocab = {.table = c.tie_word_embeddings ? words(kind) : "lm_head",
                            .vocab = c.vocab_size,
                            .features = c.d_model,
                            .deviation = c.init_std},
                  .classes = {.pool = RowScores::Pool::last_end,
                              .end = c.eos_token_id,
                              .dropout_first = c.classifier_dropout,
                              .dense = "classification_head.dense",
                              .activation = "tanh",
                              .dropout = c.classifier_dropout,
                              .out = "classification_head.out_proj"}};
  if (kind == HeadKind::seq2seq)
    heads.vocab.bias = "final_logits_bias", heads.vocab.fixed_bias = true;
  add_scores(h, heads, labels_of(tree, kLabels), tree);
  return h;
}

nn::ModelDef make(const base::Json& tree, int tp) {
  const BartConfig c = read(tree);
  const HeadKind kind = kind_of(tree);
  const bool two_texts = kind == HeadKind::seq2seq, alone = kind == HeadKind::causal_lm;
  auto half = [&](bool decoder) {
    BlockSpec block{.hidden = c.d_model,
                    .heads = decoder ? c.decoder_attention_heads : c.encoder_attention_heads,
                    .inner = decoder ? c.decoder_ffn_dim : c.encoder_ffn_dim,
                    .self = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                             "self_attn.out_proj", "self_attn_layer_norm"},
                    .mlp = {.in = "fc1", .out = "fc2", .norm = "final_layer_norm"},
                    .activation = c.activation_function,
                    .dropout = c.dropout,
                    .attention_dropout = c.attention_dropout,
                    .inner_dropout = c.activation_dropout,
                    .causal = decoder,
                    .deviations = Deviations::all(c.init_std),
                    .positions = {.source = two_texts && !decoder},
                    .memory = {.source = two_texts}};
    if (decoder && !alone)
      block.cross = {"encoder_attn.q_proj", "encoder_attn.k_proj", "encoder_attn.v_proj",
                     "encoder_attn.out_proj", "encoder_attn_layer_norm"};
    if (decoder && !alone) block.mask = "decoder_attention_mask";
    return block;
  };
  auto embeddings = [&](const std::string& name, bool source) {
    const std::string base = "model." + name;
    return EmbeddingSpec{.words = words(kind),
                         .places = base + ".embed_positions",
                         .norm = base + ".layernorm_embedding",
                         .vocab = c.vocab_size,
                         .max_places = c.max_position_embeddings + kFirstPlace,
                         .features = c.d_model,
                         .hidden = c.d_model,
                         .padding = c.pad_token_id,
                         .first_place = kFirstPlace,
                         .scale = c.scale_embedding ? std::sqrt(static_cast<double>(c.d_model)) : 1,
                         .dropout = c.dropout,
                         .deviation = c.init_std,
                         .ids = two_texts && !source ? "decoder_input_ids" : "input_ids",
                         .positions = {.source = two_texts && source}};
  };
  const std::vector<std::string> blocks = numbered("model.decoder.layers", c.decoder_layers);
  if (alone)
    return make_encoder({.embeddings = embeddings("decoder", false),
                         .block = half(true),
                         .blocks = blocks,
                         .head = head(tree, c, kind)},
                        tp);
  return make_encoder_decoder(
      {.source = embeddings("encoder", true),
       .target = embeddings("decoder", false),
       .encoder = half(false),
       .decoder = half(true),
       .encoder_blocks = numbered("model.encoder.layers", c.encoder_layers),
       .decoder_blocks = blocks,
       .head = head(tree, c, kind),
       .start = c.decoder_start_token_id,
       .one_text = !two_texts},
      tp);
}

base::Json resolve(const base::Json& tree) {
  base::Json out;
  read(tree, &out);
  const HeadKind kind = kind_of(tree);
  out["is_encoder_decoder"] = kind != HeadKind::causal_lm;
  out["is_decoder"] = kind == HeadKind::causal_lm;
  write_head(out, "Bart", kind, labels_of(tree, kLabels));
  return out;
}

}  // namespace

Family bart_family() {
  return {make,
          resolve,
          {.architecture = "BartForConditionalGeneration",
           .heads = "sequence to sequence, classes of rows, answers, causal LM",
           .tensor = "divides encoder_attention_heads and decoder_attention_heads",
           .ties = "head and tokens of both halves"}};
}

}  // namespace trireme::models
