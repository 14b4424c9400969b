#include "trireme/train/telemetry.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "trireme/base/error.h"
#include "trireme/base/io.h"
#include "trireme/base/median.h"
#include "trireme/base/wording.h"
#include "trireme/checkpoint/together.h"
#include "trireme/dist/device.h"
#include "trireme/dist/redistribute.h"
#include "trireme/train/report.h"

namespace trireme::train {
namespace {

struct Column {
  std::string_view name;
  double Phases::* value;
};
constexpr Column kColumns[] = {{"data", &Phases::data},           {"forward", &Phases::forward},
                               {"backward", &Phases::backward},   {"wait", &Phases::wait},
                               {"optimizer", &Phases::optimizer}, {"checkpoint", &Phases::checkpoint}};
constexpr double kMiB = 1 << 20;

double computing(const Phases& phases) {
  return phases.data + phases.forward + phases.backward + phases.optimizer;
}

// Operations a second of a product of two matrices that lie in the cache, while the other ranks
// multiply too.
double measured_peak(at::ScalarType type, const dist::DeviceMesh& mesh) {
  const int64_t kSide = mesh.device.is_cuda() ? 8192 : 512;  // a GPU needs more to be busy
  constexpr double kSeconds = 0.03;
  at::NoGradGuard no_grad;
  const at::Tensor a = at::ones({kSide, kSide}, at::TensorOptions(type).device(mesh.device));
  at::Tensor out = at::mm(a, a);
  dist::synchronize(mesh.device);
  mesh.world.barrier();
  Stopwatch watch;
  int64_t products = 0;
  do {
    at::mm_out(out, a, a);
    dist::synchronize(mesh.device);
    ++products;
  } while (watch.total() < kSeconds);
  return 2.0 * kSide * kSide * kSide * static_cast<double>(products) / watch.total();
}

base::Json to_json(const comm::Traffic& traffic) {
  return {{"all_reduce", traffic.all_reduce},   {"reduce_scatter", traffic.reduce_scatter},
          {"all_gather", traffic.all_gather},   {"broadcast", traffic.broadcast},
          {"all_to_all", traffic.all_to_all},   {"p2p", traffic.p2p}};
}

std::string row(std::string_view name, const Phases& phases, std::string_view rest) {
  std::string text = fmt::format("{:>6}", name);
  for (const Column& column : kColumns) text += fmt::format("  {:>10.3f}", phases.*column.value);
  return text + std::string(rest) + "\n";
}

}  // namespace

StepFigures figures_of(const std::vector<Phases>& ranks) {
  StepFigures figures;
  std::vector<double> times;
  for (const Phases& rank : ranks) {
    for (const Column& column : kColumns)
      figures.phases.*column.value += rank.*column.value / static_cast<double>(ranks.size());
    times.push_back(computing(rank));
  }
  const auto slowest = std::ranges::max_element(times);
  figures.slowest_rank = static_cast<int>(slowest - times.begin());
  const double longest = *slowest, usual = base::median(times);
  if (usual > 0) figures.slowest_excess = longest / usual - 1;
  return figures;
}

Telemetry::Telemetry(const Prepared& run, const dist::DeviceMesh& mesh)
    : run_(run), mesh_(mesh), sums_(static_cast<size_t>(mesh.world.size())) {
  for (const layout::LayerDescription& layer : run.description.layers)
    sample_flops_ += 3 * layer.flops;
  const config::Telemetry& options = run.config.train.telemetry;
  peak_flops_ = options.peak_tflops
                    ? *options.peak_tflops * 1e12
                    : measured_peak(dist::scalar_type(run.placement.options.dtype), mesh);
  mesh.world.all_reduce(&peak_flops_, 1, base::DType::f64).wait();
}

StepFigures Telemetry::share(const Phases& own, bool stop, bool saving) {
  constexpr size_t kNumbers = std::size(kColumns) + 3;
  std::array<double, kNumbers> mine;
  for (size_t i = 0; i < std::size(kColumns); ++i) mine[i] = own.*kColumns[i].value;
  mine[kNumbers - 3] = stop;
  mine[kNumbers - 2] = saving;
  mine[kNumbers - 1] = static_cast<double>(dist::memory_counters(mesh_.device).peak);
  std::vector<std::array<double, kNumbers>> all(sums_.size());
  const std::vector<int64_t> counts(sums_.size(), kNumbers);
  mesh_.world.all_gather(mine.data(), all.data(), counts, base::DType::f64).wait();

  std::vector<Phases> ranks(all.size());
  for (size_t r = 0; r < all.size(); ++r)
    for (size_t i = 0; i < std::size(kColumns); ++i) {
      ranks[r].*kColumns[i].value = all[r][i];
      sums_[r].*kColumns[i].value += all[r][i];
    }
  ++steps_;
  StepFigures figures = figures_of(ranks);
  for (const auto& rank : all) {
    figures.stop |= rank[kNumbers - 3] != 0;
    figures.saving |= rank[kNumbers - 2] != 0;
    figures.memory = std::max(figures.memory, static_cast<int64_t>(rank[kNumbers - 1]));
  }
  return figures;
}

double Telemetry::utilization(int64_t samples, double seconds) const {
  return sample_flops_ * static_cast<double>(samples) / (seconds * peak_flops_);
}

std::vector<LayerNorms> Telemetry::layer_norms(const optim::ShardedOptimizer& optimizer, int64_t step,
                                               double loss_scale) const {
  const std::optional<int64_t> period = run_.config.train.telemetry.layer_norms;
  if (!period || step % *period != 0) return {};
  std::map<std::string, size_t> layer_of;
  const std::vector<layout::LayerDescription>& layers = run_.description.layers;
  for (size_t i = 0; i < layers.size(); ++i)
    for (const std::string& name : layers[i].parameters) layer_of.emplace(name, i);
  const auto squares = optimizer.squares(layers.size(), [&](const std::string& name) { return layer_of.at(name); });
  std::vector<LayerNorms> norms;
  for (size_t i = 0; i < layers.size(); ++i)
    norms.push_back({layers[i].name, std::sqrt(squares[i].gradients) / loss_scale, std::sqrt(squares[i].parameters)});
  return norms;
}

base::Json Telemetry::own_report() const {
  const RankMemory expected =
      rank_memory(run_.description, mesh_.mesh, mesh_.coord, run_.config.optim,
                  run_.config.train.zero_optimization.effective_stage());
  const kernels::MemoryCounters memory = dist::memory_counters(mesh_.device);
  base::Json seconds = base::Json::object();
  for (const Column& column : kColumns)
    seconds[column.name] = sums_[static_cast<size_t>(mesh_.world.rank())].*column.value;
  return {{"rank", mesh_.world.rank()},
          {"stage", mesh_.coord.pp},
          {"data_rank", mesh_.coord.dp},
          {"tensor_rank", mesh_.coord.tp},
          {"seconds", seconds},
          {"memory",
           {{"peak", memory.peak},
            {"live", memory.live},
            {"expected",
             {{"parameters", expected.parameters},
              {"gradients", expected.gradients},
              {"optimizer", expected.optimizer},
              {"working", expected.working}}}}},
          {"bytes_sent",
           {{"data", to_json(mesh_.dp.traffic())},
            {"tensor", to_json(mesh_.tp.traffic())},
            {"pipeline", to_json(mesh_.pp.traffic())},
            {"world", to_json(mesh_.world.traffic())}}}};
}

std::string Telemetry::write_report(const std::string& folder, double checkpoint_seconds) {
  sums_[static_cast<size_t>(mesh_.world.rank())].checkpoint += checkpoint_seconds;
  const std::vector<std::string> reports =
      checkpoint::together(mesh_.world, [&] { return own_report().dump(); });
  std::string table;
  checkpoint::together(mesh_.world, [&] {
    if (mesh_.world.rank() != 0) return std::string();
    base::Json ranks = base::Json::array();
    for (size_t r = 0; r < reports.size(); ++r) {
      ranks.push_back(base::parse_json(reports[r], "a rank's report"));
      sums_[r].checkpoint = ranks[r]["seconds"]["checkpoint"].get<double>();
    }
    const base::Json whole = {{"steps", steps_},
                              {"flops_per_sample", sample_flops_},
                              {"peak_flops", peak_flops_},
                              {"ranks", ranks}};
    base::write_file_atomic(folder + "/telemetry.json", whole.dump(1) + "\n");

    table = fmt::format("where {} went, in seconds\n{:>6}", base::counted(steps_, "step"), "rank");
    for (const Column& column : kColumns) table += fmt::format("  {:>10}", column.name);
    table += fmt::format("  {:>9}  {:>9}\n", "peak MiB", "fixed MiB");
    constexpr size_t kShown = 16;
    for (size_t r = 0; r < std::min(ranks.size(), kShown); ++r) {
      const base::Json& memory = ranks[r]["memory"];
      int64_t fixed = 0;
      for (const auto& [name, bytes] : memory["expected"].items()) fixed += bytes.get<int64_t>();
      table += row(std::to_string(r), sums_[r],
                   fmt::format("  {:>9.1f}  {:>9.1f}", memory["peak"].get<double>() / kMiB,
                               static_cast<double>(fixed) / kMiB));
    }
    const StepFigures figures = figures_of(sums_);
    table += row("mean", figures.phases, "");
    if (ranks.size() > 1)
      table += fmt::format("rank {} computed longest, {:.0f} % more than the median\n",
                           figures.slowest_rank, figures.slowest_excess * 100);
    table += fmt::format("fixed: parameters, gradients and optimizer state; all of it: {}/telemetry.json",
                         folder);
    return std::string();
  });
  return table;
}

}  // namespace trireme::train
