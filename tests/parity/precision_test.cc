// Mixed precision of GPT-2: runs in 16 bits follow fp32 on every layout, within bounds that a wrong sign in one tensor
// breaks (docs/precision.md).
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/support/gpt2_cell.h"

namespace trireme::test {
namespace {

// Relative, by the project's measure. An activation is rounded to 8 (bf16) or 11 (fp16) bits a few
// dozen times on its way through four blocks; a gradient's error is that of the activations and
// gradients it is a product of. AdamW divides by the root of the second moment, which keeps a small
// gradient's relative error but not its size: small elements count as much as large ones.
// Measured: bf16 2e-4, 2e-2 and 9e-2, fp16 3e-5, 3e-3 and 1e-2.
struct Bounds {
  double loss, gradient, update;
};
Bounds bounds_of(const std::string& dtype) {
  return dtype == "bf16" ? Bounds{1e-3, 5e-2, 0.25} : Bounds{1e-4, 7e-3, 3e-2};
}

const CellResult& reference(int64_t steps) {
  static std::map<int64_t, CellResult> known;
  auto [it, added] = known.try_emplace(steps);
  if (added) it->second = run_cell({.dtype = "fp32", .steps = steps});
  return it->second;
}

Tensors minus(const Tensors& a, const Tensors& b) {
  Tensors out;
  for (const auto& [name, tensor] : a) out[name] = tensor - b.at(name);
  return out;
}

/// How far each parameter has gone from where it began.
Tensors updates(const CellResult& result) {
  static const Tensors begin = run_cell({.dtype = "fp32", .steps = 0}).parameters;
  return minus(result.parameters, begin);
}

std::string difference(const std::string& dtype, const CellResult& result) {
  const CellResult& want = reference(std::ssize(result.losses));
  const Bounds bounds = bounds_of(dtype);
  for (size_t i = 0; i < want.losses.size(); ++i)
    if (!(std::abs(result.losses[i] / want.losses[i] - 1) <= bounds.loss))
      return fmt::format("loss of step {}: {} against {}", i, result.losses[i], want.losses[i]);
  if (const Worst found = worst(result.gradients, want.gradients); !(found.error <= bounds.gradient))
    return fmt::format("gradient of {}: {:.1e}", found.name, found.error);
  if (const Worst found = worst(updates(result), updates(want)); !(found.error <= bounds.update))
    return fmt::format("update of {}: {:.1e}", found.name, found.error);
  return "";
}

std::vector<Cell> layouts(const std::string& dtype) {
  return {{.dtype = dtype},
          {.dp = 2, .zero = 1, .dtype = dtype},
          {.dp = 2, .tp = 2, .zero = 2, .dtype = dtype},
          {.dp = 2, .pp = 2, .zero = 2, .dtype = dtype},
          {.dp = 2, .tp = 2, .zero = 3, .sequence_parallel = true, .dtype = dtype, .recompute_every = 2},
          {.tp = 4, .sequence_parallel = true, .dtype = dtype},
          {.tp = 2, .pp = 2, .schedule = "zb-h1", .dtype = dtype},
          {.dp = 2, .tp = 2, .pp = 2, .zero = 1, .sequence_parallel = true, .dtype = dtype},
          {.pp = 2, .schedule = "zb-v", .dtype = dtype, .tied = true, .recompute_every = 1}};
}

TEST(PrecisionGrid, Bf16FollowsFp32) {
  for (const Cell& cell : layouts("bf16"))
    EXPECT_EQ(difference("bf16", run_cell(cell)), "") << cell.name();
}

TEST(PrecisionGrid, TheBoundsNoticeAWrongSignInAnyTensor) {
  const CellResult right = run_cell({.dtype = "bf16"});
  ASSERT_EQ(difference("bf16", right), "");
  for (const auto& [name, gradient] : right.gradients) {
    CellResult wrong = right;
    wrong.gradients[name] = -gradient;
    EXPECT_NE(difference("bf16", wrong), "") << name;
  }
  const Tensors gone = updates(right);
  for (const auto& [name, update] : gone) {
    CellResult wrong = right;
    wrong.parameters[name] = right.parameters.at(name) - 2 * update;
    EXPECT_NE(difference("bf16", wrong), "") << name;
  }
}

TEST(PrecisionGrid, Fp16FollowsFp32) {
  for (Cell cell : layouts("fp16")) {
    cell.loss_scale = 1024;
    EXPECT_EQ(difference("fp16", run_cell(cell)), "") << cell.name();
  }
}

TEST(PrecisionGrid, AnFp16StepsUpdateIsWithinTwoPercentOfFp32s) {
  const CellResult result = run_cell({.dtype = "fp16", .steps = 1, .loss_scale = 65536});
  const Worst found = worst(updates(result), updates(reference(1)));
  EXPECT_LE(found.error, 2e-2) << found.name;
  EXPECT_GT(found.error, 0);
}

TEST(PrecisionGrid, ALossScaleChangesNoBitInFp32) {
  for (const char* schedule :
       {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-2p", "zb-v", "v-half", "v-min"}) {
    Cell cell{.pp = 2, .schedule = schedule, .dtype = "fp32", .steps = 2};
    const CellResult plain = run_cell(cell);
    cell.loss_scale = 65536;
    const CellResult scaled = run_cell(cell);
    EXPECT_EQ(scaled.digests, plain.digests) << schedule;
    EXPECT_EQ(scaled.grad_norm, plain.grad_norm) << schedule;
  }
}

TEST(PrecisionGrid, TheSameLayoutTwiceAndRecomputedIsBitIdentical) {
  for (int zero : {1, 2, 3}) {
    Cell cell{.dp = 2, .tp = 2, .zero = zero, .sequence_parallel = true, .dtype = "bf16"};
    const CellResult once = run_cell(cell);
    EXPECT_EQ(run_cell(cell).digests, once.digests) << cell.name();
    for (int every : {1, 2}) {
      cell.recompute_every = every;
      EXPECT_EQ(run_cell(cell).digests, once.digests) << cell.name();
    }
    cell.recompute_every = 0;
    cell.recompute_attention = true;
    EXPECT_EQ(run_cell(cell).digests, once.digests) << cell.name();
  }
}

TEST(PrecisionGrid, ZeroStagesKeepTheSameMasters) {
  for (const auto& [pp, first, second] : {std::tuple(2, 0, 1), {1, 2, 3}}) {
    Cell cell{.dp = 2, .pp = pp, .zero = first, .dtype = "bf16"};
    const CellResult one = run_cell(cell);
    cell.zero = second;
    const CellResult other = run_cell(cell);
    for (const auto& [name, tensor] : one.parameters) {
      EXPECT_EQ(tensor.scalar_type(), at::kFloat);
      EXPECT_TRUE(tensor.equal(other.parameters.at(name))) << name << " of ZeRO " << first << " and " << second;
    }
  }
}

}  // namespace
}  // namespace trireme::test
