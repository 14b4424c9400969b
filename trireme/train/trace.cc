#include "trireme/train/trace.h"

#include <algorithm>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/base/io.h"
#include "trireme/base/median.h"
#include "trireme/schedule/draw.h"

namespace trireme::train {

using base::median;
using schedule::Op;
using schedule::Span;

namespace {

/// The median times of each chunk's actions; of a full backward each kind takes half.
schedule::Costs measured_costs(const schedule::Schedule& schedule, const schedule::Simulation& measured) {
  struct Times {
    std::vector<double> f, b, i, w;
  };
  std::vector<Times> times(schedule.chunks);
  for (const auto& row : measured.timeline)
    for (const Span& span : row) {
      Times& of = times[span.action.chunk];
      auto& kind = span.action.op == Op::F   ? of.f
                   : span.action.op == Op::B ? of.b
                   : span.action.op == Op::I ? of.i
                                             : of.w;
      kind.push_back(span.end - span.begin);
    }
  schedule::Costs costs;
  for (const Times& of : times) {
    const double half = median(of.b) / 2;
    costs.chunks.push_back({.f = median(of.f),
                            .i = of.i.empty() ? half : median(of.i),
                            .w = of.w.empty() ? half : median(of.w),
                            .activation = static_cast<double>(schedule.ranks) / schedule.chunks});
  }
  return costs;
}

/// The compute actions of all stages, in milliseconds since the start of the step. Collective over the pipeline axis.
schedule::Simulation gather_timeline(const schedule::Schedule& schedule,
                                     const pipeline::StepResult& result,
                                     const dist::DeviceMesh& mesh) {
  constexpr int64_t kFields = 5;
  std::vector<double> own;
  for (const Span& span : result.executed)
    if (schedule::is_compute(span.action.op))
      own.insert(own.end(),
                 {static_cast<double>(span.action.op), static_cast<double>(span.action.chunk),
                  static_cast<double>(span.action.micro_batch), span.begin * 1e3, span.end * 1e3});
  const comm::Comm& pp = mesh.pp;
  std::vector<int64_t> counts(pp.size()), ones(pp.size(), 1);
  const int64_t count = std::ssize(own);
  pp.all_gather(&count, counts.data(), ones, base::DType::i64).wait();
  std::vector<double> all(std::reduce(counts.begin(), counts.end()));
  pp.all_gather(own.data(), all.data(), counts, base::DType::f64).wait();

  std::vector<std::vector<Span>> timeline(pp.size());
  const double* at = all.data();
  for (int stage = 0; stage < pp.size(); ++stage)
    for (int64_t i = 0; i < counts[stage]; i += kFields, at += kFields)
      timeline[stage].push_back(
          {{static_cast<schedule::Op>(at[0]), static_cast<int>(at[1]), static_cast<int>(at[2])},
           at[3],
           at[4]});
  return schedule::summarize(schedule, std::move(timeline), {});
}

}  // namespace

std::string write_trace(const std::string& folder, int64_t step, const schedule::Schedule& schedule,
                        const pipeline::StepResult& result, const dist::DeviceMesh& mesh) {
  const schedule::Simulation measured = gather_timeline(schedule, result, mesh);
  if (mesh.world.rank() != 0) return "";
  base::make_folders(folder, "making the folder of traces");
  const schedule::Costs costs = measured_costs(schedule, measured);
  const std::string text =
      fmt::format("step {}, schedule {}, milliseconds\n{}", step, schedule.name,
                  schedule::draw_measured(measured, schedule::simulate(schedule, costs)));
  const std::string base = fmt::format("{}/step_{:08}", folder, step);
  // As wide as a window, whatever the shortest action.
  constexpr double kColumns = 90, kPixels = 1500;
  base::Json document = schedule::to_json(schedule, costs, measured);
  document["unit"] = "ms";
  base::write_file_atomic(base + ".svg", schedule::draw_svg(schedule, measured, kPixels));
  base::write_file_atomic(base + ".trace.json", schedule::chrome_trace(schedule, measured).dump());
  base::write_file_atomic(base + ".json", document.dump());
  base::write_file_atomic(base + ".txt", text + schedule::draw_text(schedule, measured, kColumns));
  return text;
}

}  // namespace trireme::train
