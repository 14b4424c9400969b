#include "trireme/checkpoint/megatron_names.h"

namespace trireme::checkpoint {
namespace {

std::vector<WeightRule> both(const std::string& from, const std::string& to) {
  return {{from + ".weight", to + ".weight"}, {from + ".bias", to + ".bias"}};
}
void append(std::vector<WeightRule>& rules, std::vector<WeightRule> more) {
  rules.insert(rules.end(), more.begin(), more.end());
}

/// A linear module that is split by outputs (column) or inputs; `transposed` as GPT-2's files have
/// it.
std::vector<WeightRule> linear(const std::string& from, const std::string& to, bool column,
                               bool transposed) {
  const WeightChange change = transposed ? WeightChange::transpose : WeightChange::none;
  return {{from + ".weight", to + ".weight", column ? 0 : 1, change},
          {from + ".bias", to + ".bias", column ? 0 : -1}};
}

/// Queries, keys and values, or the last two, that lie in one tensor.
std::vector<WeightRule> apart(const std::string& from, const std::string& to, const std::vector<std::string>& names) {
  std::vector<WeightRule> rules;
  int change = static_cast<int>(WeightChange::query) + 3 - static_cast<int>(names.size());
  for (const std::string& name : names) {
    for (const char* part : {".weight", ".bias"})
      rules.push_back({from + part, to + name + part, 0, static_cast<WeightChange>(change), static_cast<int>(names.size())});
    ++change;
  }
  return rules;
}

}  // namespace

WeightNames megatron_names(const std::string& encoder, const std::string& attention) {
  const std::string e = "model.language_model.embedding.";
  return {.words = e + "word_embeddings",
          .places = e + "position_embeddings",
          .kinds = e + "tokentype_embeddings",
          .block = encoder + ".layers.{}.",
          .attention = attention,
          .last = encoder + ".final_layernorm",
          .pooler = "model.language_model.pooler.dense",
          .head = "model.lm_head",
          .head_bias = "model.lm_head.bias",
          .pair = "model.binary_head"};
}

WeightNames libai_gpt_names() {
  const std::string e = "GPT_model.embeddings.";
  return {.words = e + "token_embeddings",
          .places = e + "position_embeddings",
          .kinds = "",
          .block = "GPT_model.transformer.layers.{}.",
          .attention = "self_attention",
          .last = "GPT_model.transformer.layernorm_f",
          .pooler = "",
          .head = "",
          .head_bias = "",
          .pair = ""};
}

WeightNames libai_bert_names() {
  const std::string e = "bert.embeddings.";
  return {.words = e + "vocab_embeddings",
          .places = e + "position_embeddings",
          .kinds = e + "tokentype_embeddings",
          .block = "bert.encoders.{}.",
          .attention = "self_attention",
          .last = "bert.final_layernorm",
          .pooler = "bert.pooler.dense",
          .head = "cls_head.predictions",
          .head_bias = "cls_head.lm_logits.bias",
          .pair = "cls_head.seq_relationship"};
}

WeightNames megatron_t5_names(const std::string& attention) {
  const std::string decoder = "model.language_model.decoder";
  WeightNames names = megatron_names("model.language_model.encoder", attention);
  names.decoder = decoder + ".layers.{}.";
  names.decoder_last = decoder + ".final_layernorm";
  names.cross = "inter_attention";
  return names;
}

WeightNames libai_t5_names() {
  const std::string e = "t5_model.embedding.";
  return {.words = e + "word_embeddings",
          .places = e + "position_embeddings",
          .kinds = "",
          .block = "t5_model.encoder.layers.{}.",
          .attention = "self_attention",
          .last = "t5_model.encoder.final_layernorm",
          .pooler = "",
          .head = "",
          .head_bias = "t5_model.lm_head.bias",
          .pair = "",
          .decoder = "t5_model.decoder.layers.{}.",
          .decoder_last = "t5_model.decoder.final_layernorm",
          .cross = "cross_attention"};
}

ForeignModel gpt_model(const WeightNames& n) {
  const std::string b = n.block, a = b + n.attention, h = "transformer.h.{}.";
  ForeignModel model{
      {{"model_type", "gpt2"}, {"architectures", {"GPT2LMHeadModel"}}},
      {{"hidden_size", "n_embd"},
       {"num_layers", "n_layer"},
       {"num_attention_heads", "n_head"},
       {"max_position_embeddings", "n_positions"},
       {"ffn_hidden_size", "n_inner"},
       {"layernorm_epsilon", "layer_norm_epsilon"}},
      "activation_function",
      "resid_pdrop",
      "attn_pdrop",
      {{n.words + ".weight", "transformer.wte.weight", 0},
       {n.places + ".weight", "transformer.wpe.weight"},
       {a + ".query_key_value.weight", h + "attn.c_attn.weight", 0, WeightChange::fused_transpose},
       {a + ".query_key_value.bias", h + "attn.c_attn.bias", 0, WeightChange::fused}}};
  append(model.rules, both(b + "input_layernorm", h + "ln_1"));
  append(model.rules, both(b + "post_attention_layernorm", h + "ln_2"));
  append(model.rules, both(n.last, "transformer.ln_f"));
  append(model.rules, linear(a + ".dense", h + "attn.c_proj", false, true));
  append(model.rules, linear(b + "mlp.dense_h_to_4h", h + "mlp.c_fc", true, true));
  append(model.rules, linear(b + "mlp.dense_4h_to_h", h + "mlp.c_proj", false, true));
  return model;
}

ForeignModel bert_model(const WeightNames& n) {
  const std::string b = n.block, a = b + n.attention, h = "bert.encoder.layer.{}.",
                    words = "bert.embeddings.", head = "cls.predictions.";
  ForeignModel model{
      {{"model_type", "megatron-bert"}, {"architectures", {"MegatronBertForPreTraining"}}},
      {{"hidden_size", "hidden_size"},
       {"num_layers", "num_hidden_layers"},
       {"num_attention_heads", "num_attention_heads"},
       {"max_position_embeddings", "max_position_embeddings"},
       {"ffn_hidden_size", "intermediate_size"},
       {"layernorm_epsilon", "layer_norm_eps"}},
      "hidden_act",
      "hidden_dropout_prob",
      "attention_probs_dropout_prob",
      {{n.words + ".weight", words + "word_embeddings.weight", 0},
       {n.places + ".weight", words + "position_embeddings.weight"},
       {n.kinds + ".weight", words + "token_type_embeddings.weight"},
       {n.head_bias, head + "bias", 0}}};
  append(model.rules, apart(a + ".query_key_value", h + "attention.self.", {"query", "key", "value"}));
  append(model.rules, both(b + "input_layernorm", h + "attention.ln"));
  append(model.rules, both(b + "post_attention_layernorm", h + "ln"));
  append(model.rules, both(n.last, "bert.encoder.ln"));
  append(model.rules, linear(a + ".dense", h + "attention.output.dense", false, false));
  append(model.rules, linear(b + "mlp.dense_h_to_4h", h + "intermediate.dense", true, false));
  append(model.rules, linear(b + "mlp.dense_4h_to_h", h + "output.dense", false, false));
  append(model.rules, both(n.pooler, "bert.pooler.dense"));
  append(model.rules, both(n.head + ".dense", head + "transform.dense"));
  append(model.rules, both(n.head + ".layernorm", head + "transform.LayerNorm"));
  append(model.rules, both(n.pair, "cls.seq_relationship"));
  return model;
}

ForeignModel t5_model(const WeightNames& n) {
  ForeignModel model{
      {{"model_type", "blenderbot"},
       {"architectures", {"BlenderbotForConditionalGeneration"}},
       {"scale_embedding", false},
       {"activation_dropout", 0.0},
       {"forced_eos_token_id", nullptr}},
      {{"hidden_size", "d_model"},
       {"encoder_num_layers", "encoder_layers"},
       {"decoder_num_layers", "decoder_layers"},
       {"num_attention_heads", "encoder_attention_heads"},
       {"num_attention_heads", "decoder_attention_heads"},
       {"max_position_embeddings", "max_position_embeddings"},
       {"ffn_hidden_size", "encoder_ffn_dim"},
       {"ffn_hidden_size", "decoder_ffn_dim"}},
      "activation_function",
      "dropout",
      "attention_dropout",
      {{n.words + ".weight", "model.shared.weight", 0},
       {n.places + ".weight", "model.encoder.embed_positions.weight"},
       {n.places + ".weight", "model.decoder.embed_positions.weight"},
       {n.head_bias, "final_logits_bias", 0, WeightChange::row}}};
  for (const bool decodes : {false, true}) {
    const std::string b = decodes ? n.decoder : n.block, half = decodes ? "model.decoder." : "model.encoder.", h = half + "layers.{}.",
                      behind = decodes ? "post_" + n.cross + "_layernorm" : "post_attention_layernorm";
    std::vector<WeightRule> rules = apart(b + n.attention + ".query_key_value", h + "self_attn.", {"q_proj", "k_proj", "v_proj"});
    append(rules, linear(b + n.attention + ".dense", h + "self_attn.out_proj", false, false));
    append(rules, both(b + "input_layernorm", h + "self_attn_layer_norm"));
    if (decodes) {
      append(rules, linear(b + n.cross + ".query", h + "encoder_attn.q_proj", true, false));
      append(rules, apart(b + n.cross + ".key_value", h + "encoder_attn.", {"k_proj", "v_proj"}));
      append(rules, linear(b + n.cross + ".dense", h + "encoder_attn.out_proj", false, false));
      append(rules, both(b + "post_attention_layernorm", h + "encoder_attn_layer_norm"));
    }
    append(rules, both(b + behind, h + "final_layer_norm"));
    append(rules, linear(b + "mlp.dense_h_to_4h", h + "fc1", true, false));
    append(rules, linear(b + "mlp.dense_4h_to_h", h + "fc2", false, false));
    append(rules, both(decodes ? n.decoder_last : n.last, half + "layer_norm"));
    for (WeightRule& rule : rules) rule.count = decodes ? "decoder_num_layers" : "encoder_num_layers";
    append(model.rules, std::move(rules));
  }
  return model;
}

}  // namespace trireme::checkpoint
