#include "trireme/schedule/generators.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/base/wording.h"
#include "trireme/schedule/frame.h"

namespace trireme::schedule {

namespace {

/// A generator's entry: a new pipeline is one function and one line of this table.
struct Generator {
  std::string_view name;
  Schedule (*make)(std::string_view name, const Request&);
  int own_chunks;                  // a rank's, where none are asked for
  bool chunks;                     // takes other numbers, too
  double (*memory)(double ranks);  // its own limit in whole stages; null where it takes none
};

/// What is planned and simulated within seconds.
constexpr double kMostActions = 1e7;

template <Schedule (*make)(const Request&)>
Schedule unnamed(std::string_view, const Request& request) {
  return make(request);
}

constexpr Generator kGenerators[] = {
    {"gpipe", unnamed<gpipe>, 1, true, nullptr},
    {"1f1b", unnamed<one_f_one_b>, 1, false, nullptr},
    {"interleaved", unnamed<interleaved>, 2, true, nullptr},
    {"zb-h1", zero_bubble, 1, false, [](double ranks) { return ranks; }},
    {"zb-2p", zero_bubble, 1, false, [](double ranks) { return 2 * ranks - 1; }},
    {"zb-v", v_shape, 2, false, [](double ranks) { return ranks; }},
    {"v-half", v_shape, 2, false, [](double ranks) { return ranks / 2 + 1; }},
    {"v-min", v_shape, 2, false, [](double ranks) { return (ranks + 4) / 3; }},
    {"forward", unnamed<forward_only>, 1, true, nullptr},
};

const Generator& find(std::string_view name) {
  auto found = std::ranges::find(kGenerators, name, &Generator::name);
  if (found == std::end(kGenerators))
    throw base::ConfigError(
        fmt::format("there is no schedule '{}'; known: {}", name, fmt::join(names(), ", ")));
  return *found;
}

}  // namespace

Schedule frame(std::string_view name, const Request& request) {
  const Generator& generator = find(name);
  const int chunks = request.chunks_per_rank.value_or(generator.own_chunks);
  if (request.ranks < 1 || request.micro_batches < 1 || chunks < 1)
    throw base::ConfigError(fmt::format("schedule {}: {}, {}, {} a stage; each must be at least 1",
                                        name, base::counted(request.ranks, "stage"),
                                        base::counted(request.micro_batches, "micro-batch"),
                                        base::counted(chunks, "chunk")));
  if (const double actions = 3.0 * request.ranks * chunks * request.micro_batches;
      actions > kMostActions)
    throw base::ConfigError(fmt::format(
        "schedule {}: {} x {} a stage x {} are {:.3g} actions, more than can be planned and drawn; "
        "expected at most {:.0e}",
        name, base::counted(request.ranks, "stage"), base::counted(chunks, "chunk"),
        base::counted(request.micro_batches, "micro-batch"), actions, kMostActions));
  if (!takes_chunks(name, chunks))
    throw base::ConfigError(fmt::format("schedule {} has {} a stage, but {} {} asked for; use {}",
                                        name, base::counted(generator.own_chunks, "chunk"), chunks,
                                        chunks > 1 ? "were" : "was", generator.own_chunks));
  if (!request.memory.empty() && !generator.memory)
    throw base::ConfigError(
        fmt::format("schedule {} takes no memory limit ({} was given); those that do: zb-h1, "
                    "zb-2p, zb-v, v-half, v-min",
                    name, fmt::join(request.memory, ", ")));
  check(request.costs);
  Schedule schedule{.name = std::string(name),
                    .ranks = request.ranks,
                    .chunks = request.ranks * chunks,
                    .micro_batches = request.micro_batches};
  for (int c = 0; c < schedule.chunks; ++c) {
    const bool up = generator.make == v_shape && c >= request.ranks;
    schedule.rank_of_chunk.push_back(up ? schedule.chunks - 1 - c : c % request.ranks);
  }
  schedule.program.resize(request.ranks);
  return schedule;
}

std::vector<int> chunk_memory(const Schedule& schedule, const Request& request) {
  std::vector<double> stages = request.memory;
  if (stages.empty()) stages = {own_memory(schedule.name, schedule.ranks)};
  if (stages.size() == 1) stages.resize(schedule.ranks, stages[0]);
  if (std::ssize(stages) != schedule.ranks)
    throw base::ConfigError(
        fmt::format("schedule {}: {} memory limits for {} ranks; give one for all or one for each",
                    schedule.name, stages.size(), schedule.ranks));
  std::vector<int> memory;
  for (double limit : stages) {
    const double chunks = limit * schedule.chunks / schedule.ranks;
    if (!(limit >= 1) || chunks > 1e9)
      throw base::ConfigError(
          fmt::format("schedule {}: a memory limit of {:g} activations of a whole stage; it must "
                      "be at least 1, or no micro-batch can pass",
                      schedule.name, limit));
    memory.push_back(static_cast<int>(std::floor(chunks + 1e-9)));  // a third of three is one
  }
  return memory;
}

Schedule gpipe(const Request& request) {
  Schedule schedule = frame("gpipe", request);
  for (int c = 0; c < schedule.chunks; ++c)
    for (int m = 0; m < schedule.micro_batches; ++m)
      schedule.program[schedule.rank_of_chunk[c]].push_back({Op::F, c, m});
  // Micro-batches come back in the order in which they went, as in 1F1B: gradients are summed
  // alike.
  for (int c = schedule.chunks - 1; c >= 0; --c)
    for (int m = 0; m < schedule.micro_batches; ++m)
      schedule.program[schedule.rank_of_chunk[c]].push_back({Op::B, c, m});
  return schedule;
}

Schedule one_f_one_b_within(Schedule schedule, const std::vector<int>& memory) {
  const int ranks = schedule.ranks, micro_batches = schedule.micro_batches;
  const int64_t most = std::ranges::max(memory);
  int64_t ahead = micro_batches;
  for (int r = 0; r < ranks; ++r) {
    // A rank that ran further ahead than the one before it would wait for it in a circle.
    const int64_t share = ranks == 1 ? 0 : (most - 1) * (ranks - 1 - r) / (ranks - 1);
    ahead = std::min({ahead, share, int64_t{memory[r]} - 1});
    const int warm_up = static_cast<int>(ahead);
    std::vector<Action>& program = schedule.program[r];
    for (int m = 0; m < warm_up; ++m) program.push_back({Op::F, r, m});
    for (int m = 0; m < micro_batches; ++m) {
      if (m + warm_up < micro_batches) program.push_back({Op::F, r, m + warm_up});
      program.push_back({Op::B, r, m});
    }
  }
  return schedule;
}

Schedule one_f_one_b(const Request& request) {
  return one_f_one_b_within(frame("1f1b", request), std::vector<int>(request.ranks, request.ranks));
}

Schedule interleaved(const Request& request) {
  Schedule schedule = frame("interleaved", request);
  const int ranks = schedule.ranks, micro_batches = schedule.micro_batches;
  const int chunks = schedule.chunks / ranks;
  // Planned in whole groups: leaving out micro-batches that are not there keeps a schedule valid,
  // while a smaller last group of its own could wait in a circle.
  const int whole = (micro_batches + ranks - 1) / ranks * ranks;
  for (int r = 0; r < ranks; ++r) {
    std::vector<Action> forwards, backwards;
    for (int begin = 0; begin < whole; begin += ranks)
      for (int v = 0; v < chunks; ++v)
        for (int m = begin; m < begin + ranks; ++m) {
          forwards.push_back({Op::F, v * ranks + r, m});
          backwards.push_back({Op::B, (chunks - 1 - v) * ranks + r, m});
        }
    auto put = [&](const Action& action) {
      if (action.micro_batch < micro_batches) schedule.program[r].push_back(action);
    };
    const int warm_up = std::min(2 * (ranks - 1 - r) + (chunks - 1) * ranks, whole * chunks);
    for (int i = 0; i < warm_up; ++i) put(forwards[i]);
    for (size_t i = 0; i < backwards.size(); ++i) {
      if (i + warm_up < forwards.size()) put(forwards[i + warm_up]);
      put(backwards[i]);
    }
  }
  return schedule;
}

Schedule forward_only(const Request& request) {
  return forward_only(frame("forward", request), request.micro_batches);
}

Schedule forward_only(const Schedule& placed, int micro_batches) {
  Schedule schedule{.name = "forward",
                    .ranks = placed.ranks,
                    .chunks = placed.chunks,
                    .micro_batches = micro_batches,
                    .rank_of_chunk = placed.rank_of_chunk};
  schedule.program.resize(schedule.ranks);
  // A clock on which each forward takes one tick: what came out of a chunk before this tick may
  // enter the next one. Deeper chunks first, so that little lies waiting between chunks.
  std::vector<std::vector<int>> chunks_of(schedule.ranks);
  for (int c = schedule.chunks - 1; c >= 0; --c) chunks_of[schedule.rank_of_chunk[c]].push_back(c);
  std::vector<int> done(schedule.chunks, 0);
  while (done.back() < schedule.micro_batches) {
    const std::vector<int> before = done;
    for (int r = 0; r < schedule.ranks; ++r)
      for (int c : chunks_of[r]) {
        const int there = c == 0 ? schedule.micro_batches : before[c - 1];
        if (done[c] == there) continue;
        schedule.program[r].push_back({Op::F, c, done[c]++});
        break;
      }
  }
  return schedule;
}

Schedule generate(std::string_view name, const Request& request) {
  return find(name).make(name, request);
}

std::vector<std::string_view> names() {
  std::vector<std::string_view> names;
  for (const Generator& generator : kGenerators) names.push_back(generator.name);
  return names;
}

bool takes_chunks(std::string_view name, int chunks_per_rank) {
  const Generator& generator = find(name);
  return generator.chunks || chunks_per_rank == generator.own_chunks;
}

bool takes_memory(std::string_view name) {
  return find(name).memory != nullptr;
}

double own_memory(std::string_view name, int ranks) {
  const Generator& generator = find(name);
  if (!generator.memory)
    throw base::ConfigError(fmt::format("schedule {} takes no memory limit", name));
  return generator.memory(ranks);
}

}  // namespace trireme::schedule
