// Every family against Hugging Face's own numbers (hf_case.py writes them): outputs, loss, every gradient and three steps
// of AdamW on each layout. A case is a folder; one more needs nothing here.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "tests/support/shards.h"
#include "trireme/base/error.h"
#include "trireme/dist/redistribute.h"
#include "trireme/generate/generator.h"
#include "trireme/models/family.h"
#include "trireme/models/registry.h"
#include "trireme/optim/groups.h"
#include "trireme/schedule/generators.h"
#include "trireme/train/assembly.h"
#include "trireme/train/execute_pipeline.h"

extern "C" void trireme_plugin();  // docs/add-a-model.md's family

namespace trireme {
namespace {

const bool kHasExample = (trireme_plugin(), true);
constexpr int kMicroBatches = 3, kSteps = 3;
constexpr double kLr = 1e-2, kEps = 1e-4;  // as in hf_case.py

struct Case {
  std::string name;
  base::Json model = {};
  test::Tensors weights = {}, inputs = {}, outputs = {}, gradients = {}, after = {};
  double loss = 0;
  bool has_loss = true;
  bool wide = false;  // fp64
  bool few = false;   // layouts, unless TRIREME_FULL is set
  bool every = false;
  int blocks = 0;
  std::vector<int> tp = {}, dp = {};
  std::map<std::string, std::vector<int64_t>> prompts = {}, greedy = {};  // by number
  std::optional<double> own_bound = {};
  std::vector<std::string> zero = {};  // endings of parameters whose gradients are zero in theory
  double bound() const { return own_bound.value_or(wide ? 1e-9 : 1e-5); }
  bool is_zero(const std::string& name) const {
    return std::ranges::any_of(zero, [&](const std::string& ending) { return name.ends_with(ending); });
  }
};

std::vector<int64_t> ids_of(const at::Tensor& tensor) {
  return {tensor.data_ptr<int64_t>(), tensor.data_ptr<int64_t>() + tensor.numel()};
}

Case read_case(const std::filesystem::path& folder) {
  Case c{.name = folder.filename(), .model = base::read_json(folder / "config.json")};
  const base::Json facts = base::read_json(folder / "case.json");
  c.blocks = facts.at("blocks");
  c.few = facts.value("layouts", "all") == "few";
  c.every = facts.value("layouts", "all") == "every";
  c.tp = facts.at("tp").get<std::vector<int>>();
  c.dp = facts.value("dp", std::vector<int>{1, 2});
  c.wide = facts.at("dtype") == "fp64";
  c.has_loss = facts.value("loss", true);
  if (facts.contains("bound") && facts["bound"].is_number()) c.own_bound = facts["bound"].get<double>();
  c.zero = facts.value("zero", std::vector<std::string>());
  c.weights = test::read_tensors(folder / "model.safetensors");
  for (const auto& [name, tensor] : test::read_tensors(folder / "expected.safetensors")) {
    const std::string kind = name.substr(0, name.find('.')), rest = name.substr(name.find('.') + 1);
    if (kind == "loss") c.loss = tensor.item<double>();
    if (kind == "input") c.inputs[rest] = tensor;
    if (kind == "output") c.outputs[rest] = tensor;
    if (kind == "grad") c.gradients[rest] = tensor;
    if (kind == "after") c.after[rest] = tensor;
    if (kind == "prompt") c.prompts[rest] = ids_of(tensor);
    if (kind == "greedy") c.greedy[rest] = ids_of(tensor);
  }
  return c;
}

/// Rows of this data rank's micro-batch m: global row (m * dp + rank) * rows + i.
std::vector<nn::Batch> batches_of(const Case& c, const dist::DeviceMesh& mesh) {
  const int64_t dp = mesh.dp.size(), rows = c.inputs.begin()->second.size(0) / kMicroBatches / dp;
  std::vector<nn::Batch> batches;
  for (int64_t m = 0; m < kMicroBatches; ++m) {
    const int64_t first = (m * dp + mesh.dp.rank()) * rows;
    nn::Batch& batch = batches.emplace_back();
    for (const auto& [name, tensor] : c.inputs) batch.tensors.set(name, tensor.narrow(0, first, rows));
    const nn::BatchShape shape = nn::shape_of(batch.tensors);
    batch.rows = rows;
    batch.seq = shape.seq;
    batch.source_seq = shape.source_seq;
    batch.samples = at::arange(first, first + rows, at::kLong);
    nn::flatten_choices(batch);
  }
  return batches;
}

/// This rank's outputs against the rows they are of; those split over tp by their last dimension are gathered.
double output_error(const Case& c, const std::vector<nn::State>& outputs, const std::vector<nn::Batch>& batches,
                    const comm::Comm& tp) {
  double worst = 0;
  for (size_t m = 0; m < outputs.size(); ++m)
    for (const auto& [name, want] : c.outputs) {
      at::Tensor got = outputs[m].at(name);
      if (tp.size() > 1 && name == "logits" && got.size(-1) < want.size(-1)) got = dist::all_gather(got, tp, got.dim() - 1, want.size(-1));
      const int64_t count = batches[m].rows / batches[m].choices;
      at::Tensor rows = want.narrow(0, batches[m].samples[0].item<int64_t>() / batches[m].choices, count);
      worst = std::max(worst, test::error(got, rows, 1));
    }
  return worst;
}

struct Numbers {
  double loss = 0, output_error = 0;
  test::Tensors gradients, after;
};

void fill(const Case& c, nn::ParamStore& store) {
  for (nn::Param* p : store.params()) {
    if (!c.weights.contains(p->spec.name)) throw base::InternalError("transformers has no " + p->spec.name);
    test::scatter(c.weights.at(p->spec.name), *p, p->data);
  }
}

struct Layout {
  layout::Coord sizes = {};
  bool sequence_parallel = false;
  layout::Axis experts = layout::Axis::tp;
  int zero = 0;  // stage; parameters are whole
  const char* schedule = "1f1b";
};

Numbers run(const Case& c, const Layout& layout) {
  const layout::Coord& sizes = layout.sizes;
  Numbers numbers;
  test::Gathered gradients, after;
  std::mutex mutex;
  train::Placement placement{
      .mesh = layout::Mesh(sizes),
      .schedule = schedule::generate(layout.schedule, {.ranks = sizes.pp, .micro_batches = kMicroBatches}),
      .options = {.dtype = c.wide ? base::DType::f64 : base::DType::f32,
                  .sequence_parallel = layout.sequence_parallel,
                  .expert_axis = layout.experts}};
  config::Optim optim;
  optim.name = "adamw";
  optim.eps = kEps;
  optim.betas = {0.9, 0.999};
  optim.weight_decay = 0;
  optim.clip_grad_max_norm = std::nullopt;
  if (c.model.contains("adapter")) optim.groups = {{.pattern = "*.lora_*"}, {.pattern = "*", .freeze = true}};
  dist::run_ranks(placement.mesh.size(), [&](dist::World& world) {
    auto model = train::assemble(c.model, placement, 1, world);
    optim::freeze(model->model->store, optim);
    train::make_parameters(*model, true, nullptr, layout.zero);
    nn::ParamStore& store = model->model->store;
    fill(c, store);
    optim::ShardedOptimizer optimizer(world, model->mesh, store, optim, layout.zero);
    train::OverlappedSync overlap(optimizer.sync(), model->parameters.get());
    const std::vector<nn::Batch> batches = batches_of(c, model->mesh);
    pipeline::Executor executor(model->schedule, *model->model, model->mesh, {}, layout.zero > 0 ? &overlap : nullptr);
    // Where outputs are wanted, the head's scores are made whole; else they need not be.
    const bool from_head = model->model->def.loss.from_head;
    for (int step = 0; step < kSteps; ++step) {
      std::optional<pipeline::StepResult> whole;
      if (from_head && step == 0) whole = train::execute_pipeline(executor, optimizer, batches, {}, {.outputs = true});
      pipeline::StepResult done = train::execute_pipeline(executor, optimizer, batches, {}, {.outputs = !from_head});
      optimizer.step(kLr);
      model->model->average(static_cast<double>(step + 1) / kSteps);
      if (step > 0) continue;
      optimizer.sync().gather();
      if (whole) {
        EXPECT_NEAR(whole->loss(), done.loss(), c.bound() * std::abs(done.loss()));
        std::swap(whole->outputs, done.outputs);
      }
      for (nn::Param* p : store.params())
        if (!p->frozen) gradients.add(p->spec.name, *p, p->grad);
      const double error = output_error(c, done.outputs, batches, model->mesh.tp);
      std::lock_guard lock(mutex);
      numbers.loss = done.loss();
      numbers.output_error = std::max(numbers.output_error, error);
    }
    for (nn::Param* p : store.params()) after.add(p->spec.name, *p, p->data);
  });
  numbers.gradients = gradients.take();
  numbers.after = after.take();
  return numbers;
}

/// Of a head without a loss: the error of what it makes.
double forward_error(const Case& c, const Layout& layout) {
  double worst = 0;
  std::mutex mutex;
  train::Placement placement =
      train::forward_placement(layout::Mesh(layout.sizes), c.wide ? base::DType::f64 : base::DType::f32, kMicroBatches);
  placement.options.sequence_parallel = layout.sequence_parallel;
  dist::run_ranks(placement.mesh.size(), [&](dist::World& world) {
    auto model = train::assemble(c.model, placement, 1, world);
    train::make_parameters(*model, false, nullptr);
    fill(c, model->model->store);
    const std::vector<nn::Batch> batches = batches_of(c, model->mesh);
    pipeline::Executor executor(model->schedule, *model->model, model->mesh);
    const auto done = executor.run(batches, {}, nn::Mode::eval, {.loss = false, .outputs = true});
    const double error = output_error(c, done.outputs, batches, model->mesh.tp);
    std::lock_guard lock(mutex);
    worst = std::max(worst, error);
  });
  return worst;
}

/// The worst error of gradients. One that is zero in theory has no size of its own: it is compared with that of all.
test::Worst gradient_error(const Case& c, test::Tensors got) {
  test::Tensors want = c.gradients;
  const double scale = test::rms(want);
  test::Worst found;
  for (auto it = want.begin(); it != want.end();) {
    const auto& [name, tensor] = *it;
    if (c.is_zero(name) && got.contains(name)) {
      const double size = scale * std::sqrt(static_cast<double>(tensor.numel()));
      const double error = (got.at(name).flatten() - tensor.flatten()).norm().item<double>() / size;
      if (error > found.error) found = {error, name};
      got.erase(name);
      it = want.erase(it);
    } else {
      ++it;
    }
  }
  const test::Worst rest = test::worst(got, want);
  return rest.error > found.error ? rest : found;
}

/// The largest difference of any element, in learning rates.
double step_error(const test::Tensors& got, const test::Tensors& want) {
  double worst = 0;
  for (const auto& [name, tensor] : want)
    worst = std::max(worst, (got.at(name).flatten() - tensor.flatten()).abs().max().item<double>() / kLr);
  return worst;
}

void compare(const Case& c, const Layout& layout) {
  if (!c.has_loss) {
    EXPECT_LT(forward_error(c, layout), c.bound());
    return;
  }
  const Numbers got = run(c, layout);
  const test::Worst worst = gradient_error(c, got.gradients);
  EXPECT_LT(worst.error, c.bound()) << worst.name;
  EXPECT_LT(std::abs(got.loss / c.loss - 1), c.bound());
  EXPECT_LT(got.output_error, c.bound());
  EXPECT_LT(step_error(got.after, c.after), 1e-3);
}

std::vector<std::filesystem::path> cases() {
  std::vector<std::filesystem::path> folders;
  const char* root = std::getenv("TRIREME_HF_FIXTURES");
  if (root && std::filesystem::is_directory(root))
    for (const auto& entry : std::filesystem::directory_iterator(root))
      if (std::filesystem::exists(entry.path() / "case.json")) folders.push_back(entry.path());
  std::sort(folders.begin(), folders.end());
  return folders;
}

// One test, since the cases are files that appear after the binary is listed. TRIREME_HF_CASE picks by a part of the name.
TEST(HfFamilies, EveryLayoutGivesHuggingFacesNumbers) {
  const char* wanted = std::getenv("TRIREME_HF_CASE");
  const bool full = std::getenv("TRIREME_FULL") || wanted;
  int ran = 0, turn = 0;  // a case runs alone, on all axes, and on a third of what is between, each case on another
  for (const std::filesystem::path& folder : cases()) {
    ++turn;
    if (wanted && folder.filename().string().find(wanted) == std::string::npos) continue;
    const Case c = read_case(folder);
    int place = turn;
    for (const layout::Coord& sizes : {layout::Coord{.pp = 1, .dp = 1, .tp = 1},
                                       {.pp = 1, .dp = 1, .tp = 2},
                                       {.pp = 1, .dp = 1, .tp = 4},
                                       {.pp = 1, .dp = 1, .tp = 8},
                                       {.pp = 1, .dp = 2, .tp = 1},
                                       {.pp = 2, .dp = 1, .tp = 1},
                                       {.pp = 4, .dp = 1, .tp = 1},
                                       {.pp = 1, .dp = 2, .tp = 2},
                                       {.pp = 2, .dp = 2, .tp = 1},
                                       {.pp = 2, .dp = 1, .tp = 2},
                                       {.pp = 4, .dp = 1, .tp = 2},
                                       {.pp = 2, .dp = 2, .tp = 2}})
      for (bool sp : {false, true}) {
        if ((sp && sizes.tp == 1) || sizes.pp > c.blocks) continue;
        if (std::ranges::find(c.tp, sizes.tp) == c.tp.end() || std::ranges::find(c.dp, sizes.dp) == c.dp.end()) continue;
        // One rank and all axes at once show most of what can go wrong.
        const bool end = sizes.pp * sizes.dp * sizes.tp == 1 || (sp && sizes == layout::Coord{.pp = 2, .dp = 2, .tp = 2});
        if (!end && !full && !c.every && (c.few || ++place % 3 != 0)) continue;
        SCOPED_TRACE(fmt::format("{} pp {} dp {} tp {}{}", c.name, sizes.pp, sizes.dp, sizes.tp, sp ? " sp" : ""));
        try {
          compare(c, {sizes, sp});
        } catch (const std::exception& error) {
          ADD_FAILURE() << error.what();
          break;
        }
        ++ran;
      }
  }
  EXPECT_GE(ran, wanted ? 1 : 12);
}

// Five experts on two data ranks, which exchange tokens.
TEST(HfFamilies, ExpertsOnDataRanksGiveHuggingFacesNumbers) {
  const char* wanted = std::getenv("TRIREME_HF_CASE");
  std::set<std::string> families;
  for (const std::filesystem::path& folder : cases()) {
    if (wanted && folder.filename().string().find(wanted) == std::string::npos) continue;
    const Case c = read_case(folder);
    if (!c.model.contains("num_local_experts") && !c.model.contains("num_experts")) continue;
    if (std::ranges::find(c.dp, 2) == c.dp.end() || !families.insert(c.model.at("model_type")).second) continue;
    for (const Layout& layout : {Layout{{.pp = 1, .dp = 2, .tp = 1}, false, layout::Axis::dp},
                                 {{.pp = 1, .dp = 2, .tp = 2}, true, layout::Axis::dp, 1},
                                 {{.pp = 2, .dp = 2, .tp = 1}, false, layout::Axis::dp, 0, "zb-h1"},
                                 {{.pp = 2, .dp = 2, .tp = 2}, true, layout::Axis::dp, 2}}) {
      SCOPED_TRACE(fmt::format("{} pp {} dp {} tp {} ZeRO {}", c.name, layout.sizes.pp, layout.sizes.dp, layout.sizes.tp, layout.zero));
      try {
        compare(c, layout);
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
    }
  }
  if (!wanted) {
    EXPECT_GE(families.size(), 2u);
  }
}

TEST(HfFamilies, DataRanksThatShareOutExpertsHaveRowsOfEachMicroBatch) {
  for (const std::filesystem::path& folder : cases()) {
    if (folder.filename() != "mixtral_fp32") continue;
    const Case c = read_case(folder);
    const train::Placement placement{.mesh = layout::Mesh({.pp = 1, .dp = 2, .tp = 1}),
                                     .schedule = schedule::generate("1f1b", {.ranks = 1, .micro_batches = kMicroBatches}),
                                     .options = {.expert_axis = layout::Axis::dp}};
    const auto lacking = [&](dist::World& world) {
      auto model = train::assemble(c.model, placement, 1, world);
      train::make_parameters(*model, true, nullptr);
      std::vector<nn::Batch> batches = batches_of(c, model->mesh);
      if (world.rank() == 1) batches[1].rows = 0;
      pipeline::Executor(model->schedule, *model->model, model->mesh).run(batches, {}, nn::Mode::train);
    };
    EXPECT_THROW(dist::run_ranks(2, lacking), base::ConfigError);
  }
}

/// What the cases of a family show together.
struct Shown {
  std::set<models::HeadKind> heads = {};
  bool any = false, tensor = false, pipeline = false, tied = false;
};

// What `trireme models` lists has been compared, and what has been compared is listed.
TEST(HfFamilies, TheTableIsWhatTheCasesShow) {
  std::map<std::string, Shown> shown;
  for (const std::filesystem::path& folder : cases()) {
    const base::Json model = base::read_json(folder / "config.json"), facts = base::read_json(folder / "case.json");
    const std::string family = model.at("model_type");
    const models::Support& claimed = models::families().get(family).support;
    Shown& of = shown[family];
    of.any = true;
    of.tensor |= facts.at("tp").size() > 1;
    of.pipeline |= facts.at("blocks") > 1;
    of.tied |= models::resolve_model(model).value("tie_word_embeddings", true);
    if (claimed.heads.empty()) continue;
    EXPECT_NO_THROW(of.heads.insert(models::head_of(model, family, claimed.heads, claimed.heads.front()))) << folder;
  }
  EXPECT_TRUE(kHasExample);
  for (const std::string& family : models::families().names()) {
    SCOPED_TRACE(family);
    const models::Support& claimed = models::families().get(family).support;
    const Shown& of = shown[family];
    EXPECT_TRUE(of.any && (claimed.heads.empty() != claimed.task.empty()));
    EXPECT_EQ(of.heads, std::set<models::HeadKind>(claimed.heads.begin(), claimed.heads.end()));
    // Sequence parallelism runs wherever there are tensor ranks.
    EXPECT_EQ(of.tensor, !claimed.tensor.empty());
    EXPECT_EQ(of.tensor, !claimed.sequence.empty());
    EXPECT_EQ(of.pipeline, !claimed.pipeline.empty());
    if (!claimed.ties.empty()) {
      EXPECT_TRUE(of.tied);
    }
  }
}

// With a cache of keys and values.
TEST(HfFamilies, EveryLayoutContinuesAsHuggingFace) {
  const char* wanted = std::getenv("TRIREME_HF_CASE");
  const bool full = std::getenv("TRIREME_FULL") || wanted;
  for (const std::filesystem::path& folder : cases()) {
    if (wanted && folder.filename().string().find(wanted) == std::string::npos) continue;
    const Case c = read_case(folder);
    if (c.prompts.empty()) continue;
    for (const layout::Coord& sizes : {layout::Coord{.pp = 1, .dp = 1, .tp = 1},
                                       {.pp = 1, .dp = 1, .tp = 2},
                                       {.pp = 2, .dp = 1, .tp = 1},
                                       {.pp = 2, .dp = 1, .tp = 2},
                                       {.pp = 2, .dp = 1, .tp = 4}}) {
      if (std::ranges::find(c.tp, sizes.tp) == c.tp.end() || (!full && sizes.pp * sizes.tp == 2)) continue;
      const layout::Mesh mesh(sizes);
      dist::run_ranks(mesh.size(), [&](dist::World& world) {
        const base::DType dtype = c.wide ? base::DType::f64 : base::DType::f32;
        auto model = train::assemble(c.model, train::forward_placement(mesh, dtype, 1), 1, world);
        train::make_parameters(*model, false, nullptr);
        fill(c, model->model->store);
        for (const auto& [number, want] : c.greedy) {
          const generate::Request request{
              .prompts = {c.prompts.at(number)}, .max_new_tokens = std::ssize(want), .sampling = {.greedy = true}};
          const auto found = generate::generate(*model->model, model->mesh, request);
          if (world.rank() > 0) continue;
          EXPECT_EQ(found[0].new_ids, want) << c.name << " tp " << sizes.tp << " pp " << sizes.pp << " " << number;
        }
      });
    }
  }
}

}  // namespace
}  // namespace trireme
