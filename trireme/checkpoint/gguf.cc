#include "trireme/checkpoint/gguf.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>

#include "trireme/base/error.h"
#include "trireme/checkpoint/folder.h"
#include "trireme/checkpoint/save.h"
#include "trireme/dist/redistribute.h"
#include "trireme/formats/gguf.h"
#include "trireme/formats/safetensors.h"
#include "trireme/text/tokenizer_spec.h"

namespace trireme::checkpoint {
namespace {

using base::FormatError;
using base::Json;
using formats::GgufFile;

/// What happens to a tensor beside its name.
enum class Change : uint8_t {
  none,
  transpose,  // Hugging Face's file has [in, out]
  queries,    // rows of each head are interleaved for rotary positions: taken apart again
  keys,       // the same with the number of key heads
  offset,     // a norm's factor: Hugging Face's file holds what it is beyond one
  experts,    // one matrix for each expert, stacked; {1} in the name is the expert
};

struct TensorRule {
  std::string from, to;  // {} or {0} is the block
  Change change = Change::none;
  bool optional = false;
};

struct KeyRule {
  const char* from;  // "{}.context_length" with the architecture
  const char* to;
  bool optional = false;
};

struct Architecture {
  std::string name;
  Json config;
  std::vector<KeyRule> keys;
  std::vector<TensorRule> tensors;
  void (*settle)(const GgufFile& file, Json& config) = nullptr;  // what the file says otherwise, or not at all
  bool mixture = false;  // of experts: another model than that of the same name without
};

std::vector<KeyRule> operator+(std::vector<KeyRule> rules, const std::vector<KeyRule>& more) {
  rules.insert(rules.end(), more.begin(), more.end());
  return rules;
}

std::vector<TensorRule> operator+(std::vector<TensorRule> rules, const std::vector<TensorRule>& more) {
  rules.insert(rules.end(), more.begin(), more.end());
  return rules;
}

std::string in_block(const std::string& name) { return "blk.{}." + name; }
std::string in_layer(const std::string& name) { return "model.layers.{}." + name; }

/// What Llama and those after it have in common.
std::vector<TensorRule> outer_tensors(Change norm) {
  return {{"token_embd.weight", "model.embed_tokens.weight"},
          {"output_norm.weight", "model.norm.weight", norm},
          {"output.weight", "lm_head.weight", Change::none, true},
          {in_block("attn_norm.weight"), in_layer("input_layernorm.weight"), norm},
          {in_block("attn_output.weight"), in_layer("self_attn.o_proj.weight")}};
}
std::vector<TensorRule> query_tensors(Change queries, Change keys) {
  return {{in_block("attn_q.weight"), in_layer("self_attn.q_proj.weight"), queries},
          {in_block("attn_k.weight"), in_layer("self_attn.k_proj.weight"), keys},
          {in_block("attn_v.weight"), in_layer("self_attn.v_proj.weight")}};
}
std::vector<TensorRule> mlp_tensors() {
  return {{in_block("ffn_gate.weight"), in_layer("mlp.gate_proj.weight")},
          {in_block("ffn_up.weight"), in_layer("mlp.up_proj.weight")},
          {in_block("ffn_down.weight"), in_layer("mlp.down_proj.weight")}};
}
std::vector<TensorRule> expert_tensors(const std::string& scope, const std::string& gate, const std::string& up, const std::string& down) {
  const auto expert = [&](const std::string& name) { return "model.layers.{0}." + scope + ".experts.{1}." + name + ".weight"; };
  return {{in_block("ffn_gate_inp.weight"), in_layer(scope + ".gate.weight")},
          {in_block("ffn_gate_exps.weight"), expert(gate), Change::experts},
          {in_block("ffn_up_exps.weight"), expert(up), Change::experts},
          {in_block("ffn_down_exps.weight"), expert(down), Change::experts}};
}
std::vector<TensorRule> head_norms(Change norm) {
  return {{in_block("attn_q_norm.weight"), in_layer("self_attn.q_norm.weight"), norm},
          {in_block("attn_k_norm.weight"), in_layer("self_attn.k_norm.weight"), norm}};
}
std::vector<TensorRule> norm_before_mlp() { return {{in_block("ffn_norm.weight"), in_layer("post_attention_layernorm.weight")}}; }
std::vector<TensorRule> gemma_norms() {
  return {{in_block("post_attention_norm.weight"), in_layer("post_attention_layernorm.weight"), Change::offset},
          {in_block("ffn_norm.weight"), in_layer("pre_feedforward_layernorm.weight"), Change::offset},
          {in_block("post_ffw_norm.weight"), in_layer("post_feedforward_layernorm.weight"), Change::offset}};
}

std::vector<TensorRule> llama_tensors(Change queries, Change keys) {
  return outer_tensors(Change::none) + query_tensors(queries, keys) + norm_before_mlp() + mlp_tensors();
}
std::vector<TensorRule> query_biases() {
  std::vector<TensorRule> rules;
  for (const std::string part : {"q", "k", "v"})
    rules.push_back({in_block("attn_" + part + ".bias"), in_layer("self_attn." + part + "_proj.bias")});
  return rules;
}

// No constant of the file: the table of architectures is made of it.
const std::vector<KeyRule>& llama_keys() {
  static const std::vector<KeyRule> keys = {{"context_length", "max_position_embeddings"},
                                         {"embedding_length", "hidden_size"},
                                         {"block_count", "num_hidden_layers"},
                                         {"feed_forward_length", "intermediate_size"},
                                         {"attention.head_count", "num_attention_heads"},
                                         {"attention.head_count_kv", "num_key_value_heads", true},
                                         {"attention.key_length", "head_dim", true},
                                         {"attention.layer_norm_rms_epsilon", "rms_norm_eps"},
                                         {"rope.freq_base", "rope_theta", true}};
  return keys;
}

double number_of(const GgufFile& file, const std::string& key, double otherwise) {
  const auto found = file.metadata().find(key);
  return found != file.metadata().end() && found->is_number() ? found->get<double>() : otherwise;
}

/// Gemma's files say neither the size of heads where it is the usual one nor what scores are divided by: that is the size of
/// heads but in the largest model, of `largest` blocks, where it is the share of each head in the stream.
void settle_gemma(Json& config, int64_t largest) {
  const auto share = config.at("hidden_size").get<int64_t>() / std::max<int64_t>(1, config.at("num_attention_heads").get<int64_t>());
  if (!config.contains("head_dim")) config["head_dim"] = share;
  config["query_pre_attn_scalar"] = config["num_hidden_layers"] == largest ? Json(share) : config["head_dim"];
}
void settle_gemma2(const GgufFile&, Json& config) { settle_gemma(config, 46); }
void settle_gemma3(const GgufFile&, Json& config) { settle_gemma(config, 62); }

void settle_phi3(const GgufFile& file, Json& config) {
  const int64_t head_size = config.at("hidden_size").get<int64_t>() / std::max<int64_t>(1, config.at("num_attention_heads").get<int64_t>());
  if (const double turned = number_of(file, "phi3.rope.dimension_count", 0); turned > 0)
    config["partial_rotary_factor"] = turned / static_cast<double>(head_size);
  if (config.value("sliding_window", 0) == 0) config["sliding_window"] = nullptr;
  if (!file.metadata().contains("tokenizer.ggml.padding_token_id")) config["pad_token_id"] = nullptr;
  if (!file.tensors().contains("rope_factors_short.weight")) return;
  config["rope_scaling"] = {{"rope_type", "longrope"},
                            {"short_factor", file.dequantize("rope_factors_short.weight")},
                            {"long_factor", file.dequantize("rope_factors_long.weight")}};
}

const std::vector<Architecture>& architectures() {
  static const std::vector<Architecture> all = {
      {"llama",
       {{"model_type", "mixtral"}, {"architectures", {"MixtralForCausalLM"}}, {"hidden_act", "silu"}},
       llama_keys() + std::vector<KeyRule>{{"expert_count", "num_local_experts"}, {"expert_used_count", "num_experts_per_tok"}},
       outer_tensors(Change::none) + query_tensors(Change::queries, Change::keys) + norm_before_mlp() +
           expert_tensors("block_sparse_moe", "w1", "w3", "w2"),
       nullptr,
       true},
      {"llama",
       {{"model_type", "llama"}, {"architectures", {"LlamaForCausalLM"}}, {"hidden_act", "silu"}},
       llama_keys(),
       llama_tensors(Change::queries, Change::keys)},
      {"qwen2",
       {{"model_type", "qwen2"}, {"architectures", {"Qwen2ForCausalLM"}}, {"hidden_act", "silu"}},
       llama_keys(),
       llama_tensors(Change::none, Change::none) + query_biases()},
      {"qwen3",
       {{"model_type", "qwen3"}, {"architectures", {"Qwen3ForCausalLM"}}, {"hidden_act", "silu"}},
       llama_keys(),
       llama_tensors(Change::none, Change::none) + head_norms(Change::none)},
      {"qwen3moe",
       {{"model_type", "qwen3_moe"}, {"architectures", {"Qwen3MoeForCausalLM"}}, {"hidden_act", "silu"}, {"norm_topk_prob", true}},
       llama_keys() + std::vector<KeyRule>{{"expert_count", "num_experts"},
                                           {"expert_used_count", "num_experts_per_tok"},
                                           {"expert_feed_forward_length", "moe_intermediate_size"}},
       outer_tensors(Change::none) + query_tensors(Change::none, Change::none) + head_norms(Change::none) + norm_before_mlp() +
           expert_tensors("mlp", "gate_proj", "up_proj", "down_proj"),
       nullptr,
       true},
      {"gemma2",
       {{"model_type", "gemma2"}, {"architectures", {"Gemma2ForCausalLM"}}, {"hidden_activation", "gelu_pytorch_tanh"}},
       llama_keys() + std::vector<KeyRule>{{"attention.sliding_window", "sliding_window"},
                                           {"attn_logit_softcapping", "attn_logit_softcapping", true},
                                           {"final_logit_softcapping", "final_logit_softcapping", true}},
       outer_tensors(Change::offset) + query_tensors(Change::none, Change::none) + gemma_norms() + mlp_tensors(),
       settle_gemma2},
      {"gemma3",
       {{"model_type", "gemma3_text"}, {"architectures", {"Gemma3ForCausalLM"}}, {"hidden_activation", "gelu_pytorch_tanh"}},
       llama_keys() + std::vector<KeyRule>{{"attention.sliding_window", "sliding_window"},
                                           {"final_logit_softcapping", "final_logit_softcapping", true}},
       outer_tensors(Change::offset) + query_tensors(Change::none, Change::none) + head_norms(Change::offset) + gemma_norms() +
           mlp_tensors(),
       settle_gemma3},
      {"phi3",
       {{"model_type", "phi3"}, {"architectures", {"Phi3ForCausalLM"}}, {"hidden_act", "silu"}},
       llama_keys() + std::vector<KeyRule>{{"attention.sliding_window", "sliding_window", true},
                                           {"rope.scaling.original_context_length", "original_max_position_embeddings", true}},
       outer_tensors(Change::none) + norm_before_mlp() +
           std::vector<TensorRule>{{in_block("attn_qkv.weight"), in_layer("self_attn.qkv_proj.weight")},
                                   {in_block("ffn_up.weight"), in_layer("mlp.gate_up_proj.weight")},
                                   {in_block("ffn_down.weight"), in_layer("mlp.down_proj.weight")}},
       settle_phi3},
      {"gpt2",
       {{"model_type", "gpt2"}, {"architectures", {"GPT2LMHeadModel"}}},
       {{"context_length", "n_positions"},
        {"embedding_length", "n_embd"},
        {"block_count", "n_layer"},
        {"feed_forward_length", "n_inner"},
        {"attention.head_count", "n_head"},
        {"attention.layer_norm_epsilon", "layer_norm_epsilon"}},
       {{"token_embd.weight", "transformer.wte.weight"},
        {"position_embd.weight", "transformer.wpe.weight"},
        {"output_norm.weight", "transformer.ln_f.weight"},
        {"output_norm.bias", "transformer.ln_f.bias"},
        {"output.weight", "lm_head.weight", Change::none, true},
        {"blk.{}.attn_norm.weight", "transformer.h.{}.ln_1.weight"},
        {"blk.{}.attn_norm.bias", "transformer.h.{}.ln_1.bias"},
        {"blk.{}.attn_qkv.weight", "transformer.h.{}.attn.c_attn.weight", Change::transpose},
        {"blk.{}.attn_qkv.bias", "transformer.h.{}.attn.c_attn.bias"},
        {"blk.{}.attn_output.weight", "transformer.h.{}.attn.c_proj.weight", Change::transpose},
        {"blk.{}.attn_output.bias", "transformer.h.{}.attn.c_proj.bias"},
        {"blk.{}.ffn_norm.weight", "transformer.h.{}.ln_2.weight"},
        {"blk.{}.ffn_norm.bias", "transformer.h.{}.ln_2.bias"},
        {"blk.{}.ffn_up.weight", "transformer.h.{}.mlp.c_fc.weight", Change::transpose},
        {"blk.{}.ffn_up.bias", "transformer.h.{}.mlp.c_fc.bias"},
        {"blk.{}.ffn_down.weight", "transformer.h.{}.mlp.c_proj.weight", Change::transpose},
        {"blk.{}.ffn_down.bias", "transformer.h.{}.mlp.c_proj.bias"}}}};
  return all;
}

const Architecture& architecture_of(const GgufFile& file) {
  const std::string name = file.metadata().value("general.architecture", "");
  const bool mixture = number_of(file, name + ".expert_count", 0) > 0;
  std::string known;
  for (const Architecture& architecture : architectures()) {
    if (name == architecture.name && mixture == architecture.mixture) return architecture;
    const std::string what = architecture.name + (architecture.mixture ? " with experts" : "");
    known += (known.empty() ? "" : ", ") + what;
  }
  throw FormatError(fmt::format("{}: architecture \"{}\"{} is not supported; known are {}", file.path(), name,
                                mixture ? " with experts" : "", known));
}

std::string with(const std::string& pattern, int64_t block, int64_t expert = 0) {
  return fmt::format(fmt::runtime(pattern), block, expert);
}

bool of_blocks(const TensorRule& rule) { return rule.from.find("{}") != std::string::npos; }

/// A tensor of the new folder and where it comes from.
struct Move {
  std::string from, to;
  Change change;
  std::optional<int64_t> part = {};  // the expert
};

std::vector<Move> moves_of(const GgufFile& file, const Architecture& architecture, int64_t blocks, bool tied) {
  std::vector<Move> moves;
  std::set<std::string> left;
  for (const auto& [name, tensor] : file.tensors()) left.insert(name);
  const auto add = [&](const TensorRule& rule, int64_t block) {
    const std::string from = with(rule.from, block);
    if (left.erase(from) == 0) {
      if (rule.optional) return;
      throw FormatError(fmt::format("{}: there is no tensor \"{}\"", file.path(), from));
    }
    if (rule.optional && tied) return;  // GPT-2's output repeats its table
    if (rule.change != Change::experts) return moves.push_back({from, with(rule.to, block), rule.change});
    const layout::Shape& shape = file.tensors().at(from).shape;
    if (shape.size() != 3) throw FormatError(fmt::format("{}: \"{}\" is no stack of matrices", file.path(), from));
    for (int64_t expert = 0; expert < shape[0]; ++expert) moves.push_back({from, with(rule.to, block, expert), rule.change, expert});
  };
  for (const TensorRule& rule : architecture.tensors)
    for (int64_t block = 0; block < (of_blocks(rule) ? blocks : 1); ++block) add(rule, block);
  for (const char* name : {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"})
    left.erase(name);  // which config.json says
  if (!left.empty())
    throw FormatError(fmt::format("{}: tensor \"{}\" has no place in a {} model", file.path(), *left.begin(), architecture.name));
  return moves;
}

/// By how much Llama 3.1's scaling divides a rotary frequency, as its configuration says it.
double llama3_factor(double frequency, double factor, double low, double high, double original) {
  const double turns = original * frequency / (2 * std::numbers::pi);  // within the original length
  if (turns > high) return 1;
  if (turns < low) return factor;
  const double smooth = (turns - low) / (high - low);
  return 1 / ((1 - smooth) / factor + smooth);
}

/// The settings behind rope_freqs.weight, which holds what they come to; null where it changes nothing. FormatError for
/// others than those with which Llama 3.1 to 3.3 were made: a factor of one's own, between 1 and 4 turns of 8192 places.
Json rope_scaling_of(const GgufFile& file, int64_t head_size, double theta) {
  constexpr double kLow = 1, kHigh = 4, kOriginal = 8192;
  const std::vector<float> held = file.dequantize("rope_freqs.weight");
  const double factor = held.empty() ? 1 : *std::ranges::max_element(held);
  bool equal = std::ssize(held) == head_size / 2 && factor >= 1;
  for (size_t i = 0; equal && i < held.size(); ++i) {
    const double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_size));
    const double want = llama3_factor(frequency, factor, kLow, kHigh, kOriginal);
    equal = std::abs(held[i] - want) <= 1e-4 * want;
  }
  if (factor == 1 && equal) return {};
  if (!equal)
    throw FormatError(file.path() + ": it stores rotary factors as a tensor (rope_freqs.weight) that are none of Llama 3's, so "
                      "the settings of config.json cannot be told; convert the original model instead");
  return {{"rope_type", "llama3"}, {"factor", factor}, {"low_freq_factor", kLow}, {"high_freq_factor", kHigh},
          {"original_max_position_embeddings", static_cast<int64_t>(kOriginal)}};
}

Json config_of(const GgufFile& file, const Architecture& architecture, bool tied) {
  Json config = architecture.config;
  const Json& given = file.metadata();
  for (const KeyRule& rule : architecture.keys) {
    const std::string key = fmt::format("{}.{}", architecture.name, rule.from);
    if (given.contains(key) && given[key].is_number())
      config[rule.to] = given[key];
    else if (!rule.optional)
      throw FormatError(fmt::format("{}: the key {} lacks or is no number", file.path(), key));
  }
  const std::string scaling = fmt::format("{}.rope.scaling.type", architecture.name);
  const double factor = number_of(file, fmt::format("{}.rope.scaling.factor", architecture.name), 0);
  if (given.contains(scaling) && given[scaling] == "linear" && factor > 0)
    config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", factor}};
  else if (given.contains(scaling) && given[scaling] != "none")
    throw FormatError(fmt::format("{}: {} \"{}\" is not supported; convert the original model instead", file.path(), scaling,
                                  given[scaling].dump()));
  if (file.tensors().contains("rope_freqs.weight")) {
    const auto heads = config.value("num_attention_heads", int64_t{1}), hidden = config.value("hidden_size", int64_t{0});
    const int64_t head_size = config.value("head_dim", heads > 0 ? hidden / heads : 0);
    if (Json scaling = rope_scaling_of(file, head_size, config.value("rope_theta", 10000.0)); !scaling.is_null())
      config["rope_scaling"] = std::move(scaling);
  }
  config["vocab_size"] = file.tensors().at("token_embd.weight").shape.at(0);
  config["tie_word_embeddings"] = tied;
  for (const char* key : {"bos", "eos"})
    if (const std::string from = fmt::format("tokenizer.ggml.{}_token_id", key); given.contains(from))
      config[fmt::format("{}_token_id", key)] = given[from];
  if (const char* from = "tokenizer.ggml.padding_token_id"; given.contains(from)) config["pad_token_id"] = given[from];
  if (architecture.settle) architecture.settle(file, config);
  return config;
}

at::Tensor changed(at::Tensor t, Change change, const Json& config) {
  if (change == Change::none || change == Change::experts) return t;
  if (change == Change::offset) return t - 1;
  if (change == Change::transpose) return t.t().contiguous();
  const auto heads = config.at("num_attention_heads").get<int64_t>();
  const int64_t parts = change == Change::keys ? config.value("num_key_value_heads", heads) : heads;
  if (parts < 1 || t.size(0) % (2 * parts) != 0)
    throw FormatError(fmt::format("{} rows cannot be those of {} heads", t.size(0), parts));
  return t.view({parts, t.size(0) / parts / 2, 2, -1}).transpose(1, 2).reshape({t.size(0), -1}).contiguous();
}

}  // namespace

int64_t convert_gguf(const std::string& path, const std::string& destination, const ConvertOptions& options) {
  const GgufFile file(path);
  const Architecture& architecture = architecture_of(file);
  if (!file.tensors().contains("token_embd.weight"))
    throw FormatError(path + ": there is no tensor \"token_embd.weight\"");
  const bool tied = architecture.name == "gpt2" || !file.tensors().contains("output.weight");
  const Json config = config_of(file, architecture, tied);
  const auto blocks = config.at(config.contains("n_layer") ? "n_layer" : "num_hidden_layers").get<int64_t>();
  const std::vector<Move> moves = moves_of(file, architecture, blocks, tied);
  const base::DType dtype = options.dtype.value_or(base::DType::f32);
  std::map<std::string, const Move*> by_name;
  std::vector<formats::TensorEntry> entries;
  for (const Move& move : moves) {
    layout::Shape shape = file.tensors().at(move.from).shape;
    if (move.part) shape.erase(shape.begin());
    if (move.change == Change::transpose) std::reverse(shape.begin(), shape.end());
    entries.push_back({move.to, dtype, shape});
    by_name[move.to] = &move;
  }
  build_folder(destination, [&](const std::string& folder) {
    formats::SafetensorsWriter writer(folder + "/model.safetensors", entries, {{"format", "pt"}});
    for (const formats::TensorEntry& entry : writer.order()) {
      const Move& move = *by_name.at(entry.name);
      std::vector<float> values = file.dequantize(move.from, move.part);
      layout::Shape shape = file.tensors().at(move.from).shape;
      if (move.part) shape.erase(shape.begin());
      at::Tensor tensor = at::from_blob(values.data(), shape, at::kFloat);
      tensor = changed(tensor, move.change, config).to(dist::scalar_type(dtype)).contiguous();
      writer.write(entry.name, {static_cast<const std::byte*>(tensor.data_ptr()), tensor.nbytes()});
    }
    writer.close();
    write_model_files(folder, config, "");
    text::write_tokenizer_files(text::read_gguf_tokenizer(file.metadata(), path), folder);
  });
  return std::ssize(moves);
}

}  // namespace trireme::checkpoint
