#pragma once
// Parametric functions: every way in which a layer may use a parameter. Each adds exactly one contribution to
// each parameter's gradient in its backward: into the Context's weight queue, or at once where there is none. The
// gradient of the input never waits for that of the weight (Qi et al., "Zero Bubble Pipeline Parallelism", 2023).

#include <ATen/core/Tensor.h>

#include "trireme/nn/context.h"
#include "trireme/nn/param_store.h"

namespace trireme::nn {

/// Which dimension of a weight file's matrix holds the input features.
enum class Orientation : uint8_t { out_in, in_out };

/// x [..., in] times the weight, plus the bias where there is one: [..., out].
at::Tensor linear(const at::Tensor& x, Param* weight, Param* bias, Orientation orientation, const Context& context);

/// The same for the outputs `rows` of an out_in weight alone, in their order: what a rank needs of a weight that it holds
/// whole. The gradient of the other rows is zero, so that the ranks' gradients are partial sums.
at::Tensor linear_rows(const at::Tensor& x, Param* weight, Param* bias, const std::vector<layout::Range>& rows,
                       const Context& context);

/// x + bias.
at::Tensor add_bias(const at::Tensor& x, Param* bias, const Context& context);

/// Rows of the local table for ids [...]: [..., features]. The table holds global rows [first, first + its rows);
/// ids outside give zeros, a valid partial sum. Where `padding` stands among the ids, its row gets no gradient.
at::Tensor embedding(const at::Tensor& ids, Param* table, int64_t first, const Context& context, int64_t padding = -1);

/// Layer normalisation over the last dimension (Ba et al., 2016).
at::Tensor layer_norm(const at::Tensor& x, Param* weight, Param* bias, double eps, const Context& context);

/// The parameter's local part as a tensor for any operation, whose gradient is made with that of the input. For small
/// parameters; one contribution a call. In ZeRO 3 the graph keeps the tensor until its backward pass.
at::Tensor use(Param* param, const Context& context);

/// The rows of a tensor in the order of `rows`; all of it where there are none.
at::Tensor select_rows(const at::Tensor& whole, const std::vector<layout::Range>& rows);

}  // namespace trireme::nn
