// BART (Lewis et al., 2020): BERT's block in both halves, the decoder's with attention over the encoder's output. mBART (Liu et
// al., 2020) and Blenderbot (Roller et al., 2021) have norms first, and one behind each half; Blenderbot's small model
// normalises the decoder's words before their places are added.
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/models/blocks/encoder_decoder_family.h"

namespace trireme::models {
namespace {

struct BartConfig {
  int64_t vocab_size = 50265, max_position_embeddings = 1024, d_model = 1024, encoder_layers = 12, encoder_ffn_dim = 4096,
          encoder_attention_heads = 16, decoder_layers = 12, decoder_ffn_dim = 4096, decoder_attention_heads = 16, pad_token_id = 1,
          decoder_start_token_id = 2, eos_token_id = 2;
  double dropout = 0.1, attention_dropout = 0, activation_dropout = 0, classifier_dropout = 0, init_std = 0.02, encoder_layerdrop = 0,
         decoder_layerdrop = 0;
  std::string activation_function = "gelu";
  bool scale_embedding = false, tie_word_embeddings = true;
};

/// What BART's kin do otherwise.
struct BartLike {
  BartConfig usual = {};
  bool norms_first = false, embedding_norm = true, target_norm_before_places = false;  // the last: words unscaled too, as in transformers 5
  int64_t first_place = 2;  // the table of places begins with rows that nothing uses
  bool behind_end = false;  // where both halves read one text, the decoder begins with its end
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
  get.ignore({"classif_dropout", "num_hidden_layers", "extra_pos_embeddings", "save_step", "replacing_rate", "force_bos_token_to_be_generated",
              "student_encoder_layers", "student_decoder_layers", "layernorm_variant", "do_blenderbot_90_layernorm", "extra_layer_norm"});
  if (c.encoder_layerdrop > 0 || c.decoder_layerdrop > 0)
    throw base::ConfigError("model.encoder_layerdrop and decoder_layerdrop are not supported; set both to 0");
  check_divides("encoder_attention_heads", c.encoder_attention_heads, "d_model", c.d_model);
  check_divides("decoder_attention_heads", c.decoder_attention_heads, "d_model", c.d_model);
  nn::find_activation(c.activation_function);
}

BlockSpec half(const BartLike& like, const BartConfig& c, bool decoder) {
  BlockSpec block{.hidden = c.d_model,
                  .heads = decoder ? c.decoder_attention_heads : c.encoder_attention_heads,
                  .inner = decoder ? c.decoder_ffn_dim : c.encoder_ffn_dim,
                  .self = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj", "self_attn_layer_norm"},
                  .mlp = {.in = "fc1", .out = "fc2", .norm = "final_layer_norm"},
                  .norm_first = like.norms_first,
                  .activation = c.activation_function,
                  .dropout = c.dropout,
                  .attention_dropout = c.attention_dropout,
                  .inner_dropout = c.activation_dropout,
                  .causal = decoder,
                  .deviations = Deviations::all(c.init_std)};
  if (decoder)
    block.cross = {"encoder_attn.q_proj", "encoder_attn.k_proj", "encoder_attn.v_proj", "encoder_attn.out_proj", "encoder_attn_layer_norm"};
  return block;
}

Halves read(const BartLike& like, ConfigReader& get, HeadKind kind) {
  BartConfig c = like.usual;
  visit(get, c);
  get.only("add_bias_logits", false);
  get.only("add_final_layer_norm", like.norms_first);
  get.only("normalize_before", like.norms_first);
  get.only("normalize_embedding", like.embedding_norm);
  get.only("static_position_embeddings", false);
  // The decoder alone has the table of words under a name of its own.
  const std::string words = kind == HeadKind::causal_lm ? "model.decoder.embed_tokens" : "model.shared";
  auto embeddings = [&](const std::string& base) {
    return EmbeddingSpec{.words = words,
                         .places = base + ".embed_positions",
                         .norm = like.embedding_norm ? base + ".layernorm_embedding" : "",
                         .vocab = c.vocab_size,
                         .max_places = c.max_position_embeddings + like.first_place,
                         .features = c.d_model,
                         .hidden = c.d_model,
                         .padding = c.pad_token_id,
                         .first_place = like.first_place,
                         .scale = c.scale_embedding ? std::sqrt(static_cast<double>(c.d_model)) : 1,
                         .dropout = c.dropout,
                         .deviation = c.init_std};
  };
  Halves halves{.chain = {.source = embeddings("model.encoder"),
                          .target = embeddings("model.decoder"),
                          .encoder = half(like, c, false),
                          .decoder = half(like, c, true),
                          .encoder_blocks = numbered("model.encoder.layers", c.encoder_layers),
                          .decoder_blocks = numbered("model.decoder.layers", c.decoder_layers),
                          .encoder_norm = like.norms_first ? "model.encoder.layer_norm" : "",
                          .head = {.hidden = c.d_model, .norm = like.norms_first ? "model.decoder.layer_norm" : "", .deviation = c.init_std},
                          .start = c.decoder_start_token_id,
                          .behind_end = like.behind_end},
                .scores = {.vocab = {.table = c.tie_word_embeddings ? words : "lm_head", .vocab = c.vocab_size, .features = c.d_model,
                                     .deviation = c.init_std},
                           .classes = classes_at_end(c.eos_token_id, c.classifier_dropout)}};
  if (like.target_norm_before_places) halves.chain.target.norm_before_places = true, halves.chain.target.scale = 1;
  if (kind == HeadKind::seq2seq) halves.scores.vocab.bias = "final_logits_bias", halves.scores.vocab.fixed_bias = true;
  return halves;
}

Family bart_like_family(EncoderDecoderFamily family, const BartLike& like, bool classes) {
  if (classes) family.heads = {HeadKind::sequence_classification, HeadKind::question_answering};
  family.heads.push_back(HeadKind::causal_lm);
  family.tensor = "divides encoder_attention_heads and decoder_attention_heads";
  family.ties = "head and tokens of both halves";
  return encoder_decoder_family(family, [like](ConfigReader& get, HeadKind kind) { return read(like, get, kind); });
}

}  // namespace

Family bart_family() { return bart_like_family({.name = "bart", .class_name = "Bart", .labels = 3}, {}, true); }
Family mbart_family() { return bart_like_family({.name = "mbart", .class_name = "MBart"}, {.norms_first = true, .behind_end = true}, true); }

Family blenderbot_family() {
  BartConfig usual{.vocab_size = 8008, .max_position_embeddings = 128, .d_model = 2560, .encoder_layers = 2, .encoder_ffn_dim = 10240,
                   .encoder_attention_heads = 32, .decoder_layers = 24, .decoder_ffn_dim = 10240, .decoder_attention_heads = 32,
                   .pad_token_id = 0, .decoder_start_token_id = 1};
  return bart_like_family({.name = "blenderbot", .class_name = "Blenderbot"},
                          {.usual = usual, .norms_first = true, .embedding_norm = false, .first_place = 0}, false);
}

Family blenderbot_small_family() {
  BartConfig usual{.max_position_embeddings = 512, .d_model = 512, .encoder_layers = 8, .encoder_ffn_dim = 2048, .decoder_layers = 8,
                   .decoder_ffn_dim = 2048, .pad_token_id = 0, .decoder_start_token_id = 1};
  return bart_like_family({.name = "blenderbot-small", .class_name = "BlenderbotSmall"},
                          {.usual = usual, .target_norm_before_places = true, .first_place = 0}, false);
}

}  // namespace trireme::models
