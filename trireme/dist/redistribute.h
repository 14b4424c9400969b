#pragma once
// redistribute: the one autograd function behind every tensor-parallel layer. It changes how a tensor lies on
// one mesh axis; its backward changes the gradient back (docs/architecture.md section 3 has the table).

#include <ATen/core/Tensor.h>

#include "trireme/comm/comm.h"
#include "trireme/layout/sbp.h"

namespace trireme::dist {

base::DType dtype_of(const at::Tensor& tensor);
at::ScalarType scalar_type(base::DType dtype);

/// Flat memory that the host's other ranks can read where the backend shares memory, so that they reduce and gather it
/// without copies; it holds anything. On a device plain memory of that. Local.
at::Tensor shared_empty(const comm::Comm& comm, int64_t count, at::ScalarType type, c10::Device device = c10::kCPU);

/// Collective over `comm` unless the two places need no communication. `global_size` is the size of the split
/// dimension over all ranks (needed where it does not divide evenly; -1: local size x ranks). Throws InternalError
/// for a change that the table does not hold.
at::Tensor redistribute(const at::Tensor& tensor, const comm::Comm& comm, layout::Sbp from, layout::Sbp to,
                        int64_t global_size = -1);

/// Is the change in the table? Layers ask while a model is built.
bool can_redistribute(layout::Sbp from, layout::Sbp to);

// The plain movements, without autograd; a comm of one returns its input.
at::Tensor all_reduce(const at::Tensor& tensor, const comm::Comm& comm, comm::Reduce op = comm::Reduce::sum);
at::Tensor all_gather(const at::Tensor& tensor, const comm::Comm& comm, int64_t dim, int64_t global_size);
at::Tensor reduce_scatter(const at::Tensor& tensor, const comm::Comm& comm, int64_t dim);
at::Tensor local_part(const at::Tensor& tensor, const comm::Comm& comm, int64_t dim);

}  // namespace trireme::dist
