#pragma once
// exchange_rows: rows of a matrix go to other ranks of a group, as many to each as the caller says; their gradients come
// back. What mixtures of experts move tokens with. Numbers of rows are exchanged before, by whoever chooses them.
//
//   at::Tensor came = dist::exchange_rows(rows, comm, send, receive);
//   at::Tensor back = dist::exchange_rows(work(came), comm, receive, send);

#include <ATen/core/Tensor.h>

#include <vector>

#include "trireme/comm/comm.h"

namespace trireme::dist {

/// `rows` [sum(send), ...], those for rank 0 first -> [sum(receive), ...], those from rank 0 first. Its backward is the
/// same the other way. Collective over `comm`, also for no rows; a comm of one returns its input.
at::Tensor exchange_rows(const at::Tensor& rows, const comm::Comm& comm, const std::vector<int64_t>& send,
                         const std::vector<int64_t>& receive);

}  // namespace trireme::dist
