#include "trireme/models/blocks/decoder_parts.h"

#include <ATen/ATen.h>

#include <cmath>

#include "trireme/base/error.h"
#include "trireme/dist/device.h"
#include "trireme/dist/exchange_rows.h"
#include "trireme/dist/redistribute.h"
#include "trireme/nn/attention.h"

namespace trireme::models {

using layout::Init;
using layout::Sbp;
using nn::Builder;
using nn::Context;

namespace {

nn::Linear::Options linear(const DecoderConfig& c, bool bias, int64_t granularity = 1) {
  return {.orientation = c.orientation, .init = Init::normal(c.init), .bias = bias, .granularity = granularity};
}

// Weights onto the residual stream.
nn::Linear::Options onto_stream(const DecoderConfig& c, bool bias, int64_t granularity = 1) {
  nn::Linear::Options options = linear(c, bias, granularity);
  if (c.residual_init > 0) options.init = Init::normal(c.residual_init);
  return options;
}

std::vector<nn::ColumnGroup::Output> projections(const DecoderConfig& c) {
  if (c.interleaved_heads) return {{c.names.query, 3 * c.heads * c.head_size, 3 * c.head_size}};
  return {{c.names.query, c.heads * c.head_size, c.head_size},
          {c.names.key, c.kv_heads * c.head_size, c.head_size},
          {c.names.value, c.kv_heads * c.head_size, c.head_size}};
}

std::vector<nn::ColumnGroup::Output> mlp_inputs(const std::string& gate, const std::string& up, int64_t inner) {
  if (gate.empty()) return {{up, inner}};
  return {{gate, inner}, {up, inner}};
}

// Press et al., "Train Short, Test Long", 2022: a geometric series, for other numbers than powers of two filled up with
// every other member of the next longer one.
at::Tensor alibi_slopes(int64_t heads) {
  auto series = [](int64_t length, int64_t count, int64_t stride) {
    at::Tensor base = at::full({}, std::exp2(-8.0 / static_cast<double>(length)), at::kFloat);
    return at::pow(base, at::arange(1, 1 + stride * count, stride, at::kInt));
  };
  int64_t power = 1;
  while (2 * power <= heads) power *= 2;
  at::Tensor slopes = series(power, power, 1);
  return power == heads ? slopes : at::cat({slopes, series(2 * power, heads - power, 2)});
}

std::string expert_name(std::string name, int64_t index) { return name.replace(name.find('*'), 1, std::to_string(index)); }

}  // namespace

Attention::Attention(const Builder& b, const DecoderConfig& c, int64_t index)
    : config_(c),
      builder_(b),
      in_(b, c.hidden, projections(c), linear(c, c.query_bias)),
      out_(b / c.names.attention_out, c.heads * c.head_size, c.hidden, onto_stream(c, c.attention_out_bias, c.head_size)),
      scale_(c.scale) {
  if (c.scale_by_layer) scale_ /= static_cast<double>(index + 1);
  if (!c.windows.empty()) window_ = c.windows[index];
  if (!c.names.query_norm.empty()) {
    query_norm_.emplace(b / c.names.query_norm, c.head_size, c.norm_eps, c.norm_offset, Sbp::replicated());
    key_norm_.emplace(b / c.names.key_norm, c.head_size, c.norm_eps, c.norm_offset, Sbp::replicated());
  }
  if (!c.rotary.empty()) rotary_.emplace(window_ > 0 && c.rotary.size() > 1 ? c.rotary[1] : c.rotary[0]);
  if (c.alibi) {
    const int64_t local = c.heads / b.tp_ranks();
    slopes_ = alibi_slopes(c.heads).narrow(0, local * b.tp_rank(), local).to(b.device());
  }
}

at::Tensor Attention::forward(const at::Tensor& x, const Context& context) const {
  const int64_t size = config_.head_size;
  std::vector<at::Tensor> parts = in_.forward(x, context);
  at::Tensor q, k, v;  // [batch, local heads, seq, head size]
  if (config_.interleaved_heads) {
    at::Tensor heads = parts[0].view({parts[0].size(0), parts[0].size(1), -1, 3, size});
    q = heads.select(3, 0).transpose(1, 2);
    k = heads.select(3, 1).transpose(1, 2);
    v = heads.select(3, 2).transpose(1, 2);
  } else {
    q = nn::split_heads(parts[0], size);
    k = nn::split_heads(parts[1], size);
    v = nn::split_heads(parts[2], size);
  }
  if (query_norm_) q = query_norm_->forward(q, context);
  if (key_norm_) k = key_norm_->forward(k, context);
  if (rotary_) {
    q = rotary_->apply(q, context);
    k = rotary_->apply(k, context);
  }
  nn::AttentionMask mask;
  if (slopes_.defined()) {
    at::Tensor places = at::arange(context.batch.position + q.size(2), q.options().dtype(at::kLong));
    mask.bias = (slopes_.unsqueeze(1) * places).to(q.scalar_type()).view({1, -1, 1, places.size(0)});
  }
  const nn::AttentionOptions options{.scale = scale_,
                                     .causal = true,
                                     .window = window_,
                                     .soft_cap = config_.score_cap,
                                     .dropout = config_.attention_dropout,
                                     .layer = builder_.layer_index(),
                                     .site = kAttentionWeights,
                                     .first_head = q.size(1) * builder_.tp_rank()};
  return out_.forward(nn::merge_heads(nn::attention(q, k, v, options, mask, context)), context);
}

Mlp::Mlp(const Builder& b, const DecoderConfig& c)
    : activation_(nn::find_activation(c.activation)),
      gated_(!c.names.gate.empty()),
      in_(b, c.hidden, mlp_inputs(c.names.gate, c.names.up, c.inner), linear(c, c.mlp_bias)),
      out_(b / c.names.down, c.inner, c.hidden, onto_stream(c, c.mlp_bias)) {}

at::Tensor Mlp::forward(const at::Tensor& x, const Context& context) const {
  std::vector<at::Tensor> parts = in_.forward(x, context);
  return out_.forward(gated_ ? nn::gated(activation_, parts[0], parts[1], context) : activation_(parts[0]), context);
}

Experts::Experts(const Builder& b, const DecoderConfig& c)
    : options_(c.experts),
      tp_(&b.tp()),
      dp_(&b.dp()),
      stream_(b.stream()),
      activation_(nn::find_activation(c.activation)),
      router_((b / c.names.router).param("weight", {c.experts.count, c.hidden}, Init::normal(c.init), Sbp::replicated())) {
  const bool dealt = b.options().expert_axis == layout::Axis::dp && b.dp_ranks() > 1;
  const int ranks = dealt ? b.dp_ranks() : 1;
  for (int rank = 0; rank < ranks; ++rank) {
    held_.push_back(layout::split_range(c.experts.count, ranks, rank));
    const Builder home = dealt ? b.on_data_rank(rank) : b;
    for (int64_t e = held_.back().begin; e < held_.back().end; ++e) {
      in_.emplace_back(home, c.hidden,
                       mlp_inputs(expert_name(c.names.expert_gate, e), expert_name(c.names.expert_up, e), c.experts.inner),
                       linear(c, false));
      out_.emplace_back(home / expert_name(c.names.expert_down, e), c.experts.inner, c.hidden, onto_stream(c, false));
    }
  }
  own_ = held_[dealt ? static_cast<size_t>(b.dp_rank()) : 0];
  const nn::LowRank& adapter = b.options().low_rank;
  for (const std::string& name : {c.names.expert_gate, c.names.expert_up, c.names.expert_down})
    if (adapter.dropout > 0 && adapter.adapts((b / expert_name(name, 0)).scope()))
      throw base::ConfigError(fmt::format("model.adapter.lora_dropout is {}: an expert sees tokens without their places, by which "
                                          "dropout goes; set it to 0, or leave the experts out of target_modules", adapter.dropout));
}

Routed Experts::forward(const at::Tensor& x, const Context& context) const {
  at::Tensor whole = dist::redistribute(x, *tp_, stream_, Sbp::replicated(), context.seq);
  at::Tensor rows = whole.reshape({-1, whole.size(-1)});
  at::Tensor scores = nn::linear(rows, router_, nullptr, nn::Orientation::out_in, context);
  at::Tensor shares = at::softmax(scores.to(scores.scalar_type() == at::kDouble ? at::kDouble : at::kFloat), -1);
  auto [weights, chosen] = shares.topk(options_.chosen, -1);
  if (options_.normalize) weights = weights / weights.sum(-1, true);
  weights = weights.to(rows.scalar_type());

  // Choices by expert, those of one by token.
  const at::Tensor choices = chosen.flatten(), order = at::argsort(choices, true), place = at::floor_divide(order, options_.chosen);
  const at::Tensor counts = at::bincount(choices, {}, options_.count);
  at::Tensor out = apply(rows.index_select(0, place), counts, context) * weights.flatten().index_select(0, order).unsqueeze(1);
  at::Tensor sum = at::zeros_like(rows).index_add(0, place, out);
  Routed routed{.out = dist::redistribute(sum.view(whole.sizes()), *tp_, Sbp::partial(), stream_)};
  if (options_.balance > 0) {
    routed.chosen = counts.to(shares.scalar_type());
    routed.shares = dist::redistribute(shares.sum(0), *tp_, Sbp::replicated(), Sbp::invariant());
  }
  return routed;
}

at::Tensor Experts::apply(const at::Tensor& rows, const at::Tensor& counts, const Context& context) const {
  const auto numbers = [](const at::Tensor& t) {
    const at::Tensor host = t.contiguous();
    return std::vector<int64_t>(host.const_data_ptr<int64_t>(), host.const_data_ptr<int64_t>() + host.numel());
  };
  const at::Tensor here = dist::to_host(counts);
  if (held_.size() == 1) return run(rows, numbers(here), context);

  const auto ranks = std::ssize(held_);
  at::Tensor all = at::empty({ranks, options_.count}, here.options());
  dp_->all_gather(here.const_data_ptr(), all.mutable_data_ptr(), std::vector<int64_t>(held_.size(), options_.count), base::DType::i64).wait();
  std::vector<int64_t> send;
  for (layout::Range range : held_) send.push_back(here.slice(0, range.begin, range.end).sum().item<int64_t>());
  const at::Tensor mine = all.slice(1, own_.begin, own_.end);  // rows that come, by rank and expert
  const std::vector<int64_t> receive = numbers(mine.sum(1));
  const at::Tensor experts = at::repeat_interleave(at::arange(own_.size(), at::kLong).repeat({ranks}), mine.flatten());
  const at::Tensor by_expert = dist::to_device(at::argsort(experts, true), rows.device());

  const at::Tensor came = dist::exchange_rows(rows, *dp_, send, receive);
  const at::Tensor out = run(came.index_select(0, by_expert), numbers(mine.sum(0)), context);
  return dist::exchange_rows(out.index_select(0, at::argsort(by_expert)), *dp_, receive, send);
}

at::Tensor Experts::run(const at::Tensor& rows, const std::vector<int64_t>& counts, const Context& context) const {
  // Every expert runs, also on no row: each weight gets its contribution.
  const std::vector<at::Tensor> ins = rows.split_with_sizes(counts);
  std::vector<at::Tensor> outs;
  for (size_t i = 0; i < ins.size(); ++i) {
    const size_t e = static_cast<size_t>(own_.begin) + i;
    const std::vector<at::Tensor> parts = in_[e].local(ins[i], context);
    outs.push_back(out_[e].local(nn::gated(activation_, parts[0], parts[1], context), context));
  }
  return at::cat(outs);
}

}  // namespace trireme::models
