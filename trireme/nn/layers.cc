#include "trireme/nn/layers.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>

#include "trireme/base/error.h"
#include "trireme/base/hash.h"
#include "trireme/dist/redistribute.h"
#include "trireme/kernels/dropout.h"
#include "trireme/kernels/gate.h"
#include "trireme/kernels/gelu.h"
#include "trireme/kernels/rms_norm.h"
#include "trireme/nn/loss.h"

namespace trireme::nn {

using layout::Range;
using layout::Sbp;

namespace {

at::ScalarType at_least_fp32(const at::Tensor& t) {
  return at::isReducedFloatingType(t.scalar_type()) ? at::kFloat : t.scalar_type();
}

}  // namespace

Range stream_range(const Builder& builder, int64_t seq) {
  if (!builder.stream().is_split()) return {0, seq};
  return layout::split_range(seq, builder.tp().size(), builder.tp().rank());
}

Linear::Linear(const Builder& builder, int64_t in, int64_t out, const Options& options)
    : tp_(&builder.tp()),
      stream_(builder.stream()),
      style_(builder.rule().style),
      orientation_(options.orientation),
      rows_(options.rows) {
  bool in_out = orientation_ == Orientation::in_out;
  int out_dim = in_out ? 1 : 0;
  int blocks = builder.rule().blocks;
  std::vector<int64_t> fused = options.fused;
  if (blocks > 1) fused.assign(blocks, out / blocks);
  Sbp weight_place = builder.stream_param(), bias_place = builder.stream_param();
  if (style_ == Style::column || style_ == Style::vocab) {
    weight_place = Sbp::split(out_dim);
    bias_place = Sbp::split(0);
    if (!rows_.empty()) {
      base::check(!in_out, "{}: outputs of a whole [in, out] weight", builder.scope());
      weight_place = bias_place = Sbp::replicated();
    }
  } else if (style_ == Style::row) {
    weight_place = Sbp::split(1 - out_dim);
    fused.clear();
  }
  layout::Shape shape = in_out ? layout::Shape{in, out} : layout::Shape{out, in};
  weight_ = builder.param("weight", shape, options.init, weight_place, fused, options.granularity);
  if (options.bias) {
    bias_ =
        builder.param("bias", {out}, layout::Init::zeros(), bias_place, fused, options.granularity);
  }
  const LowRank& adapter = builder.options().low_rank;
  if (!adapter.adapts(builder.scope())) return;
  // One of the two is split as the weight is; of the other each rank's gradient is a part of the sum.
  const bool column = style_ == Style::column || style_ == Style::vocab, row = style_ == Style::row;
  const Sbp whole = style_ == Style::replicate ? builder.stream_param() : Sbp::replicated();
  const double bound = 1 / std::sqrt(static_cast<double>(in));
  const int64_t rank = adapter.rank_of(builder.scope()), granularity = column ? options.granularity : 1;
  const Sbp outputs = column && rows_.empty() ? Sbp::split(0) : whole;
  if (!column) fused.clear();
  Adapter own{.scale = adapter.scale_of(builder.scope()),
              .dropout = adapter.dropout,
              .layer = builder.layer_index(),
              .site = base::hash_text(builder.scope())};
  own.in = (builder / "lora_A").param("weight", {rank, in}, layout::Init::uniform(bound), row ? Sbp::split(1) : whole, {},
                                      row ? options.granularity : 1);
  own.out = (builder / "lora_B").param("weight", {out, rank}, layout::Init::zeros(), outputs, fused, granularity);
  if (adapter.magnitudes)
    own.magnitude = builder.param("lora_magnitude_vector", {out}, layout::Init::lengths(out_dim), outputs, fused, granularity);
  adapter_ = std::make_shared<const Adapter>(own);
}

at::Tensor Linear::forward(const at::Tensor& x, const Context& context) const {
  if (style_ == Style::replicate) return local(x, context);
  if (style_ != Style::row) {
    return local(dist::redistribute(x, *tp_, stream_, Sbp::replicated(), context.seq), context);
  }
  at::Tensor out = local(x, context);
  if (tp_->size() == 1) return out;
  out = dist::redistribute(out, *tp_, Sbp::partial(), stream_);
  return bias_ ? add_bias(out, bias_, context) : out;
}

at::Tensor Linear::local(const at::Tensor& x, const Context& context) const {
  // The bias of a row weight belongs to the sum, not to each part of it.
  Param* bias = style_ == Style::row && tp_->size() > 1 ? nullptr : bias_;
  if (!adapter_) return product(x, weight_, bias, orientation_, context);
  const at::Tensor given = dropped(x, context);
  const at::Tensor inner = linear(given, adapter_->in, nullptr, Orientation::out_in, context),
                   difference = adapter_->scale * product(inner, adapter_->out, nullptr, Orientation::out_in, context);
  if (!adapter_->magnitude) return product(x, weight_, bias, orientation_, context) + difference;
  // What scales each output; the lengths count as constants (section 4.3 of the paper).
  const at::Tensor factor = (select_rows(use(adapter_->magnitude, context), rows_) / lengths()).to(x.scalar_type());
  at::Tensor out;
  if (given.is_same(x)) {
    out = factor * (product(x, weight_, nullptr, orientation_, context) + difference);
  } else {  // as PEFT has it: what the scale adds is of the dropped input
    const std::vector<at::Tensor> of = product(at::cat({x, given}), weight_, nullptr, orientation_, context).chunk(2);
    out = of[0] + (factor - 1) * of[1] + factor * difference;
  }
  return bias ? out + select_rows(use(bias, context), rows_) : out;
}

at::Tensor Linear::product(const at::Tensor& x, Param* weight, Param* bias, Orientation orientation,
                           const Context& context) const {
  return rows_.empty() ? linear(x, weight, bias, orientation, context) : linear_rows(x, weight, bias, rows_, context);
}

/// The input of the adapter: x in eval mode, else by the coordinates of its sample, place and feature.
at::Tensor Linear::dropped(const at::Tensor& x, const Context& context) const {
  if (adapter_->dropout == 0 || context.mode == Mode::eval) return x;
  const int64_t samples = context.batch.samples.numel();
  base::check(x.size(0) % samples == 0, "an adapter's dropout: {} rows of {} samples", x.size(0), samples);
  const bool part = style_ == Style::replicate && stream_.is_split();
  const int64_t first = part ? layout::split_range(context.seq, tp_->size(), tp_->rank()).begin : 0;
  const std::vector<Range>& features = adapter_->in->slice.dims[1];
  return dropout_by_coordinate(x.reshape({samples, -1, x.size(-1)}), adapter_->dropout,
                               context.random.key(adapter_->layer, adapter_->site), context.batch.samples, 0, first,
                               features.empty() ? 0 : features[0].begin)
      .view(x.sizes());
}

/// Of the rows of W + scale * B A that this rank has outputs of: [outputs].
at::Tensor Linear::lengths() const {
  at::NoGradGuard no_grad;
  const at::Tensor weight = orientation_ == Orientation::in_out ? weight_->data.t() : select_rows(weight_->data, rows_);
  const at::Tensor sum = at::addmm(weight, select_rows(adapter_->out->data, rows_), adapter_->in->data, 1, adapter_->scale);
  const at::Tensor squares = sum.to(at_least_fp32(sum)).square_().sum(1);
  return (style_ == Style::row ? dist::redistribute(squares, *tp_, Sbp::partial(), Sbp::invariant()) : squares).sqrt();
}

ColumnGroup::ColumnGroup(const Builder& builder, int64_t in, const std::vector<Output>& outputs,
                         Linear::Options options)
    : tp_(&builder.tp()), stream_(builder.stream()) {
  const int ranks = builder.tp_ranks(), rank = builder.tp_rank();
  for (size_t first = 0, next = 0; first < outputs.size(); first = next) {
    const Output& output = outputs[first];
    base::check((builder / output.module).rule().style == Style::column, "{} is no column weight", output.module);
    bool whole = false;
    for (next = first; next < outputs.size() && outputs[next].module == output.module; ++next)
      whole |= outputs[next].features / outputs[next].granularity < ranks;
    options.fused.clear();
    options.rows.clear();
    std::vector<int64_t>& sizes = sizes_.emplace_back();
    int64_t features = 0;
    for (size_t i = first; i < next; ++i) {
      const int64_t size = outputs[i].granularity, granules = outputs[i].features / size;
      Range used = granules < ranks ? Range{rank * granules / ranks, rank * granules / ranks + 1}
                                    : layout::split_range(granules, ranks, rank);
      base::check(granules >= ranks || ranks % granules == 0, "{} granules for {} tensor ranks", granules, ranks);
      if (whole) options.rows.push_back({features + used.begin * size, features + used.end * size});
      options.fused.push_back(outputs[i].features);
      sizes.push_back(used.size() * size);
      features += outputs[i].features;
    }
    options.granularity = output.granularity;
    if (options.fused.size() == 1 || whole) options.fused.clear();
    linears_.emplace_back(builder / output.module, in, features, options);
  }
}

std::vector<at::Tensor> ColumnGroup::forward(const at::Tensor& x, const Context& context) const {
  return local(dist::redistribute(x, *tp_, stream_, Sbp::replicated(), context.seq), context);
}

std::vector<at::Tensor> ColumnGroup::local(const at::Tensor& whole, const Context& context) const {
  std::vector<at::Tensor> out;
  for (size_t i = 0; i < linears_.size(); ++i) {
    at::Tensor y = linears_[i].local(whole, context);
    if (sizes_[i].size() == 1) {
      out.push_back(y);
      continue;
    }
    for (at::Tensor& part : y.split_with_sizes(sizes_[i], -1)) out.push_back(std::move(part));
  }
  return out;
}

LayerNorm::LayerNorm(const Builder& builder, int64_t features, double eps)
    : eps_(eps),
      weight_(builder.param("weight", {features}, layout::Init::ones(), builder.stream_param())),
      bias_(builder.param("bias", {features}, layout::Init::zeros(), builder.stream_param())) {}

RmsNorm::RmsNorm(const Builder& builder, int64_t features, double eps, double offset, Sbp place)
    : eps_(eps),
      offset_(offset),
      weight_(builder.param("weight", {features}, offset == 0 ? layout::Init::ones() : layout::Init::zeros(), place)) {}

namespace {

// Keeps its input and a number a row; the rest is made again.
struct Rms : torch::autograd::Function<Rms> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            double eps, double offset, bool fuse) {
    ctx->saved_data["fuse"] = fuse;
    if (fuse) {
      const at::Tensor whole = x.contiguous();
      auto [y, inverse] = kernels::rms_norm(whole, weight, eps, offset);
      ctx->save_for_backward({whole, weight, inverse});
      ctx->saved_data["offset"] = offset;
      return y;
    }
    at::Tensor rows = x.to(at_least_fp32(x));
    at::Tensor inverse = rows.square().mean(-1, true).add_(eps).rsqrt_();
    ctx->save_for_backward({x, weight, inverse});
    ctx->saved_data["offset"] = offset;
    return (rows * inverse).mul_(weight.to(rows.scalar_type()) + offset).to(x.scalar_type());
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    at::NoGradGuard no_grad;
    const auto saved = ctx->get_saved_variables();
    if (ctx->saved_data["fuse"].toBool()) {
      auto [of_x, of_weight] = kernels::rms_norm_backward(grads[0].contiguous(), saved[0], saved[1], saved[2],
                                                          ctx->saved_data["offset"].toDouble());
      return {of_x, of_weight.to(saved[1].scalar_type()), {}, {}, {}};
    }
    const at::ScalarType wide = at_least_fp32(saved[0]);
    at::Tensor normal = saved[0].to(wide) * saved[2], gradient = grads[0].to(wide);
    at::Tensor products = gradient * normal;
    at::Tensor of_weight = products.flatten(0, -2).sum(0).to(saved[1].scalar_type());
    at::Tensor scale = saved[1].to(wide) + ctx->saved_data["offset"].toDouble();
    at::Tensor means = products.mul_(scale).mean(-1, true);
    at::Tensor of_rows = (gradient * scale).sub_(normal.mul_(means)).mul_(saved[2]);
    return {of_rows.to(saved[0].scalar_type()), of_weight, {}, {}, {}};
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, double offset, const Context& context) {
  return Rms::apply(x, weight, eps, offset, context.fuse);
}

at::Tensor RmsNorm::forward(const at::Tensor& x, const Context& context) const {
  return rms_norm(x, use(weight_, context), eps_, offset_, context);
}

VocabTable::VocabTable(const Builder& builder, int64_t vocab, int64_t features, layout::Init init)
    : tp_(&builder.tp()), stream_(builder.stream()), split_(builder.rule().style == Style::vocab) {
  weight_ =
      builder.param("weight", {vocab, features}, init, split_ ? Sbp::split(0) : Sbp::replicated());
}

int64_t VocabTable::first() const {
  return weight_->slice.dims[0].empty() ? 0 : weight_->slice.dims[0][0].begin;
}

at::Tensor VocabTable::embed(const at::Tensor& ids, const Context& context, int64_t padding) const {
  at::Tensor x = embedding(ids, weight_, first(), context, padding);
  return dist::redistribute(x, *tp_, split_ ? Sbp::partial() : Sbp::replicated(), stream_);
}

at::Tensor VocabTable::logits(const at::Tensor& x, const Context& context, Param* bias) const {
  at::Tensor whole = dist::redistribute(x, *tp_, stream_, Sbp::replicated(), context.seq);
  return linear(whole, weight_, bias, Orientation::out_in, context);
}

at::Tensor VocabTable::loss(const at::Tensor& x, const at::Tensor& labels, const Context& context, Param* bias,
                            double soft_cap) const {
  at::Tensor whole = dist::redistribute(x, *tp_, stream_, Sbp::replicated(), context.seq);
  return head_cross_entropy_sum(whole, {.table = weight_, .bias = bias, .soft_cap = soft_cap, .first = first()}, labels,
                                *tp_, context);
}

namespace {

struct Dropout : torch::autograd::Function<Dropout> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x, double p,
                            uint64_t key, const at::Tensor& samples, int64_t b, int64_t c, int64_t d) {
    ctx->save_for_backward({samples});
    ctx->saved_data["p"] = p;
    ctx->saved_data["place"] = std::vector<int64_t>{static_cast<int64_t>(key), b, c, d};
    return apply_mask(x, p, key, samples, b, c, d);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    auto place = ctx->saved_data["place"].toIntVector();
    at::NoGradGuard no_grad;
    return {apply_mask(grads[0], ctx->saved_data["p"].toDouble(), static_cast<uint64_t>(place[0]),
                       ctx->get_saved_variables()[0], place[1], place[2], place[3]),
            {},
            {},
            {},
            {},
            {},
            {}};
  }
  static at::Tensor apply_mask(const at::Tensor& x, double p, uint64_t key, const at::Tensor& samples, int64_t b,
                               int64_t c, int64_t d, const at::Tensor& added = {}) {
    at::Tensor in = x.contiguous(), out = at::empty_like(in);
    kernels::dropout(in, out, p, {.key = key, .samples = samples, .origin_b = b, .origin_c = c, .origin_d = d},
                     added.defined() ? added.contiguous() : added);
    return out;
  }
};

struct AddDropped : torch::autograd::Function<AddDropped> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x, const at::Tensor& branch, double p,
                            uint64_t key, const at::Tensor& samples, int64_t c) {
    ctx->save_for_backward({samples});
    ctx->saved_data["p"] = p;
    ctx->saved_data["place"] = std::vector<int64_t>{static_cast<int64_t>(key), c};
    return Dropout::apply_mask(branch, p, key, samples, 0, c, 0, x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    auto place = ctx->saved_data["place"].toIntVector();
    at::NoGradGuard no_grad;
    return {grads[0],
            Dropout::apply_mask(grads[0], ctx->saved_data["p"].toDouble(), static_cast<uint64_t>(place[0]),
                                ctx->get_saved_variables()[0], 0, place[1], 0),
            {},
            {},
            {},
            {}};
  }
};

}  // namespace

at::Tensor dropout_by_coordinate(const at::Tensor& x, double p, uint64_t key, const at::Tensor& samples, int64_t b,
                                 int64_t c, int64_t d) {
  return Dropout::apply(x, p, key, samples, b, c, d);
}

at::Tensor dropout(const at::Tensor& x, double p, int layer, int site, int64_t seq_begin,
                   const Context& context, int64_t first_feature) {
  if (p == 0 || context.mode == Mode::eval) return x;
  return Dropout::apply(x, p, context.random.key(layer, site), context.batch.samples, 0,
                        context.batch.position + seq_begin, first_feature);
}

at::Tensor add_dropped(const at::Tensor& x, const at::Tensor& branch, double p, int layer, int site, int64_t seq_begin,
                       const Context& context) {
  if (p == 0 || context.mode == Mode::eval) return x + branch;
  if (!context.fuse) return x + dropout(branch, p, layer, site, seq_begin, context);
  return AddDropped::apply(x, branch, p, context.random.key(layer, site), context.batch.samples,
                           context.batch.position + seq_begin);
}

namespace {

struct GeluTanh : torch::autograd::Function<GeluTanh> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x) {
    at::Tensor in = x.contiguous();
    ctx->save_for_backward({in});
    return kernels::gelu_tanh(in);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    at::NoGradGuard no_grad;
    return {kernels::gelu_tanh_backward(ctx->get_saved_variables()[0], grads[0].contiguous())};
  }
};

at::Tensor gelu_tanh(const at::Tensor& x) {
  return GeluTanh::apply(x);
}

at::Tensor silu(const at::Tensor& x) { return at::silu(x); }

// silu(gate) * up, which keeps these two alone.
struct Gated : torch::autograd::Function<Gated> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& gate, const at::Tensor& up,
                            bool fuse) {
    ctx->save_for_backward({gate, up});
    ctx->saved_data["fuse"] = fuse;
    return fuse ? kernels::gated_silu(gate, up) : at::silu(gate).mul_(up);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    at::NoGradGuard no_grad;
    const auto saved = ctx->get_saved_variables();
    if (ctx->saved_data["fuse"].toBool()) {
      auto [of_gate, of_up] = kernels::gated_silu_backward(grads[0], saved[0], saved[1]);
      return {of_gate, of_up, {}};
    }
    at::Tensor of_gate = at::silu_backward(grads[0] * saved[1], saved[0]);
    return {of_gate, at::silu(saved[0]).mul_(grads[0]), {}};
  }
};

}  // namespace

at::Tensor gated(Activation activation, const at::Tensor& gate, const at::Tensor& up, const Context& context) {
  return activation == silu ? Gated::apply(gate, up, context.fuse) : activation(gate) * up;
}

Activation find_activation(const std::string& name) {
  static const std::map<std::string, Activation> kActivations = {
      {"gelu", [](const at::Tensor& x) { return at::gelu(x); }},
      {"gelu_fast", gelu_tanh},
      {"gelu_new", gelu_tanh},
      {"gelu_pytorch_tanh", gelu_tanh},
      {"quick_gelu", [](const at::Tensor& x) { return x * at::sigmoid(x * 1.702); }},
      {"relu", [](const at::Tensor& x) { return at::relu(x); }},
      {"silu", silu},
      {"swish", silu},
      {"tanh", [](const at::Tensor& x) { return at::tanh(x); }},
  };
  auto it = kActivations.find(name);
  if (it != kActivations.end()) return it->second;
  std::string known;
  for (const auto& [key, _] : kActivations) known += (known.empty() ? "" : ", ") + key;
  throw base::ConfigError(fmt::format("activation '{}' is not known; use one of: {}", name, known));
}

}  // namespace trireme::nn
