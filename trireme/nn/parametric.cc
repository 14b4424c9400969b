#include "trireme/nn/parametric.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "trireme/base/error.h"
#include "trireme/nn/contribution.h"

namespace trireme::nn {

at::Tensor select_rows(const at::Tensor& whole, const std::vector<layout::Range>& rows) {
  if (rows.empty()) return whole;
  std::vector<at::Tensor> parts;
  for (layout::Range range : rows) parts.push_back(whole.narrow(0, range.begin, range.size()));
  return parts.size() == 1 ? parts[0] : at::cat(parts);
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Parameters and queues outlive the graph, so the graph keeps their addresses.
int64_t address(const void* pointer) {
  return reinterpret_cast<int64_t>(pointer);
}

template <class T>
T* pointer(AutogradContext* ctx, const char* name) {
  return reinterpret_cast<T*>(ctx->saved_data[name].toInt());
}

// Runs `work` without autograd: later from the queue, or now.
void contribute(WeightQueue* queue, std::function<void()> work) {
  if (queue) return queue->add(std::move(work));
  at::NoGradGuard no_grad;
  work();
}

at::Tensor rows_of(const at::Tensor& t) {
  return t.detach().reshape({-1, t.size(-1)});
}

// Few numbers that the arithmetic needs in at least fp32.
at::Tensor widened(const at::Tensor& t) {
  return at::isReducedFloatingType(t.scalar_type()) ? t.to(at::kFloat) : t;
}

struct Linear : torch::autograd::Function<Linear> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& /*anchor*/,
                            Param* weight, Param* bias, Orientation orientation,
                            WeightQueue* queue) {
    ctx->save_for_backward({x});
    ctx->saved_data["weight"] = address(weight);
    ctx->saved_data["bias"] = address(bias);
    ctx->saved_data["queue"] = address(queue);
    ctx->saved_data["in_out"] = orientation == Orientation::in_out;
    ctx->set_materialize_grads(false);
    at::Tensor rows = x.reshape({-1, x.size(-1)});
    at::Tensor w = orientation == Orientation::in_out ? weight->data : weight->data.t();
    at::Tensor out = bias ? at::addmm(bias->data, rows, w) : at::mm(rows, w);
    std::vector<int64_t> shape = x.sizes().vec();
    shape.back() = w.size(1);
    return out.view(shape);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto* weight = pointer<Param>(ctx, "weight");
    auto* bias = pointer<Param>(ctx, "bias");
    bool in_out = ctx->saved_data["in_out"].toBool();
    at::Tensor x = ctx->get_saved_variables()[0];
    at::Tensor gy = rows_of(grads[0]);
    at::Tensor gx;
    if (ctx->needs_input_grad(0)) {
      gx = at::mm(gy, in_out ? weight->data.t() : weight->data).view(x.sizes());
    }
    contribute(pointer<WeightQueue>(ctx, "queue"), [=, x = rows_of(x)] {
      in_out ? Contribution(weight).add_product(x, gy) : Contribution(weight).add_product(gy, x);
      if (bias) Contribution(bias).add_rows(gy);
    });
    return {gx, {}, {}, {}, {}, {}};
  }
};

struct LinearRows : torch::autograd::Function<LinearRows> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& /*anchor*/, Param* weight,
                            Param* bias, const std::vector<layout::Range>* rows, WeightQueue* queue) {
    ctx->save_for_backward({x});
    ctx->saved_data["weight"] = address(weight);
    ctx->saved_data["bias"] = address(bias);
    ctx->saved_data["rows"] = address(rows);
    ctx->saved_data["queue"] = address(queue);
    at::Tensor w = select_rows(weight->data, *rows).t(), flat = x.reshape({-1, x.size(-1)});
    at::Tensor out = bias ? at::addmm(select_rows(bias->data, *rows), flat, w) : at::mm(flat, w);
    std::vector<int64_t> shape = x.sizes().vec();
    shape.back() = w.size(1);
    return out.view(shape);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto* weight = pointer<Param>(ctx, "weight");
    auto* bias = pointer<Param>(ctx, "bias");
    auto* rows = pointer<const std::vector<layout::Range>>(ctx, "rows");
    at::Tensor x = ctx->get_saved_variables()[0], gy = rows_of(grads[0]);
    at::Tensor gx;
    if (ctx->needs_input_grad(0)) gx = at::mm(gy, select_rows(weight->data, *rows)).view(x.sizes());
    contribute(pointer<WeightQueue>(ctx, "queue"), [=, x = rows_of(x)] {
      Contribution(weight).add_to_rows(*rows, at::mm(gy.t(), x));
      if (bias) Contribution(bias).add_to_rows(*rows, gy.sum(0, false, wide_type(bias->spec.dtype)));
    });
    return {gx, {}, {}, {}, {}, {}};
  }
};

struct AddBias : torch::autograd::Function<AddBias> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& /*anchor*/,
                            Param* bias, WeightQueue* queue) {
    ctx->saved_data["bias"] = address(bias);
    ctx->saved_data["queue"] = address(queue);
    ctx->set_materialize_grads(false);
    return x + bias->data;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto* bias = pointer<Param>(ctx, "bias");
    contribute(pointer<WeightQueue>(ctx, "queue"),
               [bias, gy = rows_of(grads[0])] { Contribution(bias).add_rows(gy); });
    return {grads[0], {}, {}, {}};
  }
};

struct Embedding : torch::autograd::Function<Embedding> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& ids,
                            const at::Tensor& /*anchor*/, Param* table, int64_t first, int64_t padding,
                            WeightQueue* queue) {
    int64_t rows = table->data.size(0);
    const at::Tensor given = ids.flatten().to(table->data.device());  // places are often made on the host
    at::Tensor local = given - first;
    std::vector<int64_t> shape = ids.sizes().vec();
    shape.push_back(table->data.size(1));
    at::Tensor out, outside;
    if (rows == table->spec.shape[0]) {
      out = at::index_select(table->data, 0, local);
    } else {
      outside = local.lt(0).logical_or_(local.ge(rows));
      local.masked_fill_(outside, 0);
      out = rows == 0
                ? at::zeros({local.numel(), shape.back()}, table->data.options())
                : at::index_select(table->data, 0, local).masked_fill_(outside.unsqueeze(1), 0);
    }
    at::Tensor silent = outside;
    if (padding >= 0) {
      silent = given.eq(padding);
      if (outside.defined()) silent.logical_or_(outside);
    }
    ctx->save_for_backward({local, silent});
    ctx->saved_data["table"] = address(table);
    ctx->saved_data["queue"] = address(queue);
    ctx->set_materialize_grads(false);
    return out.view(shape);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto saved = ctx->get_saved_variables();
    auto* table = pointer<Param>(ctx, "table");
    contribute(pointer<WeightQueue>(ctx, "queue"), [=, gy = rows_of(grads[0])] {
      Contribution contribution(table);
      if (!contribution.wanted()) return;
      at::Tensor g = gy.to(table->grad.scalar_type());
      if (saved[1].defined()) g = g.masked_fill(saved[1].unsqueeze(1), 0);
      at::Tensor& gradient = contribution.memory();
      if (gradient.size(0) > 0) gradient.index_add_(0, saved[0], g);
    });
    return {{}, {}, {}, {}, {}, {}};
  }
};

/// What ATen's norm takes beside parameters in fp32: 16-bit rows on the CPU alone.
at::Tensor of_one_type(const at::Tensor& x) { return x.is_cpu() ? x : widened(x); }

struct LayerNorm : torch::autograd::Function<LayerNorm> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& /*anchor*/,
                            Param* weight, Param* bias, double eps, WeightQueue* queue) {
    // With parameters in fp32 the statistics of 16-bit rows are kept in fp32 as well.
    auto [y, mean, rstd] =
        at::native_layer_norm(of_one_type(x), {x.size(-1)}, widened(weight->data), widened(bias->data), eps);
    ctx->save_for_backward({x, mean, rstd});
    ctx->saved_data["weight"] = address(weight);
    ctx->saved_data["bias"] = address(bias);
    ctx->saved_data["queue"] = address(queue);
    ctx->set_materialize_grads(false);
    return y.to(x.scalar_type());
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto saved = ctx->get_saved_variables();
    auto* weight = pointer<Param>(ctx, "weight");
    auto* bias = pointer<Param>(ctx, "bias");
    auto* queue = pointer<WeightQueue>(ctx, "queue");
    const at::ScalarType type = saved[0].scalar_type();
    at::Tensor x = of_one_type(saved[0].detach()), gy = of_one_type(grads[0].detach().contiguous());
    at::Tensor mean = saved[1], rstd = saved[2];
    auto backward = [=](std::array<bool, 3> wanted) {
      return at::native_layer_norm_backward(gy, x, {x.size(-1)}, mean, rstd, widened(weight->data),
                                            widened(bias->data), wanted);
    };
    at::Tensor gx;
    if (queue) {
      gx = std::get<0>(backward({true, false, false}));
      queue->add([=] {
        auto [_, gw, gb] = backward({false, true, true});
        Contribution(weight).add(gw);
        Contribution(bias).add(gb);
      });
    } else {
      auto [g, gw, gb] = backward({true, true, true});
      gx = g;
      at::NoGradGuard no_grad;
      Contribution(weight).add(gw);
      Contribution(bias).add(gb);
    }
    return {gx.to(type), {}, {}, {}, {}, {}};
  }
};

struct Use : torch::autograd::Function<Use> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& /*anchor*/, Param* param, WeightQueue* queue) {
    ctx->saved_data["param"] = address(param);
    ctx->saved_data["queue"] = address(queue);
    return param->data.detach();
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto* param = pointer<Param>(ctx, "param");
    contribute(pointer<WeightQueue>(ctx, "queue"), [param, g = grads[0].detach()] { Contribution(param).add(g); });
    return {{}, {}, {}};
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& x, Param* weight, Param* bias, Orientation orientation,
                  const Context& context) {
  return Linear::apply(x, context.anchor, weight, bias, orientation, context.weight_queue);
}

at::Tensor linear_rows(const at::Tensor& x, Param* weight, Param* bias, const std::vector<layout::Range>& rows,
                       const Context& context) {
  return LinearRows::apply(x, context.anchor, weight, bias, &rows, context.weight_queue);
}

at::Tensor add_bias(const at::Tensor& x, Param* bias, const Context& context) {
  return AddBias::apply(x, context.anchor, bias, context.weight_queue);
}

at::Tensor embedding(const at::Tensor& ids, Param* table, int64_t first, const Context& context, int64_t padding) {
  return Embedding::apply(ids, context.anchor, table, first, padding, context.weight_queue);
}

at::Tensor layer_norm(const at::Tensor& x, Param* weight, Param* bias, double eps,
                      const Context& context) {
  return LayerNorm::apply(x, context.anchor, weight, bias, eps, context.weight_queue);
}

at::Tensor use(Param* param, const Context& context) {
  if (param->spec.kind == layout::ParamKind::buffer) return param->data.detach();
  return Use::apply(context.anchor, param, context.weight_queue);
}

}  // namespace trireme::nn
