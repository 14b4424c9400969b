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
};

struct TensorRule {
  std::string from, to;  // {} is the block
  Change change = Change::none;
  bool optional = false;
};

struct KeyRule {
  const char* from;  // "{}.context_length" with the architecture
  const char* to;
  bool optional = false;
};

struct Architecture {
  const char* name;
  Json config;
  std::vector<KeyRule> keys;
  std::vector<TensorRule> tensors;
};

std::vector<TensorRule> llama_tensors(Change queries, Change keys, bool biased) {
  std::vector<TensorRule> rules = {{"token_embd.weight", "model.embed_tokens.weight"},
                                   {"output_norm.weight", "model.norm.weight"},
                                   {"output.weight", "lm_head.weight", Change::none, true},
                                   {"blk.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight"},
                                   {"blk.{}.ffn_norm.weight", "model.layers.{}.post_attention_layernorm.weight"},
                                   {"blk.{}.attn_q.weight", "model.layers.{}.self_attn.q_proj.weight", queries},
                                   {"blk.{}.attn_k.weight", "model.layers.{}.self_attn.k_proj.weight", keys},
                                   {"blk.{}.attn_v.weight", "model.layers.{}.self_attn.v_proj.weight"},
                                   {"blk.{}.attn_output.weight", "model.layers.{}.self_attn.o_proj.weight"},
                                   {"blk.{}.ffn_gate.weight", "model.layers.{}.mlp.gate_proj.weight"},
                                   {"blk.{}.ffn_up.weight", "model.layers.{}.mlp.up_proj.weight"},
                                   {"blk.{}.ffn_down.weight", "model.layers.{}.mlp.down_proj.weight"}};
  if (biased)
    for (const char* part : {"q", "k", "v"})
      rules.push_back({fmt::format("blk.{{}}.attn_{}.bias", part), fmt::format("model.layers.{{}}.self_attn.{}_proj.bias", part)});
  return rules;
}

const std::vector<KeyRule> kLlamaKeys = {{"context_length", "max_position_embeddings"},
                                         {"embedding_length", "hidden_size"},
                                         {"block_count", "num_hidden_layers"},
                                         {"feed_forward_length", "intermediate_size"},
                                         {"attention.head_count", "num_attention_heads"},
                                         {"attention.head_count_kv", "num_key_value_heads", true},
                                         {"attention.key_length", "head_dim", true},
                                         {"attention.layer_norm_rms_epsilon", "rms_norm_eps"},
                                         {"rope.freq_base", "rope_theta", true}};

const std::vector<Architecture>& architectures() {
  static const std::vector<Architecture> all = {
      {"llama",
       {{"model_type", "llama"}, {"architectures", {"LlamaForCausalLM"}}, {"hidden_act", "silu"}},
       kLlamaKeys,
       llama_tensors(Change::queries, Change::keys, false)},
      {"qwen2",
       {{"model_type", "qwen2"}, {"architectures", {"Qwen2ForCausalLM"}}, {"hidden_act", "silu"}},
       kLlamaKeys,
       llama_tensors(Change::none, Change::none, true)},
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
  std::string known;
  for (const Architecture& architecture : architectures()) {
    if (name == architecture.name) return architecture;
    known += (known.empty() ? "" : ", ") + std::string(architecture.name);
  }
  throw FormatError(fmt::format("{}: architecture \"{}\" is not supported; known are {}", file.path(), name, known));
}

std::string with(const std::string& pattern, int64_t block) {
  return fmt::format(fmt::runtime(pattern), block);
}

bool of_blocks(const TensorRule& rule) { return rule.from.find("{}") != std::string::npos; }

/// A tensor of the new folder and where it comes from.
struct Move {
  std::string from, to;
  Change change;
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
    moves.push_back({from, with(rule.to, block), rule.change});
  };
  for (const TensorRule& rule : architecture.tensors)
    for (int64_t block = 0; block < (of_blocks(rule) ? blocks : 1); ++block) add(rule, block);
  left.erase("rope_freqs.weight");  // which config.json says
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
  if (given.contains(scaling) && given[scaling] != "none")
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
  return config;
}

at::Tensor changed(at::Tensor t, Change change, const Json& config) {
  if (change == Change::none) return t;
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
  const bool tied = std::string_view(architecture.name) == "gpt2" || !file.tensors().contains("output.weight");
  const Json config = config_of(file, architecture, tied);
  const auto blocks = config.at(config.contains("n_layer") ? "n_layer" : "num_hidden_layers").get<int64_t>();
  const std::vector<Move> moves = moves_of(file, architecture, blocks, tied);
  const base::DType dtype = options.dtype.value_or(base::DType::f32);
  std::map<std::string, const Move*> by_name;
  std::vector<formats::TensorEntry> entries;
  for (const Move& move : moves) {
    layout::Shape shape = file.tensors().at(move.from).shape;
    if (move.change == Change::transpose) std::reverse(shape.begin(), shape.end());
    entries.push_back({move.to, dtype, shape});
    by_name[move.to] = &move;
  }
  build_folder(destination, [&](const std::string& folder) {
    formats::SafetensorsWriter writer(folder + "/model.safetensors", entries, {{"format", "pt"}});
    for (const formats::TensorEntry& entry : writer.order()) {
      const Move& move = *by_name.at(entry.name);
      std::vector<float> values = file.dequantize(move.from);
      at::Tensor tensor = at::from_blob(values.data(), file.tensors().at(move.from).shape, at::kFloat);
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
