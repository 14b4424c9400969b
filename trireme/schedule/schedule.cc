#include "trireme/schedule/schedule.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <map>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/base/io.h"
#include "trireme/base/wording.h"
#include "trireme/schedule/simulate.h"

namespace trireme::schedule {

namespace {

constexpr std::array<std::string_view, 8> kOps = {"F",     "B",     "I",     "W",
                                                  "SendF", "RecvF", "SendB", "RecvB"};

/// Reads a number off the front of `text`; nothing when there is none.
std::optional<int> take_number(std::string_view& text) {
  int value = 0;
  auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 0 || value == std::numeric_limits<int>::max()) return {};
  text.remove_prefix(stop - text.data());
  return value;
}

std::optional<Action> read_action(std::string_view text) {
  const std::optional<int> chunk = take_number(text);
  if (!chunk) return {};
  const size_t digits = std::min(text.find_first_of("0123456789"), text.size());
  const auto op = std::ranges::find(kOps, text.substr(0, digits));
  text.remove_prefix(digits);
  const std::optional<int> micro_batch = take_number(text);
  if (op == kOps.end() || !micro_batch || !text.empty()) return {};
  return Action{static_cast<Op>(op - kOps.begin()), *chunk, *micro_batch};
}

std::vector<std::string_view> split_on(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = std::min(text.find_first_of(separators), text.size());
    parts.push_back(text.substr(0, end));
    if (end == text.size()) return parts;
    text.remove_prefix(end + 1);
  }
}

}  // namespace

std::string_view name_of(Op op) {
  return kOps[static_cast<size_t>(op)];
}

std::string to_string(const Action& action) {
  return fmt::format("{}{}{}", action.chunk, name_of(action.op), action.micro_batch);
}

bool Schedule::forward_only() const {
  return std::ranges::all_of(program, [](const auto& row) {
    return std::ranges::none_of(
        row, [](const Action& a) { return a.op == Op::B || a.op == Op::I || a.op == Op::W; });
  });
}

bool Schedule::communicates() const {
  return std::ranges::any_of(program, [](const auto& row) {
    return std::ranges::any_of(row, [](const Action& a) { return !is_compute(a.op); });
  });
}

std::string to_text(const Schedule& schedule) {
  std::string text;
  for (const auto& row : schedule.program) {
    for (size_t i = 0; i < row.size(); ++i) {
      if (i > 0) text += ' ';
      text += to_string(row[i]);
    }
    text += '\n';
  }
  return text;
}

Schedule parse(std::string_view text, const std::string& source) {
  Schedule schedule{.name = source};
  schedule.ranks = 0, schedule.chunks = 0, schedule.micro_batches = 0;
  std::map<int, int> rank_of;
  for (std::string_view line : split_on(text, "\n")) {
    line = line.substr(0, line.find('#'));
    std::vector<Action> row;
    for (std::string_view cell : split_on(line, " \t\r,")) {
      if (cell.empty()) continue;
      auto fail = [&](const std::string& what) {
        throw base::FormatError(fmt::format("{}: row {} (rank {}), cell {}: '{}' {}", source,
                                            schedule.ranks + 1, schedule.ranks, row.size() + 1,
                                            base::printable(cell), what));
      };
      const std::optional<Action> action = read_action(cell);
      if (!action)
        fail(
            "is no action; expected CHUNK OP MICRO_BATCH as in 2F0, with OP one of F B I W SendF "
            "RecvF SendB RecvB");
      auto [held, added] = rank_of.try_emplace(action->chunk, schedule.ranks);
      if (held->second != schedule.ranks)
        fail(
            fmt::format("belongs to chunk {}, which rank {} holds already; a chunk lies on one "
                        "rank",
                        action->chunk, held->second));
      schedule.chunks = std::max(schedule.chunks, action->chunk + 1);
      schedule.micro_batches = std::max(schedule.micro_batches, action->micro_batch + 1);
      row.push_back(*action);
    }
    if (row.empty()) continue;
    schedule.program.push_back(std::move(row));
    ++schedule.ranks;
  }
  if (schedule.ranks == 0)
    throw base::FormatError(fmt::format("{}: holds no action; expected one row a rank", source));
  for (int chunk = 0; chunk < schedule.chunks; ++chunk) {
    if (!rank_of.contains(chunk))
      throw base::FormatError(fmt::format(
          "{}: chunk {} has no action, but there is a chunk {}; chunks are numbered from 0 without "
          "gaps",
          source, chunk, schedule.chunks - 1));
    schedule.rank_of_chunk.push_back(rank_of[chunk]);
  }
  return schedule;
}

Schedule read(const std::string& path, std::string_view key) {
  std::string text;
  try {
    text = base::read_file(path);
  } catch (const base::IoError& e) {
    throw base::ConfigError(
        fmt::format("{}: {}; expected a file with one row of actions a rank, as `trireme pipeline "
                    "--format schedule` prints one to start from",
                    key, e.what()));
  }
  Schedule schedule = parse(text, path);
  check(schedule);
  return schedule;
}

}  // namespace trireme::schedule
