#include "trireme/models/blocks/decoder.h"

#include <ATen/ATen.h>

#include <cmath>

#include "trireme/base/error.h"
#include "trireme/dist/redistribute.h"
#include "trireme/models/blocks/decoder_parts.h"
#include "trireme/nn/loss.h"

namespace trireme::models {
namespace {

using layout::Init;
using nn::Builder;
using nn::Context;
using nn::State;

constexpr const char *kChosen = "experts_chosen", *kShares = "experts_shares";

// What a balance loss needs travels with the stream: how often each expert was chosen, and the sum of its shares.
void describe_balance(const DecoderConfig& c, const Builder& b, nn::StateSpec& spec) {
  if (c.experts.balance == 0) return;
  const base::DType type = b.options().dtype == base::DType::f64 ? base::DType::f64 : base::DType::f32;
  spec.push_back({kChosen, {c.experts.count}, type, false});
  spec.push_back({kShares, {c.experts.count}, type, true});
}

class Embeddings : public nn::Layer {
 public:
  Embeddings(const Builder& b, const DecoderConfig& c)
      : config_(c),
        builder_(b),
        tokens_(b / c.names.tokens, c.vocab_size, c.embedding_size, Init::normal(c.init)) {
    if (!c.names.positions.empty()) {
      positions_ = (b / c.names.positions).param("weight", {c.max_positions + c.position_offset, c.hidden},
                                                 Init::normal(c.init), b.stream_param());
    }
    if (!c.names.project_in.empty())
      project_.emplace(b / c.names.project_in, c.embedding_size, c.hidden, nn::Linear::Options{.init = Init::normal(c.init), .bias = false});
    if (!c.names.embedding_norm.empty()) norm_.emplace(b / c.names.embedding_norm, c.hidden, c.norm());
  }

  State forward(State, const Context& context) override {
    const layout::Range held = nn::stream_range(builder_, context.seq);
    at::Tensor x = tokens_.embed(context.batch.tensors.at("input_ids"), context, config_.padding);
    if (config_.embedding_scale != 1) x = x * at::scalar_tensor(config_.embedding_scale, x.options());
    if (project_) x = project_->forward(x, context);
    if (positions_) {
      at::Tensor places = at::arange(held.begin, held.end, at::kLong) + (context.batch.position + config_.position_offset);
      x = x + nn::embedding(places, positions_, 0, context);
    }
    if (norm_) x = norm_->forward(x, context);
    State out{{"hidden", nn::dropout(x, config_.embedding_dropout, builder_.layer_index(), kEmbedding, held.begin, context)}};
    if (config_.experts.balance > 0) {
      at::Tensor none = at::zeros({config_.experts.count}, x.options().dtype(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat));
      out.set(kChosen, none);
      out.set(kShares, none + context.anchor.to(none.scalar_type()) * 0);
    }
    return out;
  }

  nn::StateSpec describe(const nn::StateSpec&, const nn::BatchShape& shape) const override {
    nn::StateSpec spec{{"hidden", {shape.rows, nn::stream_range(builder_, shape.seq).size(), config_.hidden},
                        builder_.options().dtype, true}};
    describe_balance(config_, builder_, spec);
    return spec;
  }

 private:
  DecoderConfig config_;
  Builder builder_;
  nn::VocabTable tokens_;
  nn::Param* positions_ = nullptr;
  std::optional<nn::Linear> project_;
  std::optional<AnyNorm> norm_;
};

class Block : public nn::Layer {
 public:
  Block(const Builder& b, const DecoderConfig& c, int64_t index)
      : config_(c), builder_(b), attention_(b, c, index) {
    const DecoderNames& n = c.names;
    attention_norm_.emplace(b / n.attention_norm, c.hidden, c.norm());
    if (!n.mlp_norm.empty()) mlp_norm_.emplace(b / n.mlp_norm, c.hidden, c.norm());
    if (!n.attention_out_norm.empty()) attention_out_norm_.emplace(b / n.attention_out_norm, c.hidden, c.norm());
    if (!n.mlp_out_norm.empty()) mlp_out_norm_.emplace(b / n.mlp_out_norm, c.hidden, c.norm());
    if (c.has_experts(index))
      experts_.emplace(b, c);
    else
      mlp_.emplace(b, c);
  }

  State forward(State in, const Context& context) override {
    at::Tensor x = in.at("hidden");
    at::Tensor normed = config_.post_norm ? x : attention_norm_->forward(x, context);
    at::Tensor attended = with(attention_out_norm_, attention_.forward(normed, context), context);
    if (config_.parallel) {
      at::Tensor other = mlp_norm_ ? mlp_norm_->forward(x, context) : normed;
      x = add(add(x, attended, kAttentionOutput, context), mlp(other, in, context), kMlpOutput, context);
    } else {
      x = add(config_.residual_of_norm ? normed : x, attended, kAttentionOutput, context);
      if (config_.post_norm) x = attention_norm_->forward(x, context);
      at::Tensor inner = config_.post_norm ? x : mlp_norm_->forward(x, context);
      at::Tensor base = config_.residual_of_norm ? inner : x;
      x = add(base, with(mlp_out_norm_, mlp(inner, in, context), context), kMlpOutput, context);
      if (config_.post_norm) x = mlp_norm_->forward(x, context);
    }
    in.set("hidden", x);
    return in;
  }

  double flops(int64_t seq) const override {
    const DecoderConfig& c = config_;
    const double attention = static_cast<double>(c.head_size) * static_cast<double>(c.hidden * (2 * c.heads + 2 * c.kv_heads) + 2 * seq * c.heads);
    const double gated = c.names.gate.empty() ? 2 : 3;
    const double mlp = experts_ ? 3.0 * static_cast<double>(c.hidden * c.experts.inner * c.experts.chosen)
                                : gated * static_cast<double>(c.hidden * c.inner);
    return static_cast<double>(seq) * 2 * (attention + mlp);
  }

 private:
  static at::Tensor with(const std::optional<AnyNorm>& norm, const at::Tensor& x, const Context& context) {
    return norm ? norm->forward(x, context) : x;
  }

  at::Tensor mlp(const at::Tensor& x, State& state, const Context& context) const {
    if (!experts_) return mlp_->forward(x, context);
    Routed routed = experts_->forward(x, context);
    if (config_.experts.balance > 0) {
      state.set(kChosen, state.at(kChosen) + routed.chosen);
      state.set(kShares, state.at(kShares) + routed.shares);
    }
    return routed.out;
  }

  at::Tensor add(const at::Tensor& x, const at::Tensor& branch, Site site, const Context& context) const {
    const int64_t begin = nn::stream_range(builder_, context.seq).begin;
    return nn::add_dropped(x, branch, config_.residual_dropout, builder_.layer_index(), site, begin, context);
  }

  DecoderConfig config_;
  Builder builder_;
  Attention attention_;
  std::optional<AnyNorm> attention_norm_, mlp_norm_, attention_out_norm_, mlp_out_norm_;
  std::optional<Mlp> mlp_;
  std::optional<Experts> experts_;
};

nn::Policy policy_of(const DecoderNames& n) {
  nn::Policy policy{{n.model + "." + n.tokens, nn::Style::vocab}, {n.head, nn::Style::vocab}};
  for (const std::string& name : {n.query, n.key, n.value, n.gate, n.up, n.expert_gate, n.expert_up})
    if (!name.empty()) policy.push_back({"*." + name, nn::Style::column});
  for (const std::string& name : {n.attention_out, n.down, n.expert_down})
    if (!name.empty()) policy.push_back({"*." + name, nn::Style::row});
  return policy;
}

// Fedus et al., "Switch Transformers", 2021, eq. 4 to 6, over all layers together.
at::Tensor balance_loss(const DecoderConfig& c, const State& out, const nn::Batch& batch) {
  int64_t layers = 0;
  for (int64_t i = 0; i < c.layers; ++i) layers += c.has_experts(i);
  const auto tokens = static_cast<double>(layers * batch.rows * batch.seq);
  at::Tensor sum = (out.at(kChosen) * out.at(kShares)).sum() / (tokens * tokens);
  return sum.to(at::kDouble) * (static_cast<double>(c.experts.count) * c.experts.balance);
}

HeadSpec head_of(const DecoderConfig& c, HeadKind kind, const base::Json& tree) {
  const std::string model = c.names.model + ".";
  HeadSpec head{.kind = kind,
                .hidden = c.hidden,
                .norm = c.names.final_norm.empty() ? "" : model + c.names.final_norm,
                .norm_kind = c.norm(),
                .projection = c.names.project_out.empty() ? "" : model + c.names.project_out,
                .projected = c.embedding_size,
                .deviation = c.init,
                .problem = tree.value("problem_type", std::string())};
  add_scores(head,
             {.vocab = {.table = c.tied ? model + c.names.tokens : c.names.head,
                        .vocab = c.vocab_size,
                        .features = c.embedding_size,
                        .bias = c.head_bias ? c.names.head + ".bias" : "",
                        .cap = c.logit_cap,
                        .deviation = c.init},
              .classes = {.pool = RowPool::before_end, .end = c.row_end, .out = "score", .bias = false},
              .token_dropout = c.classifier_dropout,
              .token_out = c.names.token_classes},
             labels_of(tree), tree);
  return head;
}

// transformers reads a row at its last token that is no padding, so it must know what padding is.
void read_row_end(ConfigReader& get, DecoderConfig& c) {
  c.row_end = c.padding;
  if (get.value_of("pad_token_id")) get("pad_token_id", c.row_end, -1);
  if (c.row_end < 0)
    throw base::ConfigError(
        "model.pad_token_id is not given, but model.head sequence_classification reads each row at its last token that is no "
        "padding: give the token that rows are filled up with, for example model.pad_token_id=0");
}

}  // namespace

void check_decoder(const DecoderConfig& c, int tp) {
  nn::find_activation(c.activation);
  if (c.heads % c.kv_heads != 0) {
    throw base::ConfigError(fmt::format("model.{} {} cannot share model.num_key_value_heads {}, which must divide it", c.heads_key,
                                        c.heads, c.kv_heads));
  }
  if (c.heads % tp != 0) {
    throw base::ConfigError(fmt::format(
        "tensor_parallel_size {} does not divide model.{} {}; choose a divisor of {}", tp, c.heads_key, c.heads, c.heads));
  }
  if (c.kv_heads % tp != 0 && tp % c.kv_heads != 0) {
    throw base::ConfigError(fmt::format(
        "tensor_parallel_size {} and model.num_key_value_heads {}: one must divide the other", tp, c.kv_heads));
  }
  if (c.experts.count > 0 && c.experts.chosen > c.experts.count)
    throw base::ConfigError(fmt::format("{} of {} experts cannot be chosen for a token", c.experts.chosen, c.experts.count));
}

int64_t head_size_of(const DecoderConfig& c) {
  if (c.hidden % c.heads != 0) {
    throw base::ConfigError(
        fmt::format("model.{} {} does not divide model.{} {}", c.heads_key, c.heads, c.hidden_key, c.hidden));
  }
  return c.hidden / c.heads;
}

void read_padding(ConfigReader& get, DecoderConfig& c) {
  const char* key = "pad_token_id";
  if (const base::Json* given = get.value_of(key)) {
    get(key, c.padding, -1);
    if (c.padding >= c.vocab_size) get.refuse(key, *given, fmt::format("a token of the vocabulary of {}", c.vocab_size));
  } else if (get.has(key) || c.padding >= c.vocab_size) {
    c.padding = -1;
  }
  get.note(key, c.padding < 0 ? base::Json() : base::Json(c.padding));
}

nn::ModelDef decoder(const DecoderConfig& given, HeadKind kind, const base::Json& tree) {
  DecoderConfig c = given;
  if (c.embedding_size == 0) c.embedding_size = c.hidden;
  if (kind != HeadKind::causal_lm) c.experts.balance = 0;
  nn::ModelDef def;
  def.vocab_size = c.vocab_size;
  def.max_positions = c.max_positions;
  def.experts = c.experts.count;
  def.policy = policy_of(c.names);
  def.trains_on = {{"input_ids"}};
  def.layers.push_back({"embeddings", false, [c](Builder& b) { return std::make_unique<Embeddings>(b / c.names.model, c); }, false, {"input_ids"}});
  for (int64_t i = 0; i < c.layers; ++i) {
    def.layers.push_back({fmt::format("{}.{}", c.names.blocks, i), true, [c, i](Builder& b) {
                            return std::make_unique<Block>(b / c.names.model / c.names.blocks / std::to_string(i), c, i);
                          }});
  }
  add_head(head_of(c, kind, tree), def);
  if (c.experts.balance > 0) {
    auto balanced = [c, words = def.loss](const State& out, const nn::Batch& batch, const comm::Comm& tp) {
      const auto counted = static_cast<double>(nn::count_labels(batch.tensors.at("labels")));
      return words(out, batch, tp) + balance_loss(c, out, batch) * counted;
    };
    def.loss = {balanced, true};
  }
  return def;
}

Family decoder_family(const DecoderFamily& family, DecoderConfig (*read)(ConfigReader& get)) {
  std::vector<HeadKind> kinds = {HeadKind::causal_lm, HeadKind::sequence_classification};
  if (family.token_classes) kinds.push_back(HeadKind::token_classification);
  if (family.answers) kinds.push_back(HeadKind::question_answering);
  kinds.push_back(HeadKind::embedding);
  auto kind_of = [=](const base::Json& tree) { return models::head_of(tree, family.name, kinds, HeadKind::causal_lm); };
  auto read_whole = [=](ConfigReader& get, HeadKind kind) {
    DecoderConfig config = read(get);
    if (kind == HeadKind::token_classification) get("classifier_dropout", config.classifier_dropout, 0, 0.999);
    if (kind == HeadKind::sequence_classification) read_row_end(get, config);
    get.ignore({"head", "pooling", "normalize"});
    get.finish();
    return config;
  };
  const base::Json nothing = base::Json::object();
  ConfigReader defaults(nothing, family.name);
  const DecoderConfig usual = read_whole(defaults, HeadKind::causal_lm);
  const bool grouped = usual.rms;  // Llama's kin
  const std::string causal = family.causal_class.empty() ? family.class_name + suffix_of(HeadKind::causal_lm) : family.causal_class;
  Support support{.architecture = causal,
                  .heads = kinds,
                  .tensor = fmt::format("divides {}{}", usual.heads_key, grouped ? "; num_key_value_heads or a multiple" : ""),
                  .ties = usual.tied ? "head and tokens" : "on request"};
  return {.make =
              [=](const base::Json& tree, int tp) {
                ConfigReader get(tree, family.name);
                const HeadKind kind = kind_of(tree);
                DecoderConfig config = read_whole(get, kind);
                check_decoder(config, tp);
                return decoder(config, kind, tree);
              },
          .resolve =
              [=](const base::Json& tree) {
                ConfigReader get(tree, family.name);
                const HeadKind kind = kind_of(tree);
                check_decoder(read_whole(get, kind), 1);
                base::Json out = get.resolved(causal);
                if (kind != HeadKind::causal_lm) write_head(out, family.class_name, kind, labels_of(tree));
                out.erase("head");
                return out;
              },
          .support = support};
}

}  // namespace trireme::models
