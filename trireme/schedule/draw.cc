#include "trireme/schedule/draw.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace trireme::schedule {

namespace {

constexpr std::string_view kColours[] = {"#8ecae6", "#90be6d", "#cfe1b9", "#f9c74f"};  // F B I W

/// The cell's label: the chunk only where a rank has several.
std::string label(const Schedule& schedule, const Action& action) {
  if (schedule.chunks > schedule.ranks) return to_string(action);
  return fmt::format("{}{}", name_of(action.op), action.micro_batch);
}

std::string summary(const Schedule& schedule, const Simulation& simulation) {
  return fmt::format(
      "{}: {} stages, {} micro-batches, {} chunks; makespan {:g}, bubble {:.1f} %, own bubble "
      "{:.1f} %, peak activations [{:g}]",
      schedule.name, schedule.ranks, schedule.micro_batches, schedule.chunks, simulation.makespan,
      100 * simulation.bubble, 100 * simulation.bubble_own,
      fmt::join(simulation.peak_activations, ", "));
}

std::string escaped(const std::string& text) {
  std::string out;
  for (char c : text)
    out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  return out;
}

}  // namespace

std::string draw_text(const Schedule& schedule, const Simulation& simulation) {
  // The shortest action is as wide as the longest label and a gap.
  double shortest = std::numeric_limits<double>::infinity();
  size_t widest = 0;
  for (const auto& row : simulation.timeline)
    for (const Span& span : row) {
      if (span.end > span.begin) shortest = std::min(shortest, span.end - span.begin);
      widest = std::max(widest, label(schedule, span.action).size());
    }
  const double scale = std::isinf(shortest) ? 0 : static_cast<double>(widest + 1) / shortest;
  const size_t prefix = std::to_string(schedule.ranks - 1).size();

  std::string text;
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    std::string line;
    for (const Span& span : simulation.timeline[rank]) {
      const auto begin = static_cast<size_t>(std::lround(span.begin * scale));
      const auto end = static_cast<size_t>(std::lround(span.end * scale));
      if (line.size() < begin) line.append(begin - line.size(), '.');
      line += label(schedule, span.action);
      // A long action is drawn out; a gap keeps it apart from the next.
      if (line.size() + 1 < end) line.append(end - line.size() - 1, '-');
      line += ' ';
    }
    while (line.ends_with(' ')) line.pop_back();
    text += fmt::format("rank {:>{}} | {}\n", rank, prefix, line);
  }
  return text + summary(schedule, simulation) + '\n';
}

std::string draw_svg(const Schedule& schedule, const Simulation& simulation) {
  constexpr double kRow = 28, kLeft = 64, kTop = 32;
  double shortest = simulation.makespan;
  for (const auto& row : simulation.timeline)
    for (const Span& span : row)
      if (span.end > span.begin) shortest = std::min(shortest, span.end - span.begin);
  const double scale = shortest > 0 ? 32 / shortest : 0;
  const double width = kLeft + simulation.makespan * scale + 16;
  const double height = kTop + kRow * schedule.ranks + 12;

  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"sans-serif\" font-size=\"11\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"8\" y=\"18\">{2}</text>\n",
      width, height, escaped(summary(schedule, simulation)));
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    const double y = kTop + kRow * rank;
    svg += fmt::format("<text x=\"8\" y=\"{:.1f}\">rank {}</text>\n", y + 17, rank);
    for (const Span& span : simulation.timeline[rank]) {
      const double x = kLeft + span.begin * scale, w = (span.end - span.begin) * scale;
      svg += fmt::format(
          "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" fill=\"{}\" "
          "stroke=\"#333\" stroke-width=\"0.6\"><title>{} {:g} to {:g}</title></rect>\n"
          "<text x=\"{:.2f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n",
          x, y, w, kRow - 4, kColours[static_cast<size_t>(span.action.op)], to_string(span.action),
          span.begin, span.end, x + w / 2, y + 16, label(schedule, span.action));
    }
  }
  return svg + "</svg>\n";
}

base::Json chrome_trace(const Schedule& schedule, const Simulation& simulation) {
  base::Json events = base::Json::array();
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    events.push_back({{"name", "thread_name"},
                      {"ph", "M"},
                      {"pid", 0},
                      {"tid", rank},
                      {"args", {{"name", fmt::format("rank {}", rank)}}}});
    for (const Span& span : simulation.timeline[rank])
      events.push_back(
          {{"name", to_string(span.action)},
           {"cat", name_of(span.action.op)},
           {"ph", "X"},
           {"ts", 1000 * span.begin},
           {"dur", 1000 * (span.end - span.begin)},
           {"pid", 0},
           {"tid", rank},
           {"args", {{"chunk", span.action.chunk}, {"micro_batch", span.action.micro_batch}}}});
  }
  return {{"displayTimeUnit", "ms"}, {"traceEvents", events}};
}

base::Json to_json(const Schedule& schedule, const Costs& costs, const Simulation& simulation) {
  base::Json program = base::Json::array();
  for (const auto& row : schedule.program) {
    base::Json& cells = program.emplace_back(base::Json::array());
    for (const Action& action : row) cells.push_back(to_string(action));
  }
  return {{"schedule", schedule.name},
          {"stages", schedule.ranks},
          {"micro_batches", schedule.micro_batches},
          {"chunks", schedule.chunks / schedule.ranks},
          {"costs", {{"f", costs.f}, {"i", costs.i}, {"w", costs.w}, {"comm", costs.comm}}},
          {"makespan", simulation.makespan},
          {"bubble", simulation.bubble},
          {"bubble_own", simulation.bubble_own},
          {"peak_activations", simulation.peak_activations},
          {"program", program}};
}

}  // namespace trireme::schedule
