#include "trireme/dist/exchange_rows.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/dist/device.h"
#include "trireme/dist/redistribute.h"

namespace trireme::dist {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Counts = std::vector<int64_t>;

int64_t total(const Counts& counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

/// Memory for `count` rows; some even for none: by it the group knows where the other ranks' parts are.
at::Tensor flat(const at::Tensor& rows, int64_t count, int64_t width) {
  return at::empty({std::max<int64_t>(count * width, 1)}, rows.options());
}

at::Tensor travel(const at::Tensor& rows, const comm::Comm& comm, Counts send, Counts receive) {
  std::vector<int64_t> shape = rows.sizes().vec();
  const int64_t width = c10::multiply_integers(rows.sizes().slice(1));
  base::check(shape[0] == total(send), "{} rows to exchange, but {} are sent", shape[0], total(send));
  shape[0] = total(receive);
  const at::Tensor in = rows.numel() > 0 ? rows.contiguous() : flat(rows, 0, width), out = flat(rows, shape[0], width);
  for (Counts* counts : {&send, &receive})
    for (int64_t& count : *counts) count *= width;
  comm.all_to_all(pointer(in, comm), send, pointer(out, comm), receive, dtype_of(rows)).wait();
  return out.narrow(0, 0, c10::multiply_integers(shape)).view(shape);
}

struct ExchangeRows : torch::autograd::Function<ExchangeRows> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& rows, const comm::Comm* comm, const Counts& send,
                            const Counts& receive) {
    ctx->saved_data["comm"] = reinterpret_cast<int64_t>(comm);
    ctx->saved_data["send"] = send;
    ctx->saved_data["receive"] = receive;
    return travel(rows, *comm, send, receive);
  }
  // The peers take part, so a rank without a gradient sends zeros.
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto* comm = reinterpret_cast<const comm::Comm*>(ctx->saved_data["comm"].toInt());
    return {travel(grads[0], *comm, ctx->saved_data["receive"].toIntVector(), ctx->saved_data["send"].toIntVector()), {}, {}, {}};
  }
};

}  // namespace

at::Tensor exchange_rows(const at::Tensor& rows, const comm::Comm& comm, const Counts& send, const Counts& receive) {
  return comm.size() == 1 ? rows : ExchangeRows::apply(rows, &comm, send, receive);
}

}  // namespace trireme::dist
