#include "trireme/schedule/choose.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "trireme/base/error.h"

namespace trireme::schedule {

namespace {

/// Peaks that differ by less are alike.
constexpr double kAlike = 0.001;

int64_t messages_of(const Schedule& schedule) {
  int64_t sent = 0;
  for (const auto& row : with_communication(schedule).program)
    sent += std::ranges::count_if(
        row, [](const Action& a) { return a.op == Op::SendF || a.op == Op::SendB; });
  return sent;
}

/// How many whole stages each rank may hold within the limit, but no more than the schedule's own
/// number, and at least one: where not even that fits, the candidate shows what it takes at the
/// least.
std::vector<double> stages_within(double memory, const Schedule& schedule, const Costs& costs) {
  std::vector<double> held(schedule.ranks, 0), working(schedule.ranks, 0);
  for (int c = 0; c < schedule.chunks; ++c) {
    const ChunkCosts of = costs_of(costs, schedule, c);
    const int rank = schedule.rank_of_chunk[c];
    held[rank] += of.activation;
    working[rank] = std::max(working[rank], of.working);
  }
  std::vector<double> stages(schedule.ranks, own_memory(schedule.name, schedule.ranks));
  for (int r = 0; r < schedule.ranks; ++r)
    if (held[r] > 0)
      stages[r] = std::max(1.0, std::min(stages[r], (memory - working[r]) / held[r]));
  return stages;
}

Candidate try_out(std::string_view name, std::optional<int> chunks, const Question& question) {
  Request request{
      .ranks = question.ranks, .micro_batches = question.micro_batches, .chunks_per_rank = chunks};
  request.goal = Goal::makespan;
  request.search = 0;
  try {
    const Schedule draft = generate(name, request);
    request.costs = question.costs(draft.chunks);
    request.search = question.search;
    if (takes_memory(name)) request.memory = stages_within(question.memory, draft, request.costs);
    Candidate candidate = candidate_of(generate(name, request), request.costs);
    if (candidate.peak > question.memory)
      candidate.why_not = fmt::format("its activations take {:g}, the limit is {:g}",
                                      candidate.peak, question.memory);
    return candidate;
  } catch (const base::ConfigError& e) {
    Candidate candidate{.name = std::string(name)};
    candidate.chunks_per_rank = chunks.value_or(takes_chunks(name, 1) ? 1 : 2);
    candidate.why_not = e.what();
    return candidate;
  }
}

std::string amount(double value, const std::string& unit) {
  return unit.empty() ? fmt::format("{:.6g}", value) : fmt::format("{:.2f}", value);
}

/// The words of `text` in lines of at most 80 columns, all but the first one indented.
std::string wrapped(std::string_view text, size_t column, size_t indent) {
  std::string out;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    if (column + 1 + end > 80) {
      out += '\n' + std::string(indent, ' ');
      column = indent;
    } else if (!out.empty()) {
      out += ' ';
      ++column;
    }
    out += text.substr(0, end);
    column += end;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

}  // namespace

Candidate candidate_of(Schedule schedule, const Costs& costs) {
  Candidate candidate{.name = schedule.name};
  candidate.chunks_per_rank = schedule.chunks / schedule.ranks;
  candidate.simulation = simulate(schedule, costs);
  candidate.simulation.timeline.clear();
  candidate.peak = std::ranges::max(candidate.simulation.peak_activations);
  candidate.messages = messages_of(schedule);
  candidate.schedule = std::move(schedule);
  return candidate;
}

Choice choose(const Question& question) {
  Choice choice{.memory = question.memory, .message = question.message};
  for (std::string_view name : names()) {
    if (name == "forward") continue;
    if (question.chunks) {
      if (takes_chunks(name, *question.chunks))
        choice.candidates.push_back(try_out(name, question.chunks, question));
    } else if (name != "interleaved") {
      choice.candidates.push_back(try_out(name, {}, question));
    } else {
      for (int chunks : question.interleaved)
        choice.candidates.push_back(try_out(name, chunks, question));
    }
  }
  double least = std::numeric_limits<double>::infinity();
  for (const Candidate& candidate : choice.candidates)
    if (candidate.why_not.empty()) least = std::min(least, candidate.simulation.makespan);
  for (size_t i = 0; i < choice.candidates.size(); ++i) {
    const Candidate& candidate = choice.candidates[i];
    if (!candidate.why_not.empty() || candidate.simulation.makespan > least * (1 + question.margin))
      continue;
    if (choice.best < 0 || candidate.peak < choice.candidates[choice.best].peak * (1 - kAlike))
      choice.best = static_cast<int>(i);
  }
  return choice;
}

std::string to_text(const Choice& choice, const Units& units) {
  const auto titled = [](std::string name, const std::string& unit) {
    return unit.empty() ? name : name + ' ' + unit;
  };
  std::string text =
      fmt::format("{:<12} {:>6} {:>11} {:>7} {:>10} {:>11} {:>8}\n", "schedule", "chunks",
                  titled("makespan", units.time), "bubble", "own bubble",
                  units.memory.empty() ? "activations" : titled("peak", units.memory),
                  choice.message > 0 ? titled("sent", units.memory) : "messages");
  bool over = false;
  for (size_t i = 0; i < choice.candidates.size(); ++i) {
    const Candidate& c = choice.candidates[i];
    text += fmt::format("{:<12} {:>6}", c.name, c.chunks_per_rank);
    if (c.schedule.program.empty()) {
      text += "  " + wrapped("not possible: " + c.why_not, 21, 21) + '\n';
      continue;
    }
    text += fmt::format(" {:>11} {:>5.1f} % {:>8.1f} % {:>11} {:>8}",
                        amount(c.simulation.makespan, units.time), 100 * c.simulation.bubble,
                        100 * c.simulation.bubble_own, amount(c.peak, units.memory),
                        choice.message > 0 ? amount(choice.message * c.messages, units.memory) : fmt::format("{}", c.messages));
    if (static_cast<int>(i) == choice.best) text += "  <- best";
    if (!c.why_not.empty()) text += "  no room", over = true;
    text += '\n';
  }
  if (over)
    text += fmt::format("no room: a rank would hold more than {}\n",
                        titled(amount(choice.memory, units.memory), units.memory));
  return text;
}

std::string shortfall(const Choice& choice, const Units& units) {
  if (choice.best >= 0) return "";
  const Candidate* least = nullptr;
  for (const Candidate& c : choice.candidates)
    if (!c.schedule.program.empty() && (!least || c.peak < least->peak)) least = &c;
  if (!least) return "";
  const std::string unit = units.memory.empty() ? "" : ' ' + units.memory;
  return fmt::format("no schedule stays within {}{}; the least is {}{} with {}",
                     amount(choice.memory, units.memory), unit, amount(least->peak, units.memory),
                     unit, least->name);
}

base::Json to_json(const Choice& choice) {
  base::Json all = base::Json::array();
  for (size_t i = 0; i < choice.candidates.size(); ++i) {
    const Candidate& c = choice.candidates[i];
    base::Json row = {{"schedule", c.name}, {"chunks", c.chunks_per_rank}};
    if (!c.schedule.program.empty()) {
      row["stages"] = c.schedule.ranks;
      row["micro_batches"] = c.schedule.micro_batches;
      row["makespan"] = c.simulation.makespan;
      row["bubble"] = c.simulation.bubble;
      row["bubble_own"] = c.simulation.bubble_own;
      row["peak_activations"] = c.simulation.peak_activations;
      row["messages"] = c.messages;
      if (choice.message > 0) row["volume"] = choice.message * c.messages;
    }
    row["chosen"] = static_cast<int>(i) == choice.best;
    if (!c.why_not.empty()) row["why_not"] = c.why_not;
    all.push_back(std::move(row));
  }
  return all;
}

Costs cut(const Profile& profile, const std::vector<int>& layers_per_chunk) {
  const int layers = std::reduce(layers_per_chunk.begin(), layers_per_chunk.end());
  if (layers != std::ssize(profile.layers))
    throw base::ConfigError(fmt::format("chunks of [{}] layers hold {}, but {} were measured",
                                        fmt::join(layers_per_chunk, ", "), layers,
                                        profile.layers.size()));
  Costs costs{.comm = profile.comm};
  size_t next = 0;
  for (int count : layers_per_chunk) {
    ChunkCosts& chunk = costs.chunks.emplace_back(ChunkCosts{0, 0, 0, 0, 0});
    for (int i = 0; i < count; ++i, ++next) {
      const ChunkCosts& layer = profile.layers[next];
      chunk.f += layer.f, chunk.i += layer.i, chunk.w += layer.w;
      chunk.activation += layer.activation;
      // A backward goes through one layer after another.
      chunk.working = std::max(chunk.working, layer.working);
    }
  }
  return costs;
}

}  // namespace trireme::schedule
