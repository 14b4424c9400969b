// The whole table of placements (docs/architecture.md section 3): values and gradients on the way from each place to
// each other, on 2 and 3 ranks, with sizes that do not divide.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <mutex>

#include "trireme/base/error.h"
#include "trireme/dist/exchange_rows.h"
#include "trireme/dist/redistribute.h"
#include "trireme/dist/world.h"

namespace trireme::dist {
namespace {

using layout::Sbp;
using Kind = Sbp::Kind;

at::Tensor numbers(int64_t seed) {
  return at::sin(at::arange(35, at::kDouble) * (1.7 + static_cast<double>(seed))).view({5, 7});
}

// How rank `rank` of `size` holds `whole`: itself, its part, or a summand.
at::Tensor place(const at::Tensor& whole, Kind kind, int dim, int rank, int size) {
  if (kind == Kind::broadcast) return whole.clone();
  if (kind == Kind::split) {
    layout::Range range = layout::split_range(whole.size(dim), size, rank);
    return whole.narrow(dim, range.begin, range.size()).contiguous();
  }
  at::Tensor rest = whole.clone();
  for (int r = 1; r < size; ++r) rest = rest - numbers(100 + r);
  return rank == 0 ? rest : numbers(100 + rank);
}

// The whole tensor that the ranks hold together; every copy must be equal.
at::Tensor together(const std::vector<at::Tensor>& held, Kind kind, int dim) {
  if (kind == Kind::split) return at::cat(held, dim);
  at::Tensor sum = held[0].clone();
  for (size_t r = 1; r < held.size(); ++r) {
    if (kind == Kind::partial) sum += held[r];
    else EXPECT_TRUE(held[r].equal(held[0]));
  }
  return sum;
}

TEST(Redistribute, TheWholeTable) {
  const Sbp places[] = {Sbp::invariant(), Sbp::replicated(), Sbp::partial(), Sbp::split(0), Sbp::split(1)};
  int rows = 0;
  for (int size : {2, 3})
    for (const Sbp& from : places)
      for (const Sbp& to : places) {
        if (from == to || !can_redistribute(from, to)) continue;
        ++rows;
        SCOPED_TRACE(layout::to_string(from) + " -> " + layout::to_string(to) + " on " + std::to_string(size));
        std::vector<at::Tensor> values(size), gradients(size);
        run_ranks(size, [&](World& world) {
          int r = world.rank();
          std::vector<int> all(size);
          for (int i = 0; i < size; ++i) all[i] = i;
          comm::Comm comm = world.comm(all, "all");
          at::Tensor in = place(numbers(0), from.value, from.dim, r, size).requires_grad_(true);
          at::Tensor out = redistribute(in, comm, from, to, from.is_split() ? numbers(0).size(from.dim) : -1);
          torch::autograd::backward({out}, {place(numbers(1), to.grad, to.dim, r, size)});
          values[r] = out.detach();
          gradients[r] = in.grad();
        });
        EXPECT_TRUE(at::allclose(together(values, to.value, to.dim), numbers(0), 1e-12, 1e-12));
        EXPECT_TRUE(at::allclose(together(gradients, from.grad, from.dim), numbers(1), 1e-12, 1e-12));
      }
  EXPECT_EQ(rows, 2 * 18);
}

TEST(Redistribute, RefusesWhatTheTableLacks) {
  EXPECT_FALSE(can_redistribute(Sbp::split(0), Sbp::partial()));
  run_ranks(2, [](World& world) {
    comm::Comm comm = world.comm(std::vector<int>{0, 1}, "all");
    EXPECT_THROW(redistribute(numbers(0), comm, Sbp::split(0), Sbp::partial()), base::InternalError);
  });
}

// Rank r sends as many rows to rank q as the table says, marked by both; some ranks get or send none.
TEST(ExchangeRows, GoOutAndGradientsComeBack) {
  const std::vector<std::vector<int64_t>> rows = {{1, 3, 0}, {0, 0, 2}, {0, 0, 0}};
  run_ranks(3, [&](World& world) {
    const comm::Comm comm = world.comm(std::vector<int>{0, 1, 2}, "all");
    const auto me = static_cast<size_t>(world.rank());
    std::vector<int64_t> receive;
    std::vector<at::Tensor> out, in;
    for (size_t r = 0; r < 3; ++r) {
      receive.push_back(rows[r][me]);
      const auto marked = [](size_t from, size_t to, int64_t count) {
        return at::arange(2 * count, at::kDouble).view({count, 2}) + static_cast<double>(100 * from + 10 * to);
      };
      out.push_back(marked(me, r, rows[me][r]));
      in.push_back(marked(r, me, rows[r][me]));
    }
    const at::Tensor sent = at::cat(out).requires_grad_(true);
    const at::Tensor came = exchange_rows(sent, comm, rows[me], receive);
    EXPECT_TRUE(came.equal(at::cat(in)));
    torch::autograd::backward({came}, {came.detach() * 2});
    EXPECT_TRUE(sent.grad().equal(sent.detach() * 2));
    EXPECT_THROW(exchange_rows(sent, comm, {7, 7, 7}, receive), base::InternalError);
    EXPECT_TRUE(exchange_rows(sent, comm::Comm(), {sent.size(0)}, {sent.size(0)}).is_same(sent));
  });
}

TEST(Redistribute, AGroupOfOneChangesNothing) {
  at::Tensor x = numbers(0);
  EXPECT_TRUE(redistribute(x, comm::Comm(), Sbp::partial(), Sbp::split(0)).is_same(x));
}

}  // namespace
}  // namespace trireme::dist
