#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <atomic>
#include <set>
#include <thread>

#include "tests/ranks/checkpoint_support.h"
#include "trireme/checkpoint/folder.h"
#include "trireme/formats/safetensors.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;
using layout::Mesh;
using testing::HasSubstr;

int64_t bytes_of(const std::string& file) {
  int64_t bytes = 0;
  const formats::SafetensorsFile opened(file);
  for (const auto& [name, tensor] : opened.tensors())
    bytes += static_cast<int64_t>(tensor.bytes.size());
  return bytes;
}

TEST(ShareOut, HoldersOfTheSameShareItEvenly) {
  auto held = [](int rank, const std::string& name, layout::Shape shape) {
    const layout::Slice slice = layout::whole(shape);
    return HeldPart{.rank = rank, .name = name, .shape = shape, .slice = slice,
                    .flat = {0, slice.count()}};
  };
  std::vector<HeldPart> parts;
  for (int rank : {0, 1, 2}) {
    parts.push_back(held(rank, "table", {5003, 16}));
    parts.push_back(held(rank, "bias", {16}));
    parts.push_back(held(rank, "weight", {100, 160}));
    parts.push_back(held(rank, "empty", {0, 4}));
  }
  parts.push_back(held(3, "alone", {7}));
  std::map<std::string, int64_t> written;
  const Index index = share_out(parts);
  for (const auto& [name, tensor] : index) {
    int64_t end = 0;
    for (const StoredPart& part : tensor.parts) {
      EXPECT_EQ(part.flat.begin, end);
      end = part.flat.end;
      written[part.file] += part.flat.size();
    }
    EXPECT_EQ(end, layout::element_count(tensor.shape)) << name;
    EXPECT_FALSE(tensor.parts.empty()) << name;
  }
  ASSERT_EQ(written.size(), 4u);
  EXPECT_EQ(written[rank_file(false, 3)], 7);
  for (int rank : {0, 1, 2})
    EXPECT_NEAR(static_cast<double>(written[rank_file(false, rank)]), (5003 * 16 + 16 + 16000) / 3.0,
                1024.0);
  EXPECT_EQ(to_text(index), to_text(share_out(parts)));
  for (const HeldPart& part : held_from_text(to_text(parts), 1)) EXPECT_EQ(part.rank, 1);

  std::vector<HeldPart> gap = {held(0, "a", {4})};
  gap[0].flat = {1, 4};
  EXPECT_THROW(share_out(gap), base::InternalError);
  std::vector<HeldPart> apart = {held(0, "a", {4}), held(1, "a", {4})};
  apart[1].dtype = base::DType::f64;
  EXPECT_THROW(share_out(apart), base::InternalError);
}

// Tensor ranks whose buffers are of different lengths cut what they hold alike at different places.
TEST(ShareOut, WhatShardsHoldTwiceIsWrittenOnce) {
  std::vector<HeldPart> parts;
  const int64_t ends[2] = {300, 500};
  for (int rank = 0; rank < 4; ++rank) {
    const int64_t cut = ends[rank % 2];
    parts.push_back({.rank = rank, .name = "bias", .shape = {640}, .slice = layout::whole({640}),
                     .flat = rank < 2 ? layout::Range{0, cut} : layout::Range{cut, 640}});
  }
  const Index index = share_out(parts);
  std::set<std::string> files;
  int64_t end = 0;
  for (const StoredPart& part : index.at("bias").parts) {
    EXPECT_EQ(part.flat.begin, end);
    end = part.flat.end;
    EXPECT_TRUE(files.insert(part.file).second) << part.file << " holds two parts";
    auto holds = [&](const HeldPart& held) {
      return rank_file(false, held.rank) == part.file && held.flat.begin <= part.flat.begin &&
             part.flat.end <= held.flat.end;
    };
    EXPECT_TRUE(std::ranges::any_of(parts, holds)) << part.file;
  }
  EXPECT_EQ(end, 640);
  parts[2].flat.begin = 400;
  parts[1].flat.end = 350;
  EXPECT_THROW(share_out(parts), base::InternalError);
}

TEST_F(CheckpointTest, EachByteIsWrittenOnceAndReplicasShareTheWork) {
  int64_t elements = 0;
  for (const layout::ParamSpec& spec : toy_model().parameters)
    elements += layout::element_count(spec.shape);
  for (bool zero : {false, true}) {
    const std::string path = save_on(Mesh({2, 2, 2}), zero, false, 1, 0, zero ? "/z" : "/r");
    int64_t stored = 0, largest = 0;
    for (int rank = 0; rank < 8; ++rank) {
      int64_t own = 0;
      for (bool optimizer : {false, true}) {
        const std::string file = path + "/" + rank_file(optimizer, rank);
        if (fs::exists(file)) own += bytes_of(file);
      }
      EXPECT_GT(own, 0) << rank;
      largest = std::max(largest, own);
      stored += own;
    }
    EXPECT_EQ(stored, 4 * 3 * elements);  // the parameter and two of the optimizer's
    EXPECT_LT(largest, stored / 4);       // an eighth, in pieces that are not cut when they are small
    EXPECT_EQ(Checkpoint(path).verify().tensors,
              Checkpoint(root_ + (zero ? "/z" : "/r")).verify().tensors);  // through `latest`
    EXPECT_EQ(Checkpoint(root_ + (zero ? "/z" : "/r") + "/latest").path(), path);
  }
}

/// Steps of a run that saves at once: on every rank `body` gets the state and a saver.
using Body = std::function<void(Saver&, RankState&, const comm::Comm&)>;
void run(const Mesh& mesh, const Body& body) {
  layout::ModelDescription model = retarget(toy_model(), mesh);
  dist::run_ranks(mesh.size(), [&](dist::World& world) {
    dist::DeviceMesh device(world, mesh);
    RankState state = state_of(model, mesh, world.rank(), true, true);
    Saver saver(device.world);
    body(saver, state, device.world);
  });
}

SaveRequest request_of(const std::string& root, const RankState& state, const Mesh& mesh,
                       int64_t step, bool merged) {
  SaveRequest request;
  request.root = root;
  request.manifest = manifest_of(retarget(toy_model(), mesh), mesh, step, merged);
  request.parameters = state.parameters;
  request.optimizer = state.optimizer;
  return request;
}

/// Whether any rank's thread still writes.
bool saving(const Saver& saver, const comm::Comm& world) {
  int64_t busy = saver.working();
  world.all_reduce(&busy, 1, base::DType::i64, comm::Reduce::max).wait();
  return busy != 0;
}

TEST_F(CheckpointTest, TrainingGoesOnWhileASaveIsWritten) {
  const Mesh mesh({1, 2, 2});
  for (bool merged : {false, true}) {
    const std::string root = root_ + (merged ? "/m" : "/s");
    run(mesh, [&](Saver& saver, RankState& state, const comm::Comm& world) {
      for (int64_t step : {1, 2}) {
        RankState moving = state;
        for (auto* parts : {&moving.parameters, &moving.optimizer})
          for (nn::TensorPart& part : *parts) part.data = part.data.clone();
        saver.start(request_of(root, moving, mesh, step, merged));
        for (auto* parts : {&moving.parameters, &moving.optimizer})
          for (nn::TensorPart& part : *parts) part.data.fill_(-1);
        EXPECT_TRUE(saver.in_flight());
        EXPECT_THROW(saver.start(request_of(root, moving, mesh, step, merged)), base::InternalError);
        std::optional<std::string> path;
        while (!path) {  // steps of training
          if (!saving(saver, world)) path = saver.advance();
        }
        EXPECT_FALSE(saver.in_flight());
        EXPECT_EQ(*path, root + "/" + step_folder(step));
        world.barrier();
      }
      saver.start(request_of(root, state, mesh, 3, merged));
      EXPECT_EQ(saver.finish(), root + "/step_00000003");
      EXPECT_EQ(saver.save(request_of(root, state, mesh, 4, merged)), root + "/step_00000004");
    });
    EXPECT_THAT(listing(root), testing::ElementsAre("latest", "step_00000001", "step_00000002",
                                                    "step_00000003", "step_00000004"));
    for (const char* step : {"/step_00000001", "/step_00000002", "/step_00000003"}) {
      expect_loads_on(root + step, Mesh({2, 1, 2}), false);
      EXPECT_EQ(Checkpoint(root + step).manifest()->merged, merged);
    }
    EXPECT_EQ(listing(root + "/step_00000003"), listing(root + "/step_00000004"));
  }
}

TEST_F(CheckpointTest, AFailureWhileTrainingGoesOnReachesAllRanks) {
  signal(SIGXFSZ, SIG_IGN);  // a limit on the size of files stands for a full disk
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const Mesh mesh({1, 2, 1});
  for (bool merged : {false, true}) {
    const std::string root = root_ + (merged ? "/m" : "/s");
    std::atomic<int> failed = 0;
    run(mesh, [&](Saver& saver, RankState& state, const comm::Comm& world) {
      saver.save(request_of(root, state, mesh, 1, merged));
      world.barrier();
      rlimit small = before;
      small.rlim_cur = 500;
      setrlimit(RLIMIT_FSIZE, &small);
      saver.start(request_of(root, state, mesh, 2, merged));
      try {
        while (saver.in_flight())
          if (!saving(saver, world)) saver.advance();
      } catch (const base::IoError& e) {
        EXPECT_THAT(e.what(), HasSubstr(".safetensors"));
        ++failed;
      }
      EXPECT_FALSE(saver.in_flight());
      world.barrier();
      setrlimit(RLIMIT_FSIZE, &before);
      if (world.rank() == 0) {
        EXPECT_THAT(listing(root), testing::ElementsAre("latest", "step_00000001"));
      }
      world.barrier();
      saver.start(request_of(root, state, mesh, 3, merged));  // the run goes on
      saver.finish();
    });
    EXPECT_EQ(failed, 2);
    expect_loads_on(root + "/step_00000003", Mesh(), false);
  }
}

TEST_F(CheckpointTest, AnInterruptedSaveLeavesTheLastCheckpoint) {
  const Mesh mesh({1, 2, 1});
  run(mesh, [&](Saver& saver, RankState& state, const comm::Comm& world) {
    saver.save(request_of(root_, state, mesh, 1, false));
    world.barrier();
    Saver interrupted(world);
    interrupted.start(request_of(root_, state, mesh, 2, false));
  });
  EXPECT_EQ(find_latest(root_), root_ + "/step_00000001");
  EXPECT_THAT(listing(root_),
              testing::ElementsAre(".step_00000002.tmp", "latest", "step_00000001"));
  expect_loads_on(root_, Mesh({2, 1, 2}), false);
  remove_stale(root_);
  EXPECT_THAT(listing(root_), testing::ElementsAre("latest", "step_00000001"));
}

TEST_F(CheckpointTest, TheBestStaysWhateverElseGoes) {
  const Mesh mesh({1, 2, 1});
  run(mesh, [&](Saver& saver, RankState& state, const comm::Comm&) {
    for (int64_t step = 1; step <= 6; ++step) {
      SaveRequest request = request_of(root_, state, mesh, step, false);
      request.max_to_keep = 2;
      request.best = step == 1 || step == 3;
      request.manifest.metrics = {{"eval_loss", 0.25}};
      saver.save(request);
    }
  });
  EXPECT_THAT(listing(root_), testing::ElementsAre("best", "latest", "step_00000003",
                                                   "step_00000005", "step_00000006"));
  Checkpoint best(root_ + "/best");
  EXPECT_EQ(best.manifest()->step, 3);
  EXPECT_EQ(best.manifest()->metrics, (base::Json{{"eval_loss", 0.25}}));
  set_pointer(root_, kBest, "step_00000009");
  EXPECT_THROW(Checkpoint(root_ + "/best"), base::FormatError);
}

TEST_F(CheckpointTest, AFailingRankFailsAllAndLeavesTheLastCheckpoint) {
  Mesh mesh({1, 2, 2});
  for (bool merged : {false, true}) {
    std::string folder = merged ? "/m" : "/s";
    save_on(mesh, true, merged, 1, 0, folder);
    layout::ModelDescription model = retarget(toy_model(), mesh);
    std::atomic<int> failed = 0;
    dist::run_ranks(4, [&](dist::World& world) {
      dist::DeviceMesh device(world, mesh);
      RankState state = state_of(model, mesh, world.rank(), true, true);
      SaveRequest request{root_ + folder,
                          manifest_of(model, mesh, 2, merged),
                          state.parameters,
                          state.optimizer,
                          "",
                          0};
      if (world.rank() == 3) request.optimizer[0].data = at::zeros({1});
      try {
        save(request, device.world);
      } catch (const base::InternalError& e) {
        EXPECT_THAT(e.what(), HasSubstr("rank 3: "));
        ++failed;
      }
      device.world.barrier();
      if (world.rank() == 0) {
        EXPECT_THAT(listing(root_ + folder), testing::ElementsAre("latest", "step_00000001"));
      }
      device.world.barrier();
      request.optimizer = state.optimizer;  // the run goes on
      save(request, device.world);
    });
    EXPECT_EQ(failed, 4);
    EXPECT_EQ(find_latest(root_ + folder), root_ + folder + "/step_00000002");
    expect_loads_on(root_ + folder, Mesh(), false);
  }
}

TEST_F(CheckpointTest, ADiskThatFillsUpIsAnIoErrorOnAllRanks) {
  // A limit on the size of files stands for a full disk.
  signal(SIGXFSZ, SIG_IGN);
  for (bool merged : {false, true}) {
    std::string folder = merged ? "/m" : "/s";
    save_on(Mesh({1, 2, 1}), true, merged, 1, 0, folder);
    rlimit before{};
    getrlimit(RLIMIT_FSIZE, &before);
    rlimit small = before;
    small.rlim_cur = 500;
    std::atomic<int> failed = 0;
    dist::run_ranks(2, [&](dist::World& world) {
      Mesh mesh({1, 2, 1});
      dist::DeviceMesh device(world, mesh);
      device.world.barrier();
      setrlimit(RLIMIT_FSIZE, &small);
      RankState state = state_of(toy_model(), mesh, world.rank(), true, true);
      SaveRequest request{root_ + folder,
                          manifest_of(toy_model(), mesh, 2, merged),
                          state.parameters,
                          state.optimizer,
                          "",
                          0};
      try {
        save(request, device.world);
      } catch (const base::IoError& e) {
        EXPECT_THAT(e.what(), HasSubstr(".safetensors"));
        ++failed;
      }
    });
    setrlimit(RLIMIT_FSIZE, &before);
    EXPECT_EQ(failed, 2);
    EXPECT_THAT(listing(root_ + folder), testing::ElementsAre("latest", "step_00000001"));
    expect_loads_on(root_ + folder, Mesh(), false);
  }
}

TEST_F(CheckpointTest, KeepsTheNewestAndTheLatest) {
  fs::create_directories(root_ + "/.step_00000009.tmp");
  std::ofstream(root_ + "/.step_00000009.tmp/part") << "left by a killed run";
  for (int step : {1, 2, 3, 4}) save_on(Mesh(), false, false, step, 2);
  EXPECT_THAT(listing(root_), testing::ElementsAre("latest", "step_00000003", "step_00000004"));
  set_pointer(root_, kLatest, "step_00000003");
  prune(root_, 1);
  EXPECT_THAT(listing(root_), testing::ElementsAre("latest", "step_00000003", "step_00000004"));
  save_on(Mesh(), false, false, 4, 2);  // a repeated step replaces its checkpoint
  EXPECT_EQ(find_latest(root_), root_ + "/step_00000004");
  expect_loads_on(root_, Mesh(), false);
  fs::remove(root_ + "/latest");
  EXPECT_EQ(find_latest(root_), root_ + "/step_00000004");
  set_pointer(root_, kLatest, "step_00000007");
  EXPECT_THROW(find_latest(root_), base::FormatError);
  EXPECT_EQ(find_latest(root_ + "/none"), std::nullopt);
}

}  // namespace
}  // namespace trireme::checkpoint
