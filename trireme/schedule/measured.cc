#include "trireme/schedule/measured.h"

#include <fmt/format.h>

#include <algorithm>

namespace trireme::schedule {

namespace {

double busy_of(const std::vector<Span>& row) {
  double busy = 0;
  for (const Span& span : row) busy += span.end - span.begin;
  return busy;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

double share_idle(const std::vector<Span>& row, double makespan) {
  return makespan > 0 ? 1 - busy_of(row) / makespan : 0;
}

}  // namespace

Simulation measured(const Schedule& schedule, std::vector<std::vector<Span>> timeline) {
  Simulation result;
  const double part = static_cast<double>(schedule.ranks) / schedule.chunks;
  double idle = 0, first = 0;
  for (const auto& row : timeline)
    if (!row.empty())
      first = result.makespan == 0 ? row.front().begin : std::min(first, row.front().begin),
      result.makespan = std::max(result.makespan, row.back().end);
  result.makespan -= first;
  for (auto& row : timeline) {
    double live = 0, peak = 0;
    for (Span& span : row) {
      span.begin -= first, span.end -= first;
      if (span.action.op == Op::F) peak = std::max(peak, live += part);
      if (span.action.op == Op::B || span.action.op == Op::W || schedule.forward_only())
        live -= part;
    }
    result.peak_activations.push_back(peak);
    const double busy = busy_of(row), own = row.empty() ? 0 : row.back().end - row.front().begin;
    idle += result.makespan - busy;
    if (own > 0) result.bubble_own = std::max(result.bubble_own, 1 - busy / own);
  }
  if (result.makespan > 0) result.bubble = idle / (schedule.ranks * result.makespan);
  result.timeline = std::move(timeline);
  return result;
}

Costs measured_costs(const Schedule& schedule, const Simulation& measured) {
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
  Costs costs;
  for (const Times& of : times) {
    const double half = median(of.b) / 2;
    costs.chunks.push_back({.f = median(of.f),
                            .i = of.i.empty() ? half : median(of.i),
                            .w = of.w.empty() ? half : median(of.w),
                            .activation = static_cast<double>(schedule.ranks) / schedule.chunks});
  }
  return costs;
}

std::string compare(const Simulation& measured, const Simulation& simulated) {
  std::string text = fmt::format("{:>5}  {:>10}  {:>10}  {:>16}  {:>16}\n", "stage", "busy",
                                 "simulated", "measured bubble", "simulated bubble");
  for (size_t rank = 0; rank < measured.timeline.size(); ++rank)
    text += fmt::format("{:>5}  {:>10.3f}  {:>10.3f}  {:>14.1f} %  {:>14.1f} %\n", rank,
                        busy_of(measured.timeline[rank]), busy_of(simulated.timeline[rank]),
                        100 * share_idle(measured.timeline[rank], measured.makespan),
                        100 * share_idle(simulated.timeline[rank], simulated.makespan));
  return text + fmt::format("{:>5}  {:>10.3f}  {:>10.3f}  {:>14.1f} %  {:>14.1f} %\n", "all",
                            measured.makespan, simulated.makespan, 100 * measured.bubble,
                            100 * simulated.bubble);
}

}  // namespace trireme::schedule
