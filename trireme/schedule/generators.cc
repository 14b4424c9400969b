#include "trireme/schedule/generators.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme::schedule {

namespace {

/// A generator's entry: a new pipeline is one function and one line of this table.
struct Generator {
  std::string_view name;
  Schedule (*make)(const Request&);
  bool chunks;  // takes several chunks a rank
};
constexpr Generator kGenerators[] = {
    {"gpipe", gpipe, true},
    {"1f1b", one_f_one_b, false},
    {"forward", forward_only, true},
};

const Generator* find(std::string_view name) {
  auto found = std::ranges::find(kGenerators, name, &Generator::name);
  return found == std::end(kGenerators) ? nullptr : found;
}

/// Empty programs, the chunks dealt out round after round: chunk c on rank c % ranks.
Schedule frame(std::string_view name, const Request& request) {
  auto [ranks, micro_batches, chunks] = request;
  if (ranks < 1 || micro_batches < 1 || chunks < 1)
    throw base::ConfigError(fmt::format(
        "schedule {}: {} stages, {} micro-batches, {} chunks a stage; each must be at least 1",
        name, ranks, micro_batches, chunks));
  if (chunks > 1 && !takes_chunks(name))
    throw base::ConfigError(fmt::format(
        "schedule {} has one chunk a stage, but {} were asked for; use 1", name, chunks));
  Schedule schedule{.name = std::string(name),
                    .ranks = ranks,
                    .chunks = ranks * chunks,
                    .micro_batches = micro_batches};
  for (int c = 0; c < schedule.chunks; ++c) schedule.rank_of_chunk.push_back(c % ranks);
  schedule.program.resize(ranks);
  return schedule;
}

/// Chunk by chunk, all forwards of a rank.
void add_forwards(Schedule& schedule) {
  for (int c = 0; c < schedule.chunks; ++c)
    for (int m = 0; m < schedule.micro_batches; ++m)
      schedule.program[schedule.rank_of_chunk[c]].push_back({Op::F, c, m});
}

}  // namespace

Schedule gpipe(const Request& request) {
  Schedule schedule = frame("gpipe", request);
  add_forwards(schedule);
  // Micro-batches come back in the order in which they went, as in 1F1B: gradients are summed
  // alike.
  for (int c = schedule.chunks - 1; c >= 0; --c)
    for (int m = 0; m < schedule.micro_batches; ++m)
      schedule.program[schedule.rank_of_chunk[c]].push_back({Op::B, c, m});
  return schedule;
}

Schedule one_f_one_b(const Request& request) {
  Schedule schedule = frame("1f1b", request);
  const int micro_batches = request.micro_batches;
  for (int r = 0; r < request.ranks; ++r) {
    const int warm_up = std::min(request.ranks - 1 - r, micro_batches);
    std::vector<Action>& program = schedule.program[r];
    for (int m = 0; m < warm_up; ++m) program.push_back({Op::F, r, m});
    for (int m = 0; m < micro_batches; ++m) {
      if (m + warm_up < micro_batches) program.push_back({Op::F, r, m + warm_up});
      program.push_back({Op::B, r, m});
    }
  }
  return schedule;
}

Schedule forward_only(const Request& request) {
  Schedule schedule = frame("forward", request);
  add_forwards(schedule);
  return schedule;
}

Schedule generate(std::string_view name, const Request& request) {
  const Generator* generator = find(name);
  if (!generator)
    throw base::ConfigError(
        fmt::format("there is no schedule '{}'; known: {}", name, fmt::join(names(), ", ")));
  return generator->make(request);
}

std::vector<std::string_view> names() {
  std::vector<std::string_view> names;
  for (const Generator& generator : kGenerators) names.push_back(generator.name);
  return names;
}

bool takes_chunks(std::string_view name) {
  const Generator* generator = find(name);
  return generator && generator->chunks;
}

}  // namespace trireme::schedule
