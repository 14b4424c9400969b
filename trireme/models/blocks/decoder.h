#pragma once
// Decoder: the chain of embeddings, blocks and head (heads.h) behind every family of causal models, as a value. A family
// reads its configuration into a DecoderConfig and says how its weights are called; what follows from that (chain, policy,
// loss, refusals, config.json) is here. Sizes and names are of the whole model: nothing here knows a rank.
//
//   Family phi3_family() { return decoder_family({.name = "phi3", .class_name = "Phi3"}, read); }

#include "trireme/models/family.h"
#include "trireme/models/blocks/heads.h"
#include "trireme/nn/rotary.h"

namespace trireme::models {

/// Modules by name, dots allowed; those of a block relative to it. Empty: there is none.
struct DecoderNames {
  std::string model = "model", tokens = "embed_tokens", blocks = "layers", final_norm = "norm", head = "lm_head";
  std::string positions = {}, embedding_norm = {}, project_in = {}, project_out = {};
  // of a block; query, key and value of one name are one fused weight, and so are gate and up
  std::string query = "self_attn.q_proj", key = "self_attn.k_proj", value = "self_attn.v_proj";
  std::string attention_out = "self_attn.o_proj", query_norm = {}, key_norm = {};
  std::string gate = {}, up = "mlp.up_proj", down = "mlp.down_proj";  // gated where there is a gate
  // before (or, with post_norm, after the sum of) attention and MLP; on their outputs
  std::string attention_norm = "input_layernorm", mlp_norm = "post_attention_layernorm";
  std::string attention_out_norm = {}, mlp_out_norm = {};
  std::string router = {}, expert_gate = {}, expert_up = {}, expert_down = {};  // '*' stands for the expert's index
  std::string token_classes = "score";  // of token_classification
};

struct DecoderConfig {
  DecoderNames names = {};
  // What the configuration calls `heads` and `hidden`, for messages.
  const char *heads_key = "num_attention_heads", *hidden_key = "hidden_size";
  int64_t vocab_size = 0, hidden = 0, layers = 0, heads = 0, kv_heads = 0, head_size = 0, inner = 0;
  nn::Orientation orientation = nn::Orientation::out_in;
  double init = 0.02, residual_init = 0;  // deviations of initial values; of those onto the stream (0: the same)
  bool tied = false;

  // Embeddings and head.
  int64_t embedding_size = 0;  // of tokens; 0: hidden
  int64_t padding = -1;        // the token whose vector gets no gradient
  double embedding_scale = 1, logit_cap = 0;
  int64_t max_positions = 0;    // that the model knows; 0: any number
  int64_t position_offset = 0;  // rows of the table of positions before the first one
  bool head_bias = false;
  double classifier_dropout = 0.1;  // of token_classification
  int64_t row_end = -1;             // sequence_classification reads a row at the last token that is not this one

  // Norms: with a mean and a bias, or of the root mean square alone.
  bool rms = false;
  double norm_eps = 1e-5, norm_offset = 0;
  Norm norm() const { return {.eps = norm_eps, .rms = rms, .offset = norm_offset}; }

  // Attention.
  double scale = 1, score_cap = 0;
  bool query_bias = false, attention_out_bias = false;  // of query, key and value; of the output
  bool interleaved_heads = false;                       // a fused weight holds q, k, v of a head, then of the next
  bool alibi = false, scale_by_layer = false;
  std::vector<int64_t> windows = {};                    // of each layer, 0: none; empty: none has any
  std::vector<nn::RotaryOptions> rotary = {};           // of layers without a window; then of those with one
  // MLP.
  std::string activation = "silu";
  bool mlp_bias = false;

  // The stream.
  bool parallel = false;            // attention and MLP read the same input; without mlp_norm the same normalised one
  bool post_norm = false;           // norms follow the sums
  bool residual_of_norm = false;    // what is added to is the normalised input
  double embedding_dropout = 0, attention_dropout = 0, residual_dropout = 0;

  // Mixture of experts (Shazeer et al., 2017) in place of the MLP.
  struct Experts {
    int64_t count = 0, chosen = 2, inner = 0;
    bool normalize = true;           // the chosen ones' weights add up to one
    double balance = 0;              // factor of the balance loss (Fedus et al., 2021); 0: none
    std::vector<bool> layers = {};   // which have them; empty: all
  } experts = {};

  bool has_experts(int64_t layer) const {
    return experts.count > 0 && (experts.layers.empty() || experts.layers[layer]);
  }
};

/// ConfigError where heads, sizes or names do not go together, or with `tp` ranks: it divides heads, and divides the key
/// heads or is a multiple of them.
void check_decoder(const DecoderConfig& config, int tp);

/// Of heads that share the width; ConfigError unless they divide it.
int64_t head_size_of(const DecoderConfig& config);

/// Reads pad_token_id, whose vector gets no gradient of its own (as Hugging Face's tables have it), into what holds the
/// family's; null, or a family's beyond the vocabulary, is none.
void read_padding(ConfigReader& get, DecoderConfig& config);

/// The chain under a head; `tree` says what heads.h reads of it. A causal_lm's loss is the cross entropy of `labels`; with a
/// balance loss of experts, plus that of the micro-batch on this data rank times its counted labels.
nn::ModelDef decoder(const DecoderConfig& config, HeadKind kind = HeadKind::causal_lm, const base::Json& tree = base::Json::object());

/// A family's name and that of its classes, without the head's; the heads that it has.
struct DecoderFamily {
  std::string name = "", class_name = "";
  bool token_classes = true, answers = false;  // besides those that all have
  std::string causal_class = "";               // the causal_lm's where it is not named after class_name
};

/// `read` fills in a configuration from a tree and refuses what it does not know.
Family decoder_family(const DecoderFamily& family, DecoderConfig (*read)(ConfigReader& get));

}  // namespace trireme::models
