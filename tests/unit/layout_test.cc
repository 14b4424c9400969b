#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "trireme/base/error.h"
#include "trireme/layout/mesh.h"
#include "trireme/layout/slices.h"
#include "trireme/layout/stage_manager.h"

namespace trireme::layout {
namespace {

using base::ConfigError;
using base::FormatError;
using base::InternalError;
using testing::ElementsAre;

TEST(Mesh, PipelineIsOutermostTensorInnermost) {
  Mesh mesh({.pp = 2, .dp = 2, .tp = 2});
  EXPECT_EQ(mesh.rank({.pp = 1, .dp = 0, .tp = 1}), 5);
  EXPECT_THAT(mesh.ranks_along(Axis::pp, {0, 1, 1}), ElementsAre(3, 7));
  EXPECT_THAT(mesh.ranks_along(Axis::dp, {1, 0, 0}), ElementsAre(4, 6));
  EXPECT_THAT(mesh.groups(Axis::tp), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3),
                                                 ElementsAre(4, 5), ElementsAre(6, 7)));
  EXPECT_THAT(mesh.groups(Axis::pp), ElementsAre(ElementsAre(0, 4), ElementsAre(1, 5),
                                                 ElementsAre(2, 6), ElementsAre(3, 7)));
}

TEST(Mesh, NumberingHasAnInverseForEveryWorldUpTo64) {
  for (int world = 1; world <= 64; ++world)
    for (int t = 1; t <= world; ++t)
      for (int p = 1; world % t == 0 && p <= world / t; ++p) {
        if (world / t % p != 0) continue;
        Mesh mesh({.pp = p, .dp = world / t / p, .tp = t});
        for (int r = 0; r < world; ++r) {
          const Coord at = mesh.coord(r);
          ASSERT_EQ(mesh.rank(at), r);
          ASSERT_EQ(at, (Coord{r / (world / p), r / t % mesh.size(Axis::dp), r % t}));
        }
      }
}

TEST(Mesh, Refusals) {
  EXPECT_THROW(Mesh({.pp = 0, .dp = 1, .tp = 1}), ConfigError);
  EXPECT_THROW(Mesh().rank({.pp = 1}), InternalError);
  EXPECT_THROW(Mesh().coord(1), InternalError);
}

TEST(Sbp, TextThereAndBack) {
  for (Sbp sbp :
       {Sbp::invariant(), Sbp::replicated(), Sbp::partial(), Sbp::split(0), Sbp::split(-1)})
    EXPECT_EQ(sbp_from_string(to_string(sbp)), sbp);
  for (const char* text : {"", "split", "split()", "split(0", "split(x)", "split(1x)", "Split(0)"})
    EXPECT_THROW(sbp_from_string(text), FormatError) << text;
}

TEST(Sbp, TheFirstPartsHoldOneMore) {
  EXPECT_THAT(split_sizes(131, 4), ElementsAre(33, 33, 33, 32));
  EXPECT_THAT(split_sizes(2, 3), ElementsAre(1, 1, 0));
  EXPECT_EQ(split_range(131, 4, 1), (Range{33, 66}));
  EXPECT_THROW(split_range(3, 2, 2), InternalError);
}

TEST(Slices, FusedBlocksAreSplitEach) {
  ParamSpec spec{.name = "c_attn.weight", .shape = {4, 12}};
  spec.layout.tp = Sbp::split(-1);
  spec.fused = {4, 4, 4};
  Mesh mesh({.pp = 1, .dp = 1, .tp = 2});
  EXPECT_EQ(local_slice(spec, mesh, {0, 0, 1}), (Slice{{{{0, 4}}, {{2, 4}, {6, 8}, {10, 12}}}}));
  EXPECT_EQ(local_slice(spec, Mesh(), {}), whole(spec.shape));
}

TEST(Slices, SplitsFallOnGranules) {
  ParamSpec spec{.name = "q.weight", .shape = {5 * 8, 3}};
  spec.layout.tp = Sbp::split(0);
  spec.granularity = 8;
  Mesh mesh({.pp = 1, .dp = 1, .tp = 2});
  EXPECT_EQ(local_slice(spec, mesh, {0, 0, 0}).dims[0], (std::vector<Range>{{0, 24}}));
  EXPECT_EQ(local_slice(spec, mesh, {0, 0, 1}).dims[0], (std::vector<Range>{{24, 40}}));
}

TEST(Slices, Refusals) {
  ParamSpec spec{.name = "w", .shape = {12}};
  spec.layout.tp = Sbp::split(0);
  Mesh mesh({.pp = 1, .dp = 1, .tp = 4});
  spec.granularity = 4;  // three heads over four ranks
  EXPECT_THROW(local_slice(spec, mesh, {}), ConfigError);
  spec.granularity = 5;
  EXPECT_THROW(local_slice(spec, mesh, {}), ConfigError);
  spec.granularity = 1;
  spec.fused = {4, 4};
  EXPECT_THROW(local_slice(spec, mesh, {}), ConfigError);
  spec.fused.clear();
  spec.layout.tp = Sbp::split(1);
  EXPECT_THROW(local_slice(spec, mesh, {}), InternalError);
}

TEST(Slices, RunsJoinWholeInnerDimensions) {
  std::vector<std::array<int64_t, 3>> seen;
  auto note = [&](const auto& run) { seen.push_back({run.global, run.local, run.count}); };
  for_each_run({{{{1, 3}}, {{0, 4}}}}, {5, 4}, note);
  EXPECT_THAT(seen, ElementsAre(ElementsAre(4, 0, 8)));
  seen.clear();
  for_each_run({{{{0, 2}}, {{0, 1}, {3, 4}}}}, {2, 4}, note);
  EXPECT_THAT(seen, ElementsAre(ElementsAre(0, 0, 1), ElementsAre(3, 1, 1), ElementsAre(4, 2, 1),
                                ElementsAre(7, 3, 1)));
  seen.clear();
  for_each_run(whole({}), {}, note);  // a scalar is one element
  EXPECT_THAT(seen, ElementsAre(ElementsAre(0, 0, 1)));
  seen.clear();
  for_each_run(whole({3, 0}), {3, 0}, note);
  EXPECT_TRUE(seen.empty());
}

TEST(Slices, OwnersHoldEachElementOnce) {
  ParamSpec spec{.name = "w", .shape = {6}};
  spec.layout.stages = {1, 3};
  EXPECT_TRUE(is_owner(spec, {.pp = 1}));
  EXPECT_FALSE(is_owner(spec, {.pp = 3}));
  EXPECT_FALSE(is_owner(spec, {.pp = 1, .dp = 1}));
  EXPECT_FALSE(is_owner(spec, {.pp = 1, .dp = 0, .tp = 1}));
  spec.layout.tp = Sbp::split(0);
  EXPECT_TRUE(is_owner(spec, {.pp = 1, .dp = 0, .tp = 1}));
  EXPECT_TRUE(holds(spec, 3));
  EXPECT_FALSE(holds(spec, 0));
}

TEST(Slices, OneDataRankMayHoldAllThereIs) {
  const Mesh mesh({.pp = 1, .dp = 3, .tp = 2});
  ParamSpec spec{.name = "expert", .shape = {4, 3}};
  spec.layout.tp = Sbp::split(0);
  spec.layout.data_rank = 1;
  EXPECT_EQ(local_slice(spec, mesh, {.pp = 0, .dp = 1, .tp = 1}), (Slice{{{{2, 4}}, {{0, 3}}}}));
  EXPECT_EQ(local_slice(spec, mesh, {.pp = 0, .dp = 0, .tp = 1}).count(), 0);
  EXPECT_TRUE(is_owner(spec, {.pp = 0, .dp = 1, .tp = 1}));
  EXPECT_FALSE(is_owner(spec, {.pp = 0, .dp = 0, .tp = 1}));
  EXPECT_TRUE(holds(spec, {.pp = 0, .dp = 1, .tp = 0}));
  EXPECT_FALSE(holds(spec, {.pp = 0, .dp = 2, .tp = 0}));
  EXPECT_EQ(data_place(spec.layout), "rank 1");
  EXPECT_THROW(local_slice(spec, Mesh(), {}), InternalError);
}

/// A random tensor: shape, blocks, granularity and splits that fit.
ParamSpec random_spec(std::mt19937& random, const Mesh& mesh) {
  auto below = [&](int n) { return static_cast<int>(random() % n); };
  ParamSpec spec{.name = "random"};
  const int rank = 1 + below(3);
  for (int d = 0; d < rank; ++d) spec.shape.push_back(1 + below(5));
  const int dim = below(rank);
  spec.granularity = 1 + below(3);
  int64_t size = 0;
  const int blocks = 1 + below(3), parts = mesh.size(Axis::tp) * mesh.size(Axis::dp);
  for (int b = 0; b < blocks; ++b) {
    spec.fused.push_back(spec.granularity * (parts + below(4)));
    size += spec.fused.back();
  }
  if (blocks == 1 && below(2)) spec.fused.clear();
  spec.shape[dim] = size;
  spec.layout.tp = below(4) ? Sbp::split(below(2) ? dim : dim - rank) : Sbp::invariant();
  if (below(3) == 0) {
    int other = spec.layout.tp.is_split() ? below(rank) : dim;
    if (other != dim) spec.shape[other] = mesh.size(Axis::dp) + below(4);
    spec.layout.dp = Sbp::split(other);
  }
  return spec;
}

TEST(Slices, OwnedSlicesTileTheTensorAndOverlapMovesBetweenAnyTwoMeshes) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    Mesh a({1, 1 + static_cast<int>(random() % 3), 1 + static_cast<int>(random() % 4)});
    Mesh b({1, 1 + static_cast<int>(random() % 3), 1 + static_cast<int>(random() % 4)});
    // Large enough blocks for either mesh.
    Mesh both({1, std::max(a.size(Axis::dp), b.size(Axis::dp)),
               std::max(a.size(Axis::tp), b.size(Axis::tp))});
    const ParamSpec spec = random_spec(random, both);
    const int64_t count = element_count(spec.shape);

    std::vector<int> seen(count, 0);
    for (int r = 0; r < a.size(); ++r) {
      if (!is_owner(spec, a.coord(r))) continue;
      const Slice slice = local_slice(spec, a, a.coord(r));
      int64_t local = 0;
      for_each_run(slice, spec.shape, [&](const auto& run) {
        ASSERT_EQ(run.local, local);
        local += run.count;
        for (int64_t i = 0; i < run.count; ++i) ++seen[run.global + i];
      });
      ASSERT_EQ(local, slice.count());
    }
    ASSERT_THAT(seen, testing::Each(1));

    for (int r = 0; r < b.size(); ++r) {
      const Slice want = local_slice(spec, b, b.coord(r));
      std::vector<int64_t> expected(want.count()), got(want.count(), -1);
      for_each_run(want, spec.shape, [&](const auto& run) {
        for (int64_t i = 0; i < run.count; ++i) expected[run.local + i] = run.global + i;
      });
      for (int q = 0; q < a.size(); ++q) {
        if (!is_owner(spec, a.coord(q))) continue;
        const Slice have = local_slice(spec, a, a.coord(q));
        std::vector<int64_t> held(have.count());
        for_each_run(have, spec.shape, [&](const auto& run) {
          for (int64_t i = 0; i < run.count; ++i) held[run.local + i] = run.global + i;
        });
        for (const Overlap& o : overlap(have, want, spec.shape))
          std::copy_n(held.begin() + o.from, o.count, got.begin() + o.to);
      }
      ASSERT_EQ(got, expected);
    }
  }
}

TEST(DistributeLayers, TheRemainderGoesToTheMiddle) {
  EXPECT_THAT(distribute_layers(5, 4), ElementsAre(1, 1, 2, 1));
  EXPECT_THAT(distribute_layers(7, 4), ElementsAre(1, 2, 2, 2));
  EXPECT_THAT(distribute_layers(9, 4), ElementsAre(2, 2, 3, 2));
  EXPECT_THAT(distribute_layers(10, 4), ElementsAre(2, 3, 3, 2));
  EXPECT_THAT(distribute_layers(11, 4), ElementsAre(2, 3, 3, 3));
  EXPECT_THAT(distribute_layers(24, 2), ElementsAre(12, 12));
  EXPECT_THAT(accumulate_layers({2, 3, 1}), ElementsAre(0, 2, 5, 6));
}

TEST(DistributeLayers, ExplicitCountsAndRefusals) {
  EXPECT_THAT(distribute_layers(24, 4, {6, 7, 7, 4}), ElementsAre(6, 7, 7, 4));
  EXPECT_THROW(distribute_layers(24, 4, {6, 7, 7, 5}), ConfigError);
  EXPECT_THROW(distribute_layers(24, 4, {12, 12}), ConfigError);
  EXPECT_THROW(distribute_layers(24, 4, {12, 0, 6, 6}), ConfigError);
  EXPECT_THROW(distribute_layers(3, 4), ConfigError);
  EXPECT_THROW(distribute_layers(3, 0), ConfigError);
  EXPECT_THROW(distribute_layers_by_cost({1, 1, 1}, 4, 0, 0), ConfigError);
}

TEST(DistributeLayers, ByCostTheHeadWeighs) {
  const std::vector<double> even(8, 1.0);
  EXPECT_THAT(distribute_layers_by_cost(even, 4, 0, 0), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(distribute_layers_by_cost(even, 4, 0.5, 2), ElementsAre(2, 2, 3, 1));
  EXPECT_THAT(distribute_layers_by_cost({4, 1, 1, 1, 1}, 2, 0, 0), ElementsAre(1, 4));
}

TEST(DistributeLayers, EncoderAndDecoderShareNoPart) {
  const std::vector<int> encoder{2, 1, 3, 2, 3, 2, 10, 5}, decoder{2, 8, 0, 2, 1, 5, 6, 22},
      parts{2, 2, 2, 4, 4, 4, 8, 8};
  std::vector<int> starts;
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto split = distribute_encoder_decoder(encoder[i], decoder[i], parts[i]);
    starts.push_back(split.decoder_start);
    EXPECT_EQ(split.layers_per_part.size(), static_cast<size_t>(parts[i]));
    EXPECT_EQ(accumulate_layers(split.layers_per_part)[split.decoder_start], encoder[i]);
  }
  EXPECT_THAT(starts, ElementsAre(1, 1, 2, 2, 3, 1, 5, 2));
  EXPECT_THAT(distribute_encoder_decoder(2, 2, 2).layers_per_part, ElementsAre(2, 2));
  EXPECT_THAT(distribute_encoder_decoder(3, 0, 2).layers_per_part, ElementsAre(1, 2));
  EXPECT_THAT(distribute_encoder_decoder(2, 2, 4).layers_per_part, ElementsAre(1, 1, 1, 1));
  EXPECT_THROW(distribute_encoder_decoder(2, 1, 4), ConfigError);
  EXPECT_THROW(distribute_encoder_decoder(0, 4, 2), ConfigError);
  EXPECT_THROW(distribute_encoder_decoder(4, 4, 1), ConfigError);
}

TEST(StageManager, FirstLastAndNeighbours) {
  Mesh mesh({.pp = 4, .dp = 1, .tp = 2});
  const std::vector<int> ring{0, 1, 2, 3};
  StageManager first(mesh, 1, {2, 3, 3, 2}, ring), last(mesh, 7, {2, 3, 3, 2}, ring);
  EXPECT_TRUE(first.is_first_stage());
  EXPECT_FALSE(first.is_last_stage());
  EXPECT_TRUE(last.is_last_stage());
  EXPECT_EQ(first.prev_rank(), 7);
  EXPECT_EQ(first.next_rank(), 3);
  EXPECT_EQ(last.next_rank(), 1);
  EXPECT_EQ(last.layers(0), (Range{8, 10}));
  EXPECT_EQ(first.stage_of_layer(4), 1);
  EXPECT_THAT(first.holders({9, 0, 1}), ElementsAre(0, 3));
  EXPECT_THAT(first.ranks_of({0, 3}), ElementsAre(1, 7));
  EXPECT_THROW(first.stage_of_layer(10), InternalError);
  EXPECT_THROW(StageManager(mesh, 0, {2, 3}, ring), ConfigError);
  EXPECT_THROW(StageManager(mesh, 0, {2, 3}, {1, 2}), ConfigError);
  EXPECT_THROW(StageManager(mesh, 0, {2, 3}, {0, 4}), ConfigError);
}

TEST(StageManager, VirtualStagesAroundTheRingAndInAV) {
  Mesh mesh({.pp = 2, .dp = 1, .tp = 1});
  StageManager ring(mesh, 1, {2, 3, 3, 2}, {0, 1, 0, 1});
  EXPECT_EQ(ring.layers(0), (Range{2, 5}));
  EXPECT_EQ(ring.layers(1), (Range{8, 10}));
  EXPECT_FALSE(ring.is_last_stage(0));
  EXPECT_TRUE(ring.is_last_stage(1));
  EXPECT_TRUE(ring.is_last_stage());
  EXPECT_FALSE(ring.is_first_stage());
  EXPECT_EQ(ring.stage_of_layer(6), 0);
  EXPECT_THAT(ring.holders({0, 9}), ElementsAre(0, 1));

  StageManager there_and_back(mesh, 0, {2, 3, 3, 2}, {0, 1, 1, 0});
  EXPECT_EQ(there_and_back.layers(1), (Range{8, 10}));
  EXPECT_TRUE(there_and_back.is_first_stage());
  EXPECT_TRUE(there_and_back.is_last_stage());
  EXPECT_FALSE(there_and_back.is_last_stage(0));
  EXPECT_THAT(there_and_back.holders({0, 9}), ElementsAre(0));  // a tied head stays on one stage
  EXPECT_THROW(there_and_back.layers(2), InternalError);
}

}  // namespace
}  // namespace trireme::layout
