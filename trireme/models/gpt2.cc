// GPT-2 (Radford et al., "Language models are unsupervised multitask learners", 2019) with Hugging Face's names,
// configuration keys and initial values. Weights of linear layers are stored [in, out].
#include <ATen/ATen.h>

#include <cmath>

#include "trireme/base/error.h"
#include "trireme/data/batch.h"
#include "trireme/dist/redistribute.h"
#include "trireme/models/family.h"
#include "trireme/nn/attention.h"
#include "trireme/nn/layers.h"
#include "trireme/nn/loss.h"

namespace trireme::models {
namespace {

using layout::Init;
using nn::Builder;
using nn::Context;
using nn::State;

struct Gpt2Config {
  int64_t vocab_size = 50257, n_positions = 1024, n_embd = 768, n_layer = 12, n_head = 12, n_inner = 0;
  double resid_pdrop = 0.1, embd_pdrop = 0.1, attn_pdrop = 0.1, layer_norm_epsilon = 1e-5, initializer_range = 0.02;
  std::string activation_function = "gelu_new";
  bool tie_word_embeddings = true, scale_attn_weights = true, scale_attn_by_inverse_layer_idx = false;

  int64_t head_size() const { return n_embd / n_head; }
  int64_t inner() const { return n_inner > 0 ? n_inner : 4 * n_embd; }
};

Gpt2Config read(const base::Json& tree) {
  Gpt2Config c;
  ConfigReader get(tree, "gpt2");
  get("vocab_size", c.vocab_size);
  get("n_positions", c.n_positions);
  get("n_embd", c.n_embd);
  get("n_layer", c.n_layer);
  get("n_head", c.n_head);
  get("n_inner", c.n_inner);
  get("resid_pdrop", c.resid_pdrop, 0, 0.999);
  get("embd_pdrop", c.embd_pdrop, 0, 0.999);
  get("attn_pdrop", c.attn_pdrop, 0, 0.999);
  get("layer_norm_epsilon", c.layer_norm_epsilon, 0, 1);
  get("initializer_range", c.initializer_range, 0, 10);
  get("activation_function", c.activation_function);
  get("tie_word_embeddings", c.tie_word_embeddings);
  get("scale_attn_weights", c.scale_attn_weights);
  get("scale_attn_by_inverse_layer_idx", c.scale_attn_by_inverse_layer_idx);
  bool cross_attention = false;
  get("add_cross_attention", cross_attention);
  get.ignore({"n_ctx", "reorder_and_upcast_attn", "summary_activation", "summary_first_dropout", "summary_proj_to_labels",
              "summary_type", "summary_use_proj"});
  get.finish();
  if (cross_attention) throw base::ConfigError("model.add_cross_attention: true is not supported for gpt2; set it to false");
  if (c.n_embd % c.n_head != 0) {
    throw base::ConfigError(fmt::format("model.n_head {} does not divide model.n_embd {}", c.n_head, c.n_embd));
  }
  nn::find_activation(c.activation_function);
  return c;
}

base::Json resolve(const base::Json& tree) {
  Gpt2Config c = read(tree);
  base::Json out = tree;
  out.erase("family");
  out.erase("pretrained");
  out["model_type"] = "gpt2";
  out["architectures"] = {"GPT2LMHeadModel"};
  out["vocab_size"] = c.vocab_size;
  out["n_positions"] = c.n_positions;
  out["n_embd"] = c.n_embd;
  out["n_layer"] = c.n_layer;
  out["n_head"] = c.n_head;
  out["n_inner"] = c.n_inner > 0 ? base::Json(c.n_inner) : base::Json(nullptr);
  out["resid_pdrop"] = c.resid_pdrop;
  out["embd_pdrop"] = c.embd_pdrop;
  out["attn_pdrop"] = c.attn_pdrop;
  out["layer_norm_epsilon"] = c.layer_norm_epsilon;
  out["initializer_range"] = c.initializer_range;
  out["activation_function"] = c.activation_function;
  out["tie_word_embeddings"] = c.tie_word_embeddings;
  out["scale_attn_weights"] = c.scale_attn_weights;
  out["scale_attn_by_inverse_layer_idx"] = c.scale_attn_by_inverse_layer_idx;
  // transformers' defaults point at GPT-2's own end token, which a smaller vocabulary lacks.
  for (const char* key : {"bos_token_id", "eos_token_id"})
    if (!out.contains(key)) out[key] = c.vocab_size > 50256 ? base::Json(50256) : base::Json(nullptr);
  return out;
}

enum Site { kEmbedding, kAttentionWeights, kAttentionOutput, kMlpOutput };

class Embeddings : public nn::Layer {
 public:
  Embeddings(const Builder& b, const Gpt2Config& c)
      : config_(c),
        builder_(b),
        tokens_(b / "wte", c.vocab_size, c.n_embd, Init::normal(c.initializer_range)),
        positions_((b / "wpe").param("weight", {c.n_positions, c.n_embd}, Init::normal(c.initializer_range),
                                     b.stream_param())) {}

  State forward(State, const Context& context) override {
    at::Tensor x = tokens_.embed(context.batch.tensors.at("input_ids"), context);
    layout::Range held = nn::stream_range(builder_, context.seq);
    at::Tensor places = at::arange(held.begin, held.end, at::kLong) + context.batch.position;
    x = x + nn::embedding(places, positions_, 0, context);
    return {{"hidden", nn::dropout(x, config_.embd_pdrop, builder_.layer_index(), kEmbedding, held.begin, context)}};
  }

  nn::StateSpec describe(const nn::StateSpec&, const nn::BatchShape& shape) const override {
    return {{"hidden", {shape.rows, nn::stream_range(builder_, shape.seq).size(), config_.n_embd}, builder_.options().dtype, true}};
  }

 private:
  Gpt2Config config_;
  Builder builder_;
  nn::VocabTable tokens_;
  nn::Param* positions_;
};

class Block : public nn::Layer {
 public:
  Block(const Builder& b, const Gpt2Config& c, int index)
      : config_(c),
        builder_(b),
        activation_(nn::find_activation(c.activation_function)),
        ln_1_(b / "ln_1", c.n_embd, c.layer_norm_epsilon),
        ln_2_(b / "ln_2", c.n_embd, c.layer_norm_epsilon),
        qkv_(b / "attn" / "c_attn", c.n_embd, 3 * c.n_embd, linear(c.initializer_range, c.head_size())),
        attention_out_(b / "attn" / "c_proj", c.n_embd, c.n_embd, linear(residual_range(c), c.head_size())),
        mlp_in_(b / "mlp" / "c_fc", c.n_embd, c.inner(), linear(c.initializer_range)),
        mlp_out_(b / "mlp" / "c_proj", c.inner(), c.n_embd, linear(residual_range(c))) {
    if (c.scale_attn_weights) scale_ /= std::sqrt(static_cast<double>(c.head_size()));
    if (c.scale_attn_by_inverse_layer_idx) scale_ /= index + 1;
  }

  State forward(State in, const Context& context) override {
    at::Tensor x = in.at("hidden");
    x = x + drop(attention(ln_1_.forward(x, context), context), kAttentionOutput, context);
    at::Tensor inner = activation_(mlp_in_.forward(ln_2_.forward(x, context), context));
    x = x + drop(mlp_out_.forward(inner, context), kMlpOutput, context);
    return {{"hidden", x}};
  }

  double flops(int64_t seq) const override {
    double weights = config_.n_embd * (4.0 * config_.n_embd + 2.0 * config_.inner());
    return seq * 2 * (weights + 2.0 * seq * config_.n_embd);
  }

 private:
  static nn::Linear::Options linear(double range, int64_t granularity = 1) {
    return {.orientation = nn::Orientation::in_out, .init = Init::normal(range), .bias = true, .granularity = granularity};
  }
  // Outputs onto the residual stream start smaller, as many as there are of them.
  static double residual_range(const Gpt2Config& c) { return c.initializer_range / std::sqrt(2.0 * c.n_layer); }

  at::Tensor attention(const at::Tensor& x, const Context& context) const {
    auto qkv = qkv_.forward(x, context).chunk(3, -1);  // each [batch, seq, local heads * head size]
    auto heads = [&](int part) { return nn::split_heads(qkv[part], config_.head_size()); };
    const int64_t local_heads = qkv[0].size(-1) / config_.head_size();
    at::Tensor out = nn::attention(heads(0), heads(1), heads(2),
                                   {.scale = scale_, .causal = true, .dropout = config_.attn_pdrop,
                                    .layer = builder_.layer_index(), .site = kAttentionWeights,
                                    .first_head = local_heads * builder_.tp().rank()},
                                   {}, context);
    return attention_out_.forward(nn::merge_heads(out), context);
  }

  at::Tensor drop(const at::Tensor& x, Site site, const Context& context) const {
    int64_t begin = nn::stream_range(builder_, context.seq).begin;
    return nn::dropout(x, config_.resid_pdrop, builder_.layer_index(), site, begin, context);
  }

  Gpt2Config config_;
  Builder builder_;
  nn::Activation activation_;
  double scale_ = 1;
  nn::LayerNorm ln_1_, ln_2_;
  nn::Linear qkv_, attention_out_, mlp_in_, mlp_out_;
};

/// Final norm and output projection; leaves the local part of the logits and where it begins.
class Head : public nn::Layer {
 public:
  Head(const Builder& b, const Gpt2Config& c)
      : config_(c),
        builder_(b),
        norm_(b / "transformer" / "ln_f", c.n_embd, c.layer_norm_epsilon),
        table_(c.tie_word_embeddings ? b / "transformer" / "wte" : b / "lm_head", c.vocab_size, c.n_embd,
               Init::normal(c.initializer_range)) {}

  State forward(State in, const Context& context) override {
    at::Tensor x = norm_.forward(in.at("hidden"), context);
    return {{"logits", table_.logits(x, context)}};
  }

  nn::StateSpec describe(const nn::StateSpec&, const nn::BatchShape& shape) const override {
    auto local = layout::split_range(config_.vocab_size, builder_.tp().size(), builder_.tp().rank());
    return {{"logits", {shape.rows, shape.seq, local.size()}, builder_.options().dtype, true}};
  }

  double flops(int64_t seq) const override { return 2.0 * seq * config_.vocab_size * config_.n_embd; }

 private:
  Gpt2Config config_;
  Builder builder_;
  nn::LayerNorm norm_;
  nn::VocabTable table_;
};

nn::ModelDef make(const base::Json& tree, int tp) {
  Gpt2Config c = read(tree);
  if (c.n_head % tp != 0) {
    throw base::ConfigError(fmt::format(
        "tensor_parallel_size {} does not divide model.n_head {}; choose a divisor of {}", tp, c.n_head, c.n_head));
  }
  nn::ModelDef def;
  def.vocab_size = c.vocab_size;
  def.max_positions = c.n_positions;
  def.policy = {{"*.wte", nn::Style::vocab},        {"lm_head", nn::Style::vocab},
                {"*.attn.c_attn", nn::Style::column, 3}, {"*.mlp.c_fc", nn::Style::column},
                {"*.attn.c_proj", nn::Style::row},  {"*.mlp.c_proj", nn::Style::row}};
  def.layers.push_back({"embeddings", false, [c](Builder& b) { return std::make_unique<Embeddings>(b / "transformer", c); }});
  for (int i = 0; i < c.n_layer; ++i) {
    def.layers.push_back({fmt::format("h.{}", i), true, [c, i](Builder& b) {
                            return std::make_unique<Block>(b / "transformer" / "h" / std::to_string(i), c, i);
                          }});
  }
  def.layers.push_back({"head", false, [c](Builder& b) { return std::make_unique<Head>(b, c); }});
  def.loss = [vocab = c.vocab_size](const State& out, const nn::Batch& batch, const comm::Comm& tp) {
    int64_t first = layout::split_range(vocab, tp.size(), tp.rank()).begin;
    return nn::cross_entropy_sum(out.at("logits"), batch.tensors.at("labels"), first, tp);
  };
  def.loss_weight = [](const nn::Batch& batch) { return nn::count_labels(batch.tensors.at("labels")); };
  return def;
}

}  // namespace

Family gpt2_family() { return {make, resolve}; }

}  // namespace trireme::models
