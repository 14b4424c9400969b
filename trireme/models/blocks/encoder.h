#pragma once
// The encoder block, and what stands before it, as data: families of encoders and encoder-decoders
// differ in names, norms, activations and biases, not in code. A family fills an EncoderSpec or an
// EncoderDecoderSpec with Hugging Face's names and gets a chain that any layout can run. Heads are
// in heads.h.
//
//   spec.block = {.hidden = 768, .heads = 12, .inner = 3072, .self = {"attention.self.query", ...},
//   ...}; nn::ModelDef def = make_encoder(spec, tp);

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "trireme/models/blocks/heads.h"
#include "trireme/nn/layers.h"

namespace trireme::models {

class ConfigReader;

/// An encoder's sizes, under the keys that most families have for them.
struct EncoderKeys {
  int64_t hidden_size = 768, num_hidden_layers = 12, num_attention_heads = 12,
          intermediate_size = 3072;
  double hidden_dropout_prob = 0, attention_probs_dropout_prob = 0, initializer_range = 0.02,
         layer_norm_eps = 1e-12;
  std::string hidden_act = "gelu";
};
/// Sizes, activation and deviation; the two dropouts.
void visit(ConfigReader& get, EncoderKeys& c);
void visit_dropouts(ConfigReader& get, EncoderKeys& c);
/// ConfigError where the heads do not divide the hidden size, and for an unknown activation.
void check(const EncoderKeys& c);

/// Names of an attention's modules within a block; `norm` is that of its residual branch.
struct AttentionNames {
  std::string query, key, value, out, norm;
};
/// With a gate the inner features are activation(gate) * in, else activation(in).
struct MlpNames {
  std::string in, out, norm, gate = "";
};
/// Standard deviations of the initial weights.
struct Deviations {
  double query = 0.02, key = 0.02, value = 0.02, out = 0.02, mlp_in = 0.02, mlp_out = 0.02;
  static Deviations all(double deviation) {
    return {deviation, deviation, deviation, deviation, deviation, deviation};
  }
};

/// A learned bias of each head on the scores, by the distance between query and key in buckets
/// (Raffel et al., T5, 2020). All blocks that name the table share it, wherever they lie.
struct RelativeBias {
  std::string table;  // full name of the module
  int64_t buckets = 32, max_distance = 128;
  bool both_ways = true;  // keys behind the query have buckets of their own
  double deviation = 0.02;
};

struct BlockSpec {
  int64_t hidden = 0, heads = 0, inner = 0;
  int64_t head_size = 0;  // 0: hidden / heads
  AttentionNames self = {};
  std::optional<AttentionNames> cross =
      {};  // of the decoder's blocks: attends over the encoder's output
  MlpNames mlp = {};
  Norm norm = {};
  bool norm_first =
      false;  // of each branch's input, else of the sum behind it (Xiong et al., 2020)
  bool bias = true, qkv_bias = true;
  std::string activation = "gelu";
  double dropout = 0;                                     // of each branch's output
  bool attention_out_dropout = true, mlp_dropout = true;  // is it there?
  double attention_dropout = 0,
         inner_dropout = 0;  // of the attention's weights; of the inner features
  double scale = 0;          // of the scores; 0: head_size ^ -0.5
  bool causal = false;
  std::string mask = "attention_mask";  // field of the batch that says which places are no padding
  Deviations deviations = {};
  std::optional<RelativeBias> relative = {};
  Positions positions = {};
  Positions memory = {.source = true};  // of what `cross` attends over

  int64_t size_of_heads() const { return head_size > 0 ? head_size : hidden / heads; }
};

/// What makes a residual stream of tokens: vectors of words, places and kinds, summed, normalised,
/// projected. Full names of modules; empty: there is none.
struct EmbeddingSpec {
  std::string words, places = "", types = "", norm = "", projection = "";
  int64_t vocab = 0, max_places = 0, kinds = 0;
  int64_t features = 0, hidden = 0;  // before and after the projection
  int64_t padding = -1;              // the id whose vector is not trained here
  int64_t first_place = 0;           // row of the first token's place
  bool places_skip_padding =
      false;         // places count tokens that are no padding, from padding + 1; RoBERTa's
  double scale = 1;  // of the words' vectors
  Norm norm_kind = {};
  bool norm_before_places = false;
  double dropout = 0, deviation = 0.02;
  std::string ids = "input_ids";
  std::optional<int64_t> shifted_behind = {};  // moves the ids on by one place, behind this one
  bool shifted_behind_end = false;             // or behind the row's last one that is no padding
  Positions positions = {};
};

struct EncoderSpec {
  EmbeddingSpec embeddings;
  BlockSpec block;
  std::vector<std::string> blocks;  // scope of each; equal ones share their weights
  HeadSpec head;
};

struct EncoderDecoderSpec {
  EmbeddingSpec source = {}, target = {};
  BlockSpec encoder = {}, decoder = {};
  std::vector<std::string> encoder_blocks = {}, decoder_blocks = {};
  std::string encoder_norm = "";  // behind the last encoder block; empty: none
  double norm_dropout = 0;        // behind that norm
  HeadSpec head = {};
  int64_t start = 0;        // the decoder's first token
  bool one_text = false;    // the decoder reads the source too, moved on by one place behind `start`; else it generates
  bool behind_end = false;  // behind the row's last token in place of `start`
};

/// PREFIX.0, PREFIX.1, ...: the scopes of blocks.
std::vector<std::string> numbered(const std::string& prefix, int64_t count);

/// The chain of an encoder. `tp` must divide the heads: else ConfigError.
nn::ModelDef make_encoder(const EncoderSpec& spec, int tp);
/// The chain of an encoder and a decoder: the encoder's output travels on as "memory". Batches hold `input_ids` and, unless
/// both halves read one text, `decoder_input_ids`; they may hold `attention_mask` and `decoder_attention_mask`. What a half
/// reads, and how many positions it has, follows from that: ids, mask and Positions of the halves are filled in here.
nn::ModelDef make_encoder_decoder(const EncoderDecoderSpec& spec, int tp);
/// One half alone under the head: the encoder, whose last norm is then the head's; the decoder, which attends over itself.
EncoderSpec encoder_of(const EncoderDecoderSpec& spec);
EncoderSpec decoder_of(const EncoderDecoderSpec& spec);

/// A link of the chain: one block in the scope `name`. For families with links of their own.
nn::LayerDef block_link(const BlockSpec& spec, const std::string& name);
/// Has every rank of tp hold the stream whole, also with sequence parallel: for chains that mix positions anywhere.
void keep_whole(nn::ModelDef& def);
/// Where a block's weights lie on the tensor axis.
void add_rules(const BlockSpec& spec, nn::Policy& policy);
/// ConfigError unless `tp` divides the heads.
void check_heads(int64_t heads, int tp, const std::string& key);

}  // namespace trireme::models
