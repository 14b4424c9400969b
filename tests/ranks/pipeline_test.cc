#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>

#include "tests/ranks/pipeline_support.h"
#include "tests/support/start_ranks.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/base/io.h"
#include "trireme/layout/stage_manager.h"
#include "trireme/optim/grad_sync.h"
#include "trireme/optim/param_gather.h"

namespace trireme::pipeline::testing {
namespace {

using schedule::Action;
using schedule::generate;
using schedule::Schedule;
using ::testing::AllOf;
using ::testing::HasSubstr;

Schedule one_rank(int micro_batches) {
  return generate("gpipe", {1, micro_batches, 1});
}

/// What went over the wire and through the stage, without either: plain autograd on the whole
/// chain.
Gradients plain_autograd(const std::vector<nn::Batch>& batches, int blocks, double& loss) {
  Gradients leaves;
  dist::DeviceMesh mesh;
  auto model = nn::build_model(chain({.blocks = blocks, .dropout = 0}), mesh,
                               {.dtype = base::DType::f64}, {blocks}, {0});
  model->store.materialize(3, true);
  for (nn::Param* param : model->store.params())
    leaves[param->spec.name] = param->data.clone().requires_grad_(true);
  at::Tensor sum = at::zeros({}, at::kDouble);
  int64_t weight = 0;
  for (const nn::Batch& batch : batches) {
    at::Tensor ids = batch.tensors.at("input_ids"), labels = batch.tensors.at("labels");
    at::Tensor x = at::embedding(leaves["embed.weight"], ids), skip = at::sin(x);
    for (int i = 0; i < blocks; ++i) {
      auto at_block = [&](const char* name) { return leaves[fmt::format("block.{}.{}", i, name)]; };
      at::Tensor y =
          at::layer_norm(x, {x.size(-1)}, at_block("norm.weight"), at_block("norm.bias"), 1e-5);
      x = x + 0.5 * at::tanh(at::linear(y, at_block("linear.weight"), at_block("linear.bias")));
    }
    at::Tensor logits =
        at::linear(x + skip * ids.unsqueeze(-1).remainder(3), leaves["embed.weight"]);
    sum = sum +
          at::cross_entropy_loss(logits.flatten(0, 1), labels.flatten(), {}, at::Reduction::Sum);
    weight += labels.ne(-100).sum().item<int64_t>();
  }
  (sum / weight).backward();
  loss = sum.item<double>() / static_cast<double>(weight);
  Gradients gradients;
  for (const auto& [name, leaf] : leaves) gradients[name] = leaf.grad();
  return gradients;
}

TEST(Pipeline, OneRankEqualsPlainAutograd) {
  auto batches = make_batches(3, 2);
  double loss = 0;
  const Gradients expected = plain_autograd(batches, 8, loss);
  const Outcome outcome = run({.schedule = one_rank(3), .chain = {.dropout = 0}}, {batches});
  EXPECT_NEAR(outcome.losses[0], loss, 1e-12);
  EXPECT_LT(error(outcome.gradients, expected), 1e-12);
}

struct Shape {
  std::string name;
  int p, m, v;
};

/// Every schedule with every number of stages, micro-batches and virtual stages that it takes.
std::vector<Shape> every_shape() {
  std::vector<Shape> shapes;
  for (int p : {1, 2, 3, 4})
    for (int m : std::set<int>{1, 2, p, p + 1, 3 * p})
      for (std::string_view name : schedule::names())
        for (int v : {1, 2, 4})
          if (name != "forward" && schedule::takes_chunks(name, v)) shapes.push_back({std::string(name), p, m, v});
  return shapes;
}

TEST(Pipeline, EveryScheduleEqualsOneRank) {
  std::map<std::pair<int, bool>, Outcome> references;
  auto reference = [&](int m, bool tied) -> const Outcome& {
    auto [entry, added] = references.try_emplace({m, tied});
    if (added)
      entry->second = run({.schedule = one_rank(m), .chain = {.blocks = 16, .tied = tied}}, {make_batches(m, 2)});
    return entry->second;
  };
  const std::vector<Shape> shapes = every_shape();
  std::set<std::string> seen;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const auto& [name, p, m, v] = shapes[i];
    SCOPED_TRACE(fmt::format("{} stages {} micro-batches {} chunks {}", name, p, m, v));
    const Schedule schedule =
        generate(name, {.ranks = p, .micro_batches = m, .chunks_per_rank = v, .search = 1000});
    // Tied and untied heads, kept and recomputed activations in turn.
    const bool tied = i % 2 == 0;
    const int every = i % 4 < 2 ? 0 : 1;
    const Outcome& one = reference(m, tied);
    const Outcome outcome = run({.schedule = schedule, .chain = {.blocks = 16, .tied = tied},
                                 .stage = {.recompute_every = every}}, {make_batches(m, 2)});
    for (double loss : outcome.losses) ASSERT_NEAR(loss, one.losses[0], 1e-12);
    ASSERT_LT(error(outcome.gradients, one.gradients), 1e-10);
    const auto peaks = schedule::simulate(schedule, {}).peak_activations;
    const Schedule program = schedule::with_communication(schedule);
    for (int r = 0; r < p; ++r) {
      ASSERT_EQ(outcome.executed[r], program.program[r]);
      ASSERT_NEAR(static_cast<double>(outcome.peak_live[r]), peaks[r] * v, 1e-9);
    }
    seen.insert(name);
  }
  EXPECT_EQ(seen.size(), schedule::names().size() - 1);
}

TEST(Pipeline, TheAuditNamesAParameterWithTooFewOrTooManyContributions) {
  dist::DeviceMesh mesh;
  auto model = nn::build_model(chain({.blocks = 2}), mesh, {.dtype = base::DType::f64}, {2}, {0});
  model->store.materialize(3, true);
  Executor executor(one_rank(3), *model, mesh);
  executor.run(make_batches(3, 2), {}, nn::Mode::train);
  nn::Param* table = model->store.find("embed.weight");
  EXPECT_EQ(table->contributions, 6);  // the embedding's and the head's
  for (int64_t change : {-1, 1}) {
    table->contributions = 6 + change;
    try {
      model->store.audit();
      FAIL() << change;
    } catch (const base::InternalError& error) {
      EXPECT_THAT(error.what(), HasSubstr(fmt::format("embed.weight got {} gradient contributions in this step, expected 6 "
                                                      "(3 micro-batches x 2 uses)", 6 + change)));
    }
  }
}

TEST(Pipeline, AnySchedulesModelIsEvaluatedBetweenSteps) {
  const auto batches = make_batches(4, 2), others = make_batches(5, 2);
  const Outcome one = run({.schedule = one_rank(5), .mode = nn::Mode::eval}, {others});
  for (std::string_view name : schedule::names()) {
    SCOPED_TRACE(name);
    if (name == "forward") continue;
    const Schedule train = generate(name, {.ranks = 2, .micro_batches = 4, .search = 1000});
    dist::run_ranks(2, [&](dist::World& world) {
      dist::DeviceMesh mesh(world, layout::Mesh({.pp = 2, .dp = 1, .tp = 1}));
      auto model = nn::build_model(chain(), mesh, {.dtype = base::DType::f64},
                                   layout::distribute_layers(8, train.chunks), train.rank_of_chunk);
      model->store.materialize(3, true);
      Executor trainer(train, *model, mesh);
      Executor evaluator(schedule::forward_only(train, 5), *model, mesh);
      auto step = [&] { return trainer.run(batches, {.seed = 5, .step = 2}, nn::Mode::train).loss(); };
      const double before = step();
      EXPECT_NEAR(evaluator.run(others, {}, nn::Mode::eval).loss(), one.losses[0], 1e-12);
      EXPECT_EQ(step(), before);
    });
  }
}

TEST(Pipeline, TheSameScheduleGivesTheSameBits) {
  auto batches = make_batches(4, 2);
  const Schedule schedule = generate("1f1b", {2, 4, 1});
  const Outcome a = run({.schedule = schedule}, {batches}),
                b = run({.schedule = schedule}, {batches});
  EXPECT_EQ(a.losses, b.losses);
  for (const auto& [name, gradient] : a.gradients)
    EXPECT_TRUE(gradient.equal(b.gradients.at(name))) << name;
}

TEST(Pipeline, WeightGradientsMayWait) {
  auto batches = make_batches(3, 2);
  const Schedule schedule = schedule::parse(
      "0F0 0F1 0I0 0F2 0I1 0W0 0I2 0W2 0W1\n1F0 1I0 1F1 1I1 1W0 1F2 1B2 1W1\n", "own");
  const Outcome one = run({.schedule = one_rank(3)}, {batches});
  for (int every : {0, 1}) {
    const Outcome outcome =
        run({.schedule = schedule, .stage = {.recompute_every = every}}, {batches});
    EXPECT_LT(error(outcome.gradients, one.gradients), 1e-10);
    const auto peaks = schedule::simulate(schedule, {}).peak_activations;
    for (int r = 0; r < 2; ++r) EXPECT_EQ(outcome.peak_live[r], peaks[r]);
  }
}

TEST(Pipeline, RecomputeGivesTheSameBits) {
  auto batches = make_batches(3, 2);
  const Schedule schedule = generate("1f1b", {2, 3, 1});
  const Outcome kept = run({.schedule = schedule}, {batches});
  for (int every : {1, 2}) {
    const Outcome again =
        run({.schedule = schedule, .stage = {.recompute_every = every}}, {batches});
    for (const auto& [name, gradient] : kept.gradients)
      EXPECT_TRUE(gradient.equal(again.gradients.at(name))) << name;
  }
}

TEST(Pipeline, DataParallelRanksShareOneMean) {
  // Two ranks with two micro-batches of other weights each are one rank with four.
  auto first = make_batches(2, 3, 0), second = make_batches(2, 3, 6);
  auto all = first;
  all.insert(all.end(), second.begin(), second.end());
  const Outcome one = run({.schedule = one_rank(4)}, {all});
  const Outcome outcome = run({.schedule = generate("1f1b", {2, 2, 1}), .dp = 2}, {first, second});
  for (double loss : outcome.losses) EXPECT_NEAR(loss, one.losses[0], 1e-12);
  EXPECT_LT(error(outcome.gradients, one.gradients), 1e-10);
}

TEST(Pipeline, MicroBatchesWithoutRowsTakePartInNothing) {
  auto batches = make_batches(3, 2);
  const Outcome one = run({.schedule = one_rank(3)}, {batches});
  batches.push_back(make_batches(1, 0)[0]);
  for (const char* name : {"gpipe", "1f1b"}) {
    const Outcome outcome = run({.schedule = generate(name, {3, 4, 1})}, {batches});
    EXPECT_NEAR(outcome.losses[0], one.losses[0], 1e-12);
    EXPECT_LT(error(outcome.gradients, one.gradients), 1e-10);
    for (const auto& row : outcome.executed)
      for (const Action& action : row) EXPECT_NE(action.micro_batch, 3);
  }
  // A data-parallel rank without any row only takes part in the sums.
  auto none = make_batches(4, 0);
  const Outcome outcome = run({.schedule = generate("1f1b", {2, 4, 1}), .dp = 2}, {batches, none});
  for (double loss : outcome.losses) EXPECT_NEAR(loss, one.losses[0], 1e-12);
  EXPECT_LT(error(outcome.gradients, one.gradients), 1e-10);
}

TEST(Pipeline, ABatchWithoutCountedItemsHasNoMean) {
  auto batches = make_batches(2, 2);
  for (nn::Batch& batch : batches)
    batch.tensors.set("labels", at::full_like(batch.tensors.at("labels"), -100));
  const Outcome outcome = run({.schedule = generate("1f1b", {2, 2, 1})}, {batches});
  EXPECT_EQ(outcome.result.terms.weight(), 0);
  EXPECT_TRUE(std::isnan(outcome.losses[0]));
  for (const auto& [name, gradient] : outcome.gradients)
    EXPECT_EQ(gradient.abs().max().item<double>(), 0) << name;
}

TEST(Pipeline, ForwardOnlyKeepsNothingAndReturnsOutputs) {
  auto batches = make_batches(3, 2);
  const Outcome one =
      run({.schedule = one_rank(3), .mode = nn::Mode::eval, .run = {.outputs = true}}, {batches});
  for (int p : {1, 3}) {
    const Outcome outcome = run({.schedule = generate("forward", {p, 3, 1}),
                                 .mode = nn::Mode::eval,
                                 .run = {.outputs = true}},
                                {batches});
    for (double loss : outcome.losses) EXPECT_NEAR(loss, one.losses[0], 1e-12);
    for (const auto& [name, gradient] : outcome.gradients)
      EXPECT_EQ(gradient.abs().max().item<double>(), 0) << name;
    for (int64_t peak : outcome.peak_live) EXPECT_EQ(peak, 1);
    ASSERT_EQ(outcome.result.outputs.size(), 3u);
    for (int m = 0; m < 3; ++m) {
      const at::Tensor logits = outcome.result.outputs[m].at("logits");
      EXPECT_FALSE(logits.requires_grad());
      EXPECT_TRUE(logits.equal(one.result.outputs[m].at("logits")));
    }
  }
}

struct Overlap : StepObserver {
  Overlap(optim::GradSync& sync, optim::ParamGather& parameters, std::function<void()> watch = [] {})
      : sync(sync), parameters(parameters), watch(std::move(watch)) {}
  void before_layer(int layer, Pass pass) override {
    parameters.before_layer(layer, pass);
    if (contributes(pass)) sync.before(layer);
  }
  void after_layer(int layer, Pass pass) override {
    if (contributes(pass)) sync.after(layer);
    watch();
  }
  void end_step() override { parameters.end_step(); }
  optim::GradSync& sync;
  optim::ParamGather& parameters;
  std::function<void()> watch;
};

TEST(Pipeline, GradientsAreSummedWhileTheStepRuns) {
  // The second data-parallel rank has no rows, so nothing lands on it; the tie crosses stages. What is sharded is
  // gathered and exchanged layer by layer, whether a rank has rows or not.
  auto batches = make_batches(3, 2), none = make_batches(3, 0);
  const Outcome one = run({.schedule = one_rank(3)}, {batches});
  for (const auto& [p, name, zero] :
       {std::tuple(1, "1f1b", 0), {2, "1f1b", 0}, {1, "1f1b", 2}, {2, "1f1b", 2}, {2, "zb-h1", 2},
        {1, "1f1b", 3}, {1, "gpipe", 3}, {2, "zb-h1", 3}}) {
    SCOPED_TRACE(fmt::format("{} stages, {}, ZeRO {}", p, name, zero));
    const Schedule schedule = generate(name, {p, 3, 1});
    dist::run_ranks(2 * p, [&, p = p, zero = zero](dist::World& world) {
      dist::DeviceMesh mesh(world, layout::Mesh({.pp = p, .dp = 2, .tp = 1}));
      auto model = nn::build_model(chain(), mesh, {.dtype = base::DType::f64},
                                   layout::distribute_layers(8, p), schedule.rank_of_chunk);
      model->store.materialize(3, true, {}, 1, nn::zero_sharding(zero, 2, mesh.coord.dp));
      optim::GradSync sync(world, mesh, model->store, zero);
      optim::ParamGather parameters(mesh, model->store);
      const auto exchanged = [&] { return mesh.dp.traffic().all_reduce + mesh.dp.traffic().reduce_scatter; };
      int64_t in_the_step = 0;  // as far as the last contribution
      Overlap overlap(sync, parameters, [&] { in_the_step = exchanged(); });
      Executor executor(schedule, *model, mesh, {}, &overlap);
      for (int step = 0; step < 2; ++step) {
        const int64_t before = exchanged();
        sync.begin();
        executor.run(mesh.coord.dp == 0 ? batches : none, {.seed = 5, .step = 2}, nn::Mode::train);
        if (mesh.coord.dp == 0) {
          EXPECT_GT(in_the_step, before) << "no exchange began inside of the cool-down";
        }
        sync.finish();
        for (nn::Param* param : model->store.params()) {
          EXPECT_EQ(param->grad.defined(), zero < 2) << param->spec.name;
          EXPECT_EQ(param->data.defined(), zero < 3) << param->spec.name;
        }
        sync.gather();
        Gradients held, expected;
        for (nn::Param* param : model->store.params()) {
          held[param->spec.name] = param->grad;
          expected[param->spec.name] = one.gradients.at(param->spec.name);
        }
        EXPECT_LT(error(held, expected), 1e-10);
      }
    });
  }
}

/// The loss of a step of ranks that `start` starts with the words of chain_rank, and the sum of all gradients.
std::pair<double, double> of_processes(const std::string& schedule, int ranks,
                                       const std::function<int(const test::Words&)>& start) {
  test::TemporaryFolder folder;
  EXPECT_EQ(start({TRIREME_CHAIN_RANK, schedule, "3", folder.path()}), 0) << schedule;
  double loss = 0, sum = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    double own = 0;
    const std::string said = base::read_file(std::string(folder.path()) + "/" + std::to_string(rank));
    EXPECT_EQ(std::sscanf(said.c_str(), "%la %la", &loss, &own), 2) << said;
    sum += own;
  }
  return {loss, sum};
}

// 0-dimensional, empty, integer and boolean tensors through shared memory, TCP and MPI.
TEST(Pipeline, EveryKindOfTensorTravelsBetweenProcesses) {
  const Outcome one = run({.schedule = one_rank(3)}, {make_batches(3, 2)});
  double sum = 0;
  for (const auto& [name, gradient] : one.gradients) sum += gradient.sum().item<double>();
  const auto expect_equal = [&](const std::pair<double, double>& found) {
    EXPECT_NEAR(found.first, one.losses[0], 1e-12);
    EXPECT_NEAR(found.second, sum, 1e-10);
  };
  for (const char* schedule : {"1f1b", "zb-v"}) {
    expect_equal(of_processes(schedule, 2, [](const auto& words) { return test::start_on_one_host(2, words); }));
    expect_equal(of_processes(schedule, 4, [](const auto& words) { return test::start_on_two_hosts(4, words); }));
    if (test::has_mpirun()) expect_equal(of_processes(schedule, 4, test::start_under_mpirun));
  }
}

struct Recorder : StepObserver {
  std::vector<std::string> events;
  void before_layer(int layer, Pass pass) override {
    events.push_back(fmt::format("{}{}", "fbiw"[static_cast<int>(pass)], layer));
  }
  void after_layer(int, Pass pass) override {
    if (contributes(pass)) events.push_back("+");
  }
  void end_step() override { events.push_back("."); }
};

TEST(Pipeline, ObserversSeeLayersAndContributions) {
  dist::DeviceMesh mesh;
  auto model = nn::build_model(chain({.blocks = 2, .tied = false}), mesh,
                               {.dtype = base::DType::f64}, {2}, {0});
  model->store.materialize(3, true);
  for (const auto& [program, events] : {std::pair("0F0 0B0", "f0 f1 f2 f3 b3 + b2 + b1 + b0 + . "),
                                        std::pair("0F0 0I0 0W0",
                                                  "f0 f1 f2 f3 i3 i2 i1 i0 w3 + w2 + w1 + w0 + . ")}) {
    Recorder recorder;
    Executor executor(schedule::parse(program, "own"), *model, mesh, {}, &recorder);
    executor.run(make_batches(1, 2), {}, nn::Mode::train);
    std::string text;
    for (const std::string& event : recorder.events) text += event + " ";
    EXPECT_EQ(text, events);
    // A rank that lacks the micro-batch is told of the same.
    recorder.events.clear();
    executor.run(make_batches(1, 0), {}, nn::Mode::train);
    text.clear();
    for (const std::string& event : recorder.events) text += event + " ";
    EXPECT_EQ(text, events);
  }
}

/// Gradients of a step whose micro-batches weigh `scales` (0: no backward pass) in the caller's
/// loop.
Outcome stepped(const Schedule& schedule, const std::vector<nn::Batch>& batches,
                const std::vector<double>& scales) {
  Outcome outcome;
  outcome.losses.resize(schedule.ranks);
  std::mutex mutex;
  dist::run_ranks(schedule.ranks, [&](dist::World& world) {
    dist::DeviceMesh mesh(world, layout::Mesh({.pp = schedule.ranks, .dp = 1, .tp = 1}));
    auto model =
        nn::build_model(chain(), mesh, {.dtype = base::DType::f64},
                        layout::distribute_layers(8, schedule.chunks), schedule.rank_of_chunk);
    model->store.materialize(3, true);
    optim::GradSync sync(world, mesh, model->store, 0);
    optim::ParamGather parameters(mesh, model->store);
    Overlap overlap(sync, parameters);
    Executor executor(schedule, *model, mesh, {}, &overlap);
    sync.begin();
    Step step = executor.begin(batches, {.seed = 5, .step = 2}, {.outputs = true});
    double sum = 0;
    std::vector<int> seen;
    while (MicroBatch* micro = step.next()) {
      seen.push_back(micro->index());
      sum += micro->terms().sums[0];
      EXPECT_EQ(micro->terms().weights, model->def.loss_weight(batches[micro->index()]));
      EXPECT_EQ(micro->outputs() != nullptr, schedule.rank_of_chunk.back() == world.rank());
      if (scales[micro->index()] != 0) micro->backward(scales[micro->index()]);
    }
    std::vector<int> all(batches.size());
    std::iota(all.begin(), all.end(), 0);
    EXPECT_THAT(seen, ::testing::UnorderedElementsAreArray(all));
    const StepResult result = step.finish();
    EXPECT_NEAR(sum, result.terms.sums[0], 1e-9);
    sync.finish();
    std::lock_guard lock(mutex);
    outcome.losses[world.rank()] = result.loss();
    for (nn::Param* param : model->store.params())
      outcome.gradients[param->spec.name] = param->grad.clone();
  });
  return outcome;
}

TEST(Pipeline, TheCallersLoopDecidesEachBackward) {
  const auto batches = make_batches(5, 2);
  const Outcome one = run({.schedule = one_rank(5)}, {batches});
  const std::vector<double> scales{2, 0, 1, 0.5, 0};
  const Outcome scaled = stepped(one_rank(5), batches, scales);
  EXPECT_GT(error(scaled.gradients, one.gradients), 1e-3);
  for (int p : {1, 2, 3})
    for (const char* name : {"gpipe", "1f1b"}) {
      SCOPED_TRACE(fmt::format("{} {}", name, p));
      const Schedule schedule = generate(name, {.ranks = p, .micro_batches = 5});
      const Outcome whole = stepped(schedule, batches, {1, 1, 1, 1, 1});
      EXPECT_LT(error(whole.gradients, one.gradients), 1e-10);
      for (double loss : whole.losses) EXPECT_NEAR(loss, one.losses[0], 1e-12);
      EXPECT_LT(error(stepped(schedule, batches, scales).gradients, scaled.gradients), 1e-10);
    }
}

/// What each of two stages says when they disagree; the job ends with one of these errors.
std::vector<std::string> errors(const std::array<ChainOptions, 2>& options,
                                std::array<int, 2> rows) {
  std::vector<std::string> said(2);
  auto body = [&](dist::World& world) {
    dist::DeviceMesh mesh(world, layout::Mesh({.pp = 2, .dp = 1, .tp = 1}));
    auto model = nn::build_model(chain(options[world.rank()]), mesh, {.dtype = base::DType::f64},
                                 {4, 4}, {0, 1});
    model->store.materialize(3, true);
    Executor executor(generate("1f1b", {2, 1, 1}), *model, mesh);
    try {
      executor.run(make_batches(1, rows[world.rank()]), {}, nn::Mode::train);
    } catch (const base::CommError& e) {
      said[world.rank()] = e.what();
      throw;
    }
  };
  EXPECT_THROW(dist::run_ranks(2, body), base::CommError);
  return said;
}

TEST(Pipeline, EndsThatDisagreeNameTheEdge) {
  const ChainOptions lie{.lie = true}, other{.hidden = "stream"};
  EXPECT_THAT(
      errors({lie, lie}, {2, 2})[0],
      HasSubstr(
          "pipeline edge from stage 0 to stage 1 (chunks 0 and 1), SendF of micro-batch 0: the "
          "layers describe hidden fp64[2 x 3 x 6], skip fp64[2 x 4 x 6]"));
  EXPECT_THAT(errors({ChainOptions(), other}, {2, 2})[1],
              HasSubstr("RecvF of micro-batch 0: expected stream fp64[2 x 3 x 6]"));
  EXPECT_THAT(errors({}, {2, 3})[1], HasSubstr("RecvF of micro-batch 0"));
}

/// Does something in the middle of a step, on one stage.
struct Trouble : StepObserver {
  explicit Trouble(std::function<void()> act) : act(std::move(act)) {}
  void before_layer(int, Pass) override {
    if (++calls == 6) act();
  }
  std::function<void()> act;
  int calls = 0;
};

/// What stage 0 of two says when stage 1 acts up, with a deadline of half a second.
std::string said_by_the_other(std::function<void()> act) {
  std::string said;
  auto body = [&](dist::World& world) {
    dist::DeviceMesh mesh(world, layout::Mesh({.pp = 2, .dp = 1, .tp = 1}));
    auto model = nn::build_model(chain(), mesh, {.dtype = base::DType::f64}, {4, 4}, {0, 1});
    model->store.materialize(3, true);
    Trouble trouble(act);
    Executor executor(generate("1f1b", {2, 4, 1}), *model, mesh, {},
                      world.rank() == 1 ? &trouble : nullptr);
    try {
      executor.run(make_batches(4, 2), {}, nn::Mode::train);
    } catch (const base::CommError& e) {
      if (world.rank() == 0) said = e.what();
      throw;
    }
  };
  EXPECT_THROW(dist::run_ranks(2, body, 1, std::chrono::milliseconds(500)), base::Error);
  return said;
}

TEST(Pipeline, APeerThatStallsOrDiesIsNamedWithThePlaceInTheSchedule) {
  const auto edge =
      HasSubstr("pipeline edge from stage 1 to stage 0 (chunks 0 and 1), RecvB of micro-batch 0");
  const auto place = HasSubstr("(stage 0 was at 0RecvB0, action 5 of 16 in schedule 1f1b)");
  const std::string stalled =
      said_by_the_other([] { std::this_thread::sleep_for(std::chrono::seconds(2)); });
  EXPECT_THAT(stalled, AllOf(edge, place));
  const std::string died = said_by_the_other([] { throw base::InternalError("out of order"); });
  EXPECT_THAT(died, AllOf(edge, place, HasSubstr("rank 1 ended with an error")));
}

TEST(Pipeline, WhatALayerWaitsForIsNotComputing) {
  std::array<double, 2> computed{};
  dist::run_ranks(2, [&](dist::World& world) {
    dist::DeviceMesh mesh(world, layout::Mesh({.pp = 1, .dp = 2, .tp = 1}));
    auto model = nn::build_model(chain(), mesh, {.dtype = base::DType::f64}, {8}, {0});
    model->store.materialize(3, true);
    Trouble late([&] {
      if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
      int64_t sum = 1;
      mesh.dp.all_reduce(&sum, 1, base::DType::i64).wait();
    });
    Executor executor(one_rank(2), *model, mesh, {}, &late);
    const StepResult result = executor.run(make_batches(2, 2), {}, nn::Mode::train);
    computed[world.rank()] = result.forward_seconds + result.backward_seconds;
  });
  EXPECT_GT(computed[1], 0.3);
  EXPECT_LT(computed[0], computed[1] - 0.2);
}

TEST(Pipeline, AParameterThatTheModelDoesNotUseIsRefusedWithWhatToDo) {
  dist::DeviceMesh mesh;
  nn::ModelDef def = chain({.blocks = 2});
  auto make = def.layers[1].make;
  def.layers[1].make = [make](nn::Builder& b) {
    b.param("unused.weight", {3, 3}, layout::Init::normal(0.5), layout::Sbp::invariant());
    return make(b);
  };
  const auto step = [&](bool frozen) {
    auto model = nn::build_model(def, mesh, {.dtype = base::DType::f64}, {2}, {0});
    model->store.find("unused.weight")->frozen = frozen;
    model->store.materialize(3, true);
    Executor executor(one_rank(2), *model, mesh);
    executor.run(make_batches(2, 2), {}, nn::Mode::train);
  };
  step(true);
  try {
    step(false);
    FAIL();
  } catch (const base::ConfigError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("unused.weight"), HasSubstr("freeze it")));
  }
}

TEST(Pipeline, SchedulesThatDoNotFitAreRefused) {
  dist::DeviceMesh mesh;
  auto model = nn::build_model(chain({.blocks = 2}), mesh, {.dtype = base::DType::f64}, {2}, {0});
  EXPECT_THROW(Executor(generate("1f1b", {2, 2, 1}), *model, mesh), base::ConfigError);
  EXPECT_THROW(Executor(generate("gpipe", {1, 2, 2}), *model, mesh), base::ConfigError);
  EXPECT_THROW(Executor(schedule::parse("0F0 0W0 0I0", "mine"), *model, mesh), base::ConfigError);
  model->store.materialize(3, true);
  Executor executor(one_rank(2), *model, mesh);
  EXPECT_THROW(executor.run(make_batches(3, 1), {}, nn::Mode::train), base::InternalError);
}

}  // namespace
}  // namespace trireme::pipeline::testing
