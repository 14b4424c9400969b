#include "trireme/nn/attention.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <limits>

#include "trireme/kernels/attention.h"
#include "trireme/nn/layers.h"

namespace trireme::nn {
namespace {

/// Which keys each query sees, bool, broadcasting to [batch, heads, queries, keys]; none: all of them.
at::Tensor visible(int64_t queries, int64_t keys, const AttentionOptions& options, const at::Tensor& keys_mask,
                   c10::Device device) {
  at::Tensor seen;
  if (options.causal && (queries > 1 || options.window > 0)) {
    const auto places = at::TensorOptions(at::kLong).device(device);
    at::Tensor key = at::arange(keys, places).unsqueeze(0);
    at::Tensor query = at::arange(keys - queries, keys, places).unsqueeze(1);
    seen = key.le(query);
    if (options.window > 0) seen = seen.logical_and(key.gt(query - options.window));
  }
  if (keys_mask.defined()) {
    at::Tensor by_row = keys_mask.to(at::kBool).unsqueeze(1).unsqueeze(1);
    seen = seen.defined() ? seen.logical_and(by_row) : by_row;
  }
  return seen;
}

/// All that the scores need beside q, k and v.
struct Scoring : torch::CustomClassHolder {
  AttentionOptions options;
  at::Tensor seen, keys, samples;
  bool drops = false, biased = false;
  uint64_t key = 0;
  int64_t position = 0;
};

at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& bias,
                  const Scoring& scoring) {
  // Scores of 16 bits would be off by more than the softmax can bear.
  if (const at::ScalarType type = q.scalar_type(); at::isReducedFloatingType(type)) {
    return attend(q.to(at::kFloat), k.to(at::kFloat), v.to(at::kFloat), bias, scoring).to(type);
  }
  const AttentionOptions& options = scoring.options;
  at::Tensor scores = at::matmul(q, k.transpose(-2, -1)).mul(options.scale);
  if (options.soft_cap > 0) scores = at::tanh(scores / options.soft_cap) * options.soft_cap;
  if (scoring.biased) scores = scores + bias;
  // Finite, so that a row without any key stays a number.
  if (scoring.seen.defined()) {
    scores = scores.masked_fill(scoring.seen.logical_not(), std::numeric_limits<float>::lowest());
  }
  at::Tensor weights = at::softmax(scores, -1);
  if (scoring.drops) {
    weights = dropout_by_coordinate(weights, options.dropout, scoring.key, scoring.samples, options.first_head,
                                    scoring.position);
  }
  return at::matmul(weights, v);
}

at::Tensor wide(const at::Tensor& t) { return at::isReducedFloatingType(t.scalar_type()) ? t.to(at::kFloat) : t; }

kernels::AttentionScores scores_of(const Scoring& scoring, const at::Tensor& bias) {
  const AttentionOptions& options = scoring.options;
  kernels::AttentionScores scores{.scale = options.scale,
                                  .soft_cap = options.soft_cap,
                                  .causal = options.causal,
                                  .window = options.window,
                                  .keys = scoring.keys};
  if (scoring.biased) scores.bias = bias;
  if (scoring.drops) {
    scores.dropout = options.dropout;
    scores.where = {.key = scoring.key,
                    .samples = scoring.samples,
                    .origin_b = options.first_head,
                    .origin_c = scoring.position,
                    .origin_d = 0};
  }
  return scores;
}

/// attend by blocks: keeps what it is given, its result and two numbers a query.
struct FusedAttention : torch::autograd::Function<FusedAttention> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const at::Tensor& bias,
                            const c10::intrusive_ptr<Scoring>& scoring) {
    kernels::AttentionResult result = kernels::attention(wide(q), wide(k), wide(v), scores_of(*scoring, bias));
    at::Tensor out = result.out.to(q.scalar_type());
    ctx->save_for_backward({q, k, v, bias, out, result.terms});
    ctx->saved_data["scoring"] = c10::IValue::make_capsule(scoring);
    return out;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    at::NoGradGuard no_grad;
    const auto scoring = c10::static_intrusive_pointer_cast<Scoring>(ctx->saved_data["scoring"].toCapsule());
    const torch::autograd::variable_list kept = ctx->get_saved_variables();
    const at::ScalarType type = kept[0].scalar_type();
    kernels::AttentionGradients made = kernels::attention_backward(
        wide(grads[0]), wide(kept[0]), wide(kept[1]), wide(kept[2]), {.out = wide(kept[4]), .terms = kept[5]},
        scores_of(*scoring, kept[3]), scoring->biased && ctx->needs_input_grad(3));
    return {made.q.to(type), made.k.to(type), made.v.to(type), made.bias, {}};
  }
};

/// Keeps what it is given alone and attends once more in the backward pass.
struct RecomputedAttention : torch::autograd::Function<RecomputedAttention> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const at::Tensor& bias,
                            const c10::intrusive_ptr<Scoring>& scoring) {
    ctx->save_for_backward({q, k, v, bias});
    ctx->saved_data["scoring"] = c10::IValue::make_capsule(scoring);
    return attend(q, k, v, bias, *scoring);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const auto scoring = c10::static_intrusive_pointer_cast<Scoring>(ctx->saved_data["scoring"].toCapsule());
    at::AutoGradMode records(true);
    torch::autograd::variable_list given = ctx->get_saved_variables(), wanted;
    const auto wants = [&](size_t i) { return (i < 3 || scoring->biased) && ctx->needs_input_grad(i); };
    for (size_t i = 0; i < given.size(); ++i) {
      if (!wants(i)) continue;
      given[i] = given[i].detach().requires_grad_(true);
      wanted.push_back(given[i]);
    }
    auto made = torch::autograd::grad({attend(given[0], given[1], given[2], given[3], *scoring)}, wanted, {grads[0]});
    torch::autograd::variable_list out(5);
    for (size_t i = 0, next = 0; i < given.size(); ++i)
      if (wants(i)) out[i] = made[next++];
    return out;
  }
};

}  // namespace

at::Tensor attention(const at::Tensor& q, const at::Tensor& key, const at::Tensor& value,
                     const AttentionOptions& options, const AttentionMask& mask, const Context& context) {
  at::Tensor k = key, v = value;
  if (context.cache && options.causal) std::tie(k, v) = context.cache->append(options.layer, key, value);
  const int64_t queries = q.size(2), keys = k.size(2);
  const bool drops = options.dropout > 0 && context.mode == Mode::train;
  // Of these PyTorch's kernel knows nothing, or it would fall back on plain mathematics.
  const bool scored = drops || options.soft_cap > 0 || (mask.bias.defined() && mask.bias.requires_grad());
  auto scoring = c10::make_intrusive<Scoring>();
  if (scored) {
    scoring->options = options;
    scoring->samples = context.batch.samples;
    scoring->drops = drops;
    scoring->key = context.random.key(options.layer, options.site);
    scoring->position = context.batch.position;
    scoring->biased = mask.bias.defined();
  }
  if (scored && context.fuse && options.dropout < 1) {
    if (mask.keys.defined()) scoring->keys = mask.keys.to(at::kBool).contiguous();
    at::Tensor bias = q;
    if (scoring->biased) {
      bias = mask.bias.to(q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
      if (bias.requires_grad()) bias = bias.expand({-1, -1, queries, keys});
      bias = bias.contiguous();
    }
    return FusedAttention::apply(q, k, v, bias, scoring);
  }
  if (const int64_t groups = q.size(1) / k.size(1); groups > 1) {
    k = k.repeat_interleave(groups, 1);
    v = v.repeat_interleave(groups, 1);
  }
  if (!scored) {
    // The kernel's own causal mask is the fast one.
    const bool causal = options.causal && queries > 1 && queries == keys && options.window == 0 &&
                        !mask.keys.defined() && !mask.bias.defined();
    at::Tensor added;
    if (!causal) added = visible(queries, keys, options, mask.keys, q.device());
    if (mask.bias.defined()) {
      at::Tensor bias = mask.bias.to(q.scalar_type());
      added = added.defined() ? bias.masked_fill(added.logical_not(), std::numeric_limits<float>::lowest()) : bias;
    }
    std::optional<at::Tensor> given;
    if (added.defined()) given = added;
    return at::scaled_dot_product_attention(q, k, v, given, 0.0, causal, options.scale);
  }
  scoring->seen = visible(queries, keys, options, mask.keys, q.device());
  // A function takes no undefined tensor: q stands in for a bias that is not there.
  if (context.recompute_attention) return RecomputedAttention::apply(q, k, v, scoring->biased ? mask.bias : q, scoring);
  return attend(q, k, v, mask.bias, *scoring);
}

at::Tensor split_heads(const at::Tensor& x, int64_t head_size) {
  return x.view({x.size(0), x.size(1), x.size(2) / head_size, head_size}).transpose(1, 2);
}

at::Tensor merge_heads(const at::Tensor& x) {
  return x.transpose(1, 2).reshape({x.size(0), x.size(2), x.size(1) * x.size(3)});
}

}  // namespace trireme::nn
