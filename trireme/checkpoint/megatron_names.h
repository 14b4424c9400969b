#pragma once
// How Megatron-LM and LiBai name, split and turn the weights of their models, as tables: what each
// tensor becomes in a folder of Hugging Face.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/json.h"

namespace trireme::checkpoint {

/// What becomes of a tensor once its ranks' parts are together.
enum class WeightChange : uint8_t {
  none,
  transpose,  // Hugging Face's file has [in, out]
  fused,      // query, key and value one after another, each with its heads in order
  fused_transpose,
  query,  // of these three, or of the last two, one
  key,
  value,
  row,  // [1, n] of n
};

/// A tensor of the new folder. {} is the block.
struct WeightRule {
  std::string from, to;
  int split = -1;  // dimension that tensor-parallel ranks share; -1: all hold the whole
  WeightChange change = WeightChange::none;
  int parts = 3;                     // that are fused: all three, or key and value
  const char* count = "num_layers";  // of args: of the blocks
};

struct ForeignModel {
  base::Json config;
  std::vector<std::pair<const char*, const char*>> keys;  // of args -> of config.json
  std::string activation, hidden_dropout, attention_dropout;  // of config.json
  std::vector<WeightRule> rules;
};

/// What a folder calls a model's parts.
struct WeightNames {
  std::string words, places, kinds;  // tables of the embeddings
  std::string block, attention;      // scope of a block, {} its number; of its attention within
  std::string last;                  // the norm behind the blocks
  std::string pooler, head, head_bias, pair;  // of a BERT: heads of words and of pairs of sentences
  std::string decoder = "", decoder_last = "", cross = "";  // of a T5: its block, the norm behind them, its other attention
};

/// `encoder`: scope of the blocks; `attention`: that of a block's attention. Both were renamed
/// once.
WeightNames megatron_names(const std::string& encoder, const std::string& attention);
WeightNames libai_gpt_names();
WeightNames libai_bert_names();
/// Of a T5: `megatron_names` with a decoder.
WeightNames megatron_t5_names(const std::string& attention);
WeightNames libai_t5_names();

/// As GPT-2, as megatron-bert, and as Blenderbot: what both of these call T5 is its model.
ForeignModel gpt_model(const WeightNames& names);
ForeignModel bert_model(const WeightNames& names);
ForeignModel t5_model(const WeightNames& names);

}  // namespace trireme::checkpoint
