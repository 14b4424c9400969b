#include "trireme/schedule/choose.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "trireme/base/error.h"

namespace trireme::schedule {

namespace {

/// What a candidate's step must be shorter by to be preferred to a plainer one.
constexpr double kWorthwhile = 0.001;

int64_t messages_of(const Schedule& schedule) {
  int64_t sent = 0;
  for (const auto& row : with_communication(schedule).program)
    sent += std::ranges::count_if(
        row, [](const Action& a) { return a.op == Op::SendF || a.op == Op::SendB; });
  return sent;
}

/// The limit in whole stages, by the rank whose micro-batch takes most.
double stages_within(double memory, const Schedule& schedule, const Costs& costs) {
  std::vector<double> held(schedule.ranks, 0), working(schedule.ranks, 0);
  for (int c = 0; c < schedule.chunks; ++c) {
    const ChunkCosts of = costs_of(costs, schedule, c);
    const int rank = schedule.rank_of_chunk[c];
    held[rank] += of.activation;
    working[rank] = std::max(working[rank], of.working);
  }
  double stages = std::numeric_limits<double>::infinity();
  for (int r = 0; r < schedule.ranks; ++r)
    if (held[r] > 0) stages = std::min(stages, (memory - working[r]) / held[r]);
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
    if (takes_memory(name)) {
      const double allowed = stages_within(question.memory, draft, request.costs);
      if (allowed >= 1 && allowed < own_memory(name, question.ranks)) request.memory = allowed;
    }
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
  Choice choice;
  for (std::string_view name : names()) {
    if (name == "forward") continue;
    if (name != "interleaved") {
      choice.candidates.push_back(try_out(name, {}, question));
      continue;
    }
    for (int chunks : question.chunks_per_rank)
      choice.candidates.push_back(try_out(name, chunks, question));
  }
  double least = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < choice.candidates.size(); ++i) {
    const Candidate& candidate = choice.candidates[i];
    if (!candidate.why_not.empty() || candidate.simulation.makespan > least * (1 - kWorthwhile))
      continue;
    least = candidate.simulation.makespan;
    choice.best = static_cast<int>(i);
  }
  return choice;
}

std::string to_text(const Choice& choice) {
  std::string text =
      fmt::format("{:<12} {:>6} {:>10} {:>9} {:>11} {:>16} {:>9}\n", "schedule", "chunks",
                  "makespan", "bubble", "own bubble", "peak activations", "messages");
  for (size_t i = 0; i < choice.candidates.size(); ++i) {
    const Candidate& c = choice.candidates[i];
    text += fmt::format("{:<12} {:>6}", c.name, c.chunks_per_rank);
    if (!c.schedule.program.empty())
      text +=
          fmt::format(" {:>10.6g} {:>7.1f} % {:>9.1f} % {:>16.6g} {:>9}", c.simulation.makespan,
                      100 * c.simulation.bubble, 100 * c.simulation.bubble_own, c.peak, c.messages);
    if (static_cast<int>(i) == choice.best) text += "  <- fastest";
    if (!c.why_not.empty()) text += "  not possible: " + c.why_not;
    text += '\n';
  }
  return text;
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
