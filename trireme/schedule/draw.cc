#include "trireme/schedule/draw.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "trireme/base/error.h"
#include "trireme/base/wording.h"

namespace trireme::schedule {

namespace {

constexpr Op kKinds[] = {Op::F, Op::B, Op::I, Op::W};

std::string_view meaning(Op op) {
  switch (op) {
    case Op::F:
      return "forward";
    case Op::B:
      return "backward";
    case Op::I:
      return "input gradient";
    default:
      return "weight gradient";
  }
}

/// The kinds of actions that a schedule has, in kKinds' order.
std::vector<Op> kinds_of(const Schedule& schedule) {
  std::vector<Op> kinds;
  for (Op op : kKinds)
    if (std::ranges::any_of(schedule.program, [op](const auto& row) {
          return std::ranges::find(row, op, &Action::op) != row.end();
        }))
      kinds.push_back(op);
  return kinds;
}

/// The colour of a kind, darker from chunk to chunk of a rank.
std::string colour(const Schedule& schedule, const Action& action) {
  // F blue, B green, I orange, W yellow.
  constexpr int kRgb[][3] = {{142, 202, 230}, {144, 190, 109}, {244, 151, 88}, {249, 215, 110}};
  const auto& rgb = kRgb[static_cast<size_t>(action.op)];
  int earlier = 0, held = 0;
  for (int c = 0; c < schedule.chunks; ++c) {
    if (schedule.rank_of_chunk[c] != schedule.rank_of_chunk[action.chunk]) continue;
    ++held;
    if (c < action.chunk) ++earlier;
  }
  const int share = held > 1 ? 100 - 35 * earlier / (held - 1) : 100;
  return fmt::format("#{:02x}{:02x}{:02x}", rgb[0] * share / 100, rgb[1] * share / 100,
                     rgb[2] * share / 100);
}

/// The cell's label: the chunk only where a rank has several.
std::string label(const Schedule& schedule, const Action& action) {
  if (schedule.chunks > schedule.ranks) return to_string(action);
  return fmt::format("{}{}", name_of(action.op), action.micro_batch);
}

std::string summary(const Schedule& schedule, const Simulation& simulation) {
  return fmt::format(
      "{}: {}, {}, {}; makespan {:g}, bubble {:.1f} %, own bubble {:.1f} %, peak activations "
      "[{:g}]",
      schedule.name, base::counted(schedule.ranks, "stage"),
      base::counted(schedule.micro_batches, "micro-batch"), base::counted(schedule.chunks, "chunk"),
      simulation.makespan, 100 * simulation.bubble, 100 * simulation.bubble_own,
      fmt::join(simulation.peak_activations, ", "));
}

std::string escaped(const std::string& text) {
  std::string out;
  for (char c : text)
    out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  return out;
}

/// The shortest action that takes time at all; 0 where none does.
double shortest_span(const Simulation& simulation) {
  double shortest = std::numeric_limits<double>::infinity();
  for (const auto& row : simulation.timeline)
    for (const Span& span : row)
      if (span.end > span.begin) shortest = std::min(shortest, span.end - span.begin);
  return std::isinf(shortest) ? 0 : shortest;
}

}  // namespace

std::string draw_text(const Schedule& schedule, const Simulation& simulation, double columns) {
  // The shortest action is as wide as the longest label and a gap, unless the line grew too long.
  size_t widest = 0;
  for (const auto& row : simulation.timeline)
    for (const Span& span : row) widest = std::max(widest, label(schedule, span.action).size());
  const double shortest = shortest_span(simulation);
  const double scale =
      shortest > 0 ? std::min((widest + 1) / shortest, columns / simulation.makespan) : 0;
  const size_t prefix = std::to_string(schedule.ranks - 1).size();

  std::string text;
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    std::string line;
    for (const Span& span : simulation.timeline[rank]) {
      const auto begin = static_cast<size_t>(std::lround(span.begin * scale));
      const auto end = static_cast<size_t>(std::lround(span.end * scale));
      if (end <= begin) continue;
      if (line.size() < begin) line.append(begin - line.size(), '.');
      // A long action is drawn out; a gap keeps it apart from the next.
      std::string cell = label(schedule, span.action);
      if (cell.size() >= end - begin) cell = name_of(span.action.op);
      cell.resize(std::max<size_t>(end - begin, 2) - 1, '-');
      line += cell;
      if (end - begin > 1) line += ' ';
    }
    while (line.ends_with(' ')) line.pop_back();
    text += fmt::format("rank {:>{}} | {}\n", rank, prefix, line);
  }
  std::vector<std::string> legend;
  for (Op op : kinds_of(schedule)) legend.push_back(fmt::format("{} {}", name_of(op), meaning(op)));
  if (schedule.chunks > schedule.ranks)
    legend.push_back(fmt::format("{}F0 is of chunk {}", schedule.ranks, schedule.ranks));
  return text + fmt::format("{}; dots: idle\n", fmt::join(legend, ", ")) +
         summary(schedule, simulation) + '\n';
}

std::string draw_svg(const Schedule& schedule, const Simulation& simulation, double pixels) {
  constexpr double kRow = 28, kLeft = 64, kTop = 52, kCell = 32, kLetter = 7;
  const double shortest = shortest_span(simulation);
  const double scale = shortest > 0 ? std::min(kCell / shortest, pixels / simulation.makespan) : 0;
  const double width = std::max(kLeft + simulation.makespan * scale + 16, 720.0);
  const double height = kTop + kRow * schedule.ranks + 12;

  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"sans-serif\" font-size=\"11\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"8\" y=\"18\">{2}</text>\n",
      width, height, escaped(summary(schedule, simulation)));
  auto box = [&](double x, double y, double w, double h, const Action& action) {
    svg += fmt::format(
        "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" fill=\"{}\" "
        "stroke=\"#333\" stroke-width=\"0.6\">",
        x, y, w, h, colour(schedule, action));
  };
  // The legend shows the chunks of rank 0 for each kind of action.
  double x = kLeft;
  for (Op op : kinds_of(schedule)) {
    for (int c = 0; c < schedule.chunks; ++c) {
      if (schedule.rank_of_chunk[c] != 0) continue;
      box(x, 28, 14, 14, {op, c, 0});
      svg += "</rect>\n";
      x += 14;
    }
    svg += fmt::format("<text x=\"{:.1f}\" y=\"39\">{}</text>\n", x + 4, meaning(op));
    x += 4 + kLetter * static_cast<double>(meaning(op).size()) + 16;
  }
  if (schedule.chunks > schedule.ranks)
    svg += fmt::format("<text x=\"{:.1f}\" y=\"39\">darker: later chunk of the rank</text>\n", x);
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    const double y = kTop + kRow * rank;
    svg += fmt::format("<text x=\"8\" y=\"{:.1f}\">rank {}</text>\n", y + 17, rank);
    for (const Span& span : simulation.timeline[rank]) {
      const double left = kLeft + span.begin * scale, w = (span.end - span.begin) * scale;
      box(left, y, w, kRow - 4, span.action);
      svg += fmt::format("<title>{} {:g} to {:g}</title></rect>\n", to_string(span.action),
                         span.begin, span.end);
      const std::string name = label(schedule, span.action);
      if (w >= kLetter * static_cast<double>(name.size()))
        svg += fmt::format("<text x=\"{:.2f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n",
                           left + w / 2, y + 16, name);
    }
  }
  return svg + "</svg>\n";
}

base::Json chrome_trace(const Schedule& schedule, const Simulation& simulation) {
  // Names from the viewers' own palette: one for each of F, B, I, W.
  constexpr std::string_view kNames[] = {"rail_load", "good", "rail_animation", "rail_idle"};
  base::Json events = base::Json::array();
  events.push_back({{"name", "process_name"},
                    {"ph", "M"},
                    {"pid", 0},
                    {"args", {{"name", summary(schedule, simulation)}}}});
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    events.push_back({{"name", "thread_name"},
                      {"ph", "M"},
                      {"pid", 0},
                      {"tid", rank},
                      {"args", {{"name", fmt::format("rank {}", rank)}}}});
    for (const Span& span : simulation.timeline[rank])
      events.push_back(
          {{"name", to_string(span.action)},
           {"cat", meaning(span.action.op)},
           {"cname", kNames[static_cast<size_t>(span.action.op)]},
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
  base::Json taken = {{"f", costs.f}, {"i", costs.i}, {"w", costs.w}, {"comm", costs.comm}};
  if (!costs.chunks.empty()) {
    taken = {{"comm", costs.comm}, {"chunks", base::Json::array()}};
    for (const ChunkCosts& of : costs.chunks)
      taken["chunks"].push_back({{"f", of.f}, {"i", of.i}, {"w", of.w}});
  }
  return {{"schedule", schedule.name},
          {"stages", schedule.ranks},
          {"micro_batches", schedule.micro_batches},
          {"chunks", schedule.chunks / schedule.ranks},
          {"costs", taken},
          {"makespan", simulation.makespan},
          {"bubble", simulation.bubble},
          {"bubble_own", simulation.bubble_own},
          {"peak_activations", simulation.peak_activations},
          {"program", program}};
}

std::string draw(const std::string& format, const Schedule& schedule, const Costs& costs,
                 const Simulation& simulation) {
  if (format == "text") return draw_text(schedule, simulation);
  if (format == "svg") return draw_svg(schedule, simulation);
  if (format == "trace") return chrome_trace(schedule, simulation).dump() + '\n';
  if (format == "json") return to_json(schedule, costs, simulation).dump() + '\n';
  if (format == "schedule")
    return fmt::format("# {}: {}, {}, {}\n", schedule.name, base::counted(schedule.ranks, "stage"),
                       base::counted(schedule.micro_batches, "micro-batch"),
                       base::counted(schedule.chunks, "chunk")) +
           to_text(schedule);
  throw base::ConfigError(
      fmt::format("there is no format '{}'; known: text, svg, trace, json, schedule", format));
}

std::string draw_measured(const Simulation& measured, const Simulation& simulated) {
  base::check(measured.idle.size() == simulated.idle.size(), "{} ranks were measured, {} simulated",
              measured.idle.size(), simulated.idle.size());
  std::string text =
      fmt::format("{:<9} {:>13} {:>14} {:>11}\n", "idle", "measured", "simulated", "difference");
  auto row = [&](const std::string& name, double ours, double theirs) {
    text += fmt::format("{:<9} {:>11.1f} % {:>12.1f} % {:>+11.1f}\n", name, 100 * ours,
                        100 * theirs, 100 * (ours - theirs));
  };
  for (size_t rank = 0; rank < measured.idle.size(); ++rank)
    row(fmt::format("rank {}", rank), measured.idle[rank], simulated.idle[rank]);
  row("all", measured.bubble, simulated.bubble);
  return text + fmt::format("makespan {:>12g} {:>14g}\n", measured.makespan, simulated.makespan);
}

}  // namespace trireme::schedule
