#include "trireme/dist/redistribute.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "trireme/base/error.h"
#include "trireme/dist/device.h"
#include "trireme/kernels/allocator.h"

namespace trireme::dist {

using layout::Range;
using layout::Sbp;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

base::DType dtype_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kDouble: return base::DType::f64;
    case at::kFloat: return base::DType::f32;
    case at::kBFloat16: return base::DType::bf16;
    case at::kHalf: return base::DType::f16;
    case at::kLong: return base::DType::i64;
    case at::kInt: return base::DType::i32;
    case at::kShort: return base::DType::i16;
    case at::kByte: return base::DType::u8;
    case at::kChar: return base::DType::i8;
    case at::kBool: return base::DType::boolean;
    default: throw base::InternalError(fmt::format("no DType for {}", at::toString(tensor.scalar_type())));
  }
}

at::ScalarType scalar_type(base::DType dtype) {
  switch (dtype) {
    case base::DType::f64: return at::kDouble;
    case base::DType::f32: return at::kFloat;
    case base::DType::bf16: return at::kBFloat16;
    case base::DType::f16: return at::kHalf;
    case base::DType::i64: return at::kLong;
    case base::DType::i32: return at::kInt;
    case base::DType::i16: return at::kShort;
    case base::DType::u8: return at::kByte;
    case base::DType::i8: return at::kChar;
    case base::DType::boolean: return at::kBool;
    case base::DType::u16: break;
  }
  throw base::InternalError(fmt::format("no tensor type for {}", base::name_of(dtype)));
}

at::Tensor all_reduce(const at::Tensor& tensor, const comm::Comm& comm, comm::Reduce op) {
  if (comm.size() == 1) return tensor;
  at::Tensor out = tensor.clone(at::MemoryFormat::Contiguous);
  comm.all_reduce(pointer(out, comm), out.numel(), dtype_of(out), op).wait();
  return out;
}

at::Tensor all_gather(const at::Tensor& tensor, const comm::Comm& comm, int64_t dim, int64_t global_size) {
  if (comm.size() == 1) return tensor;
  at::Tensor in = tensor.movedim(dim, 0).contiguous();
  int64_t row = c10::multiply_integers(in.sizes().slice(1));
  std::vector<int64_t> counts = layout::split_sizes(global_size, comm.size());
  base::check(counts[comm.rank()] == in.size(0), "all-gather of {} rows where rank {} of {} holds {} of {}",
              in.size(0), comm.rank(), comm.size(), counts[comm.rank()], global_size);
  std::vector<int64_t> shape = in.sizes().vec();
  shape[0] = global_size;
  at::Tensor out = at::empty(shape, in.options());
  for (int64_t& count : counts) count *= row;
  comm.all_gather(pointer(in, comm), pointer(out, comm), counts, dtype_of(in)).wait();
  return out.movedim(0, dim).contiguous();
}

at::Tensor reduce_scatter(const at::Tensor& tensor, const comm::Comm& comm, int64_t dim) {
  if (comm.size() == 1) return tensor;
  at::Tensor in = tensor.movedim(dim, 0).contiguous();
  std::vector<int64_t> counts = layout::split_sizes(in.size(0), comm.size());
  std::vector<int64_t> shape = in.sizes().vec();
  int64_t row = c10::multiply_integers(in.sizes().slice(1));
  shape[0] = counts[comm.rank()];
  at::Tensor out = at::empty(shape, in.options());
  for (int64_t& count : counts) count *= row;
  comm.reduce_scatter(pointer(in, comm), pointer(out, comm), counts, dtype_of(in)).wait();
  return out.movedim(0, dim).contiguous();
}

at::Tensor local_part(const at::Tensor& tensor, const comm::Comm& comm, int64_t dim) {
  if (comm.size() == 1) return tensor;
  Range range = layout::split_range(tensor.size(dim), comm.size(), comm.rank());
  return tensor.narrow(dim, range.begin, range.size()).contiguous();
}

namespace {

at::Tensor all_to_all(const at::Tensor& tensor, const comm::Comm& comm, int64_t from_dim, int64_t to_dim,
                      int64_t global_size) {
  int n = comm.size();
  std::vector<int64_t> out_parts = layout::split_sizes(tensor.size(to_dim), n);
  std::vector<int64_t> in_parts = layout::split_sizes(global_size, n);
  std::vector<at::Tensor> pieces;
  std::vector<int64_t> send(n), receive(n);
  int64_t begin = 0;
  std::vector<int64_t> shape = tensor.sizes().vec();
  for (int r = 0; r < n; ++r) {
    pieces.push_back(tensor.narrow(to_dim, begin, out_parts[r]).contiguous().flatten());
    begin += out_parts[r];
    send[r] = pieces[r].numel();
  }
  std::vector<std::vector<int64_t>> shapes(n, shape);
  int64_t total = 0;
  for (int r = 0; r < n; ++r) {
    shapes[r][to_dim] = out_parts[comm.rank()];
    shapes[r][from_dim] = in_parts[r];
    receive[r] = c10::multiply_integers(shapes[r]);
    total += receive[r];
  }
  // Memory even for nothing: by it the group knows where the other ranks' parts are.
  at::Tensor in = at::cat(pieces), out = at::empty({std::max<int64_t>(total, 1)}, tensor.options());
  comm.all_to_all(pointer(in, comm), send, pointer(out, comm), receive, dtype_of(tensor)).wait();
  std::vector<at::Tensor> parts;
  int64_t at = 0;
  for (int r = 0; r < n; ++r) {
    parts.push_back(out.narrow(0, at, receive[r]).view(shapes[r]));
    at += receive[r];
  }
  return at::cat(parts, from_dim);
}

at::Tensor pad_part(const at::Tensor& part, const comm::Comm& comm, int64_t dim, int64_t global_size) {
  std::vector<int64_t> shape = part.sizes().vec();
  shape[dim] = global_size;
  at::Tensor out = at::zeros(shape, part.options());
  Range range = layout::split_range(global_size, comm.size(), comm.rank());
  out.narrow(dim, range.begin, range.size()).copy_(part);
  return out;
}

at::Tensor first_keeps(const at::Tensor& tensor, const comm::Comm& comm) {
  return comm.rank() == 0 ? tensor.clone() : at::zeros_like(tensor);
}

// What happens to the value on the way from one place to another, by the letters of both.
at::Tensor move_value(const at::Tensor& t, const comm::Comm& comm, Sbp from, Sbp to, int64_t global_size) {
  using K = Sbp::Kind;
  if (from.value == K::broadcast && to.value == K::broadcast) return t;
  if (from.value == K::broadcast && to.value == K::split) return local_part(t, comm, to.dim);
  if (from.value == K::broadcast && to.value == K::partial) return first_keeps(t, comm);
  if (from.value == K::split && to.value == K::broadcast) return all_gather(t, comm, from.dim, global_size);
  if (from.value == K::split && to.value == K::split)
    return all_to_all(t, comm, from.dim, to.dim, global_size);
  if (from.value == K::partial && to.value == K::broadcast) return all_reduce(t, comm);
  return reduce_scatter(t, comm, to.dim);
}

// The gradient travels back: it lies at `to` as to.grad says and must come to `from` as from.grad says.
at::Tensor move_gradient(const at::Tensor& g, const comm::Comm& comm, Sbp from, Sbp to, int64_t from_size) {
  using K = Sbp::Kind;
  if (to.grad == K::partial && from.grad == K::broadcast) return all_reduce(g, comm);
  // invariant -> partial: both letters of the gradient are B.
  if (to.grad == K::broadcast && from.grad == K::broadcast) return g;
  // partial -> replicated: the value's partial sums each receive the whole gradient.
  if (to.grad == K::split && from.grad == K::broadcast) return all_gather(g, comm, to.dim, from_size);
  if (to.grad == K::broadcast && from.grad == K::split) return local_part(g, comm, from.dim);
  if (to.grad == K::partial && from.grad == K::split) return reduce_scatter(g, comm, from.dim);
  if (to.grad == K::split && from.grad == K::split) return all_to_all(g, comm, to.dim, from.dim, from_size);
  if (to.grad == K::split && from.grad == K::partial) return pad_part(g, comm, to.dim, from_size);
  // replicated -> partial and replicated -> invariant: one rank's contribution is the whole.
  if (to.grad == K::broadcast && from.grad == K::partial) return first_keeps(g, comm);
  throw base::InternalError("no way for the gradient");
}

struct Redistribute : torch::autograd::Function<Redistribute> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& t, const comm::Comm* comm, Sbp from, Sbp to,
                            int64_t global_size) {
    auto keep = [&](const char* name, const Sbp& s) {
      ctx->saved_data[name] = std::vector<int64_t>{static_cast<int64_t>(s.value), static_cast<int64_t>(s.grad), s.dim};
    };
    keep("from", from);
    keep("to", to);
    // Size, before the move, of the dimension that the move splits: the gradient's gather needs it.
    ctx->saved_data["size"] = to.is_split() ? t.size(to.dim) : int64_t{0};
    ctx->saved_data["comm"] = reinterpret_cast<int64_t>(comm);
    ctx->set_materialize_grads(false);
    at::Tensor out = move_value(t, *comm, from, to, global_size);
    return out.is_same(t) ? t.view_as(t) : out;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    if (!grads[0].defined()) return {{}, {}, {}, {}, {}};
    auto read = [&](const char* name) {
      auto v = ctx->saved_data[name].toIntVector();
      return Sbp{static_cast<Sbp::Kind>(v[0]), static_cast<Sbp::Kind>(v[1]), static_cast<int>(v[2])};
    };
    const auto* comm = reinterpret_cast<const comm::Comm*>(ctx->saved_data["comm"].toInt());
    return {move_gradient(grads[0], *comm, read("from"), read("to"), ctx->saved_data["size"].toInt()), {}, {}, {}, {}};
  }
};

Sbp positive(Sbp s, int64_t dims) {
  if (s.is_split() && s.dim < 0) s.dim += static_cast<int>(dims);
  return s;
}

}  // namespace

bool can_redistribute(Sbp from, Sbp to) {
  using K = Sbp::Kind;
  auto partial = [](Sbp s) { return s.value == K::partial; };
  if (from == to) return true;
  if (partial(from) && partial(to)) return false;
  // A split comes from the whole gradient's owner and goes anywhere but to a partial value.
  if (from.is_split() && partial(to)) return false;
  return true;
}

at::Tensor shared_empty(const comm::Comm& comm, int64_t count, at::ScalarType type, c10::Device device) {
  if (!device.is_cpu()) return at::empty({count}, at::TensorOptions(type).device(device));
  const int64_t bytes = count * static_cast<int64_t>(c10::elementSize(type));
  comm::SharedBuffer buffer = comm.alloc(static_cast<size_t>(bytes));
  return at::from_blob(
      buffer.data(), {count}, [buffer, counted = kernels::count_memory(bytes)](void*) {},
      at::TensorOptions(type));
}

at::Tensor redistribute(const at::Tensor& tensor, const comm::Comm& comm, Sbp from, Sbp to, int64_t global_size) {
  from = positive(from, tensor.dim());
  to = positive(to, tensor.dim());
  if (comm.size() == 1 || from == to) return tensor;
  base::check(can_redistribute(from, to), "no way from {} to {}", layout::to_string(from), layout::to_string(to));
  if (from.is_split() && global_size < 0) global_size = tensor.size(from.dim) * comm.size();
  return Redistribute::apply(tensor, &comm, from, to, global_size);
}

}  // namespace trireme::dist
