#include <map>

#include "trireme/base/error.h"
#include "trireme/schedule/simulate.h"
#include "trireme/schedule/walk.h"

namespace trireme::schedule {

namespace {

/// Where an action stands.
struct Cell {
  int rank = -1;
  size_t index = 0;
};

class Checker {
 public:
  explicit Checker(const Schedule& schedule) : schedule_(schedule) {}

  void run() {
    check_frame();
    for (int rank = 0; rank < schedule_.ranks; ++rank)
      for (size_t i = 0; i < schedule_.program[rank].size(); ++i) place({rank, i});
    check_complete();
    if (schedule_.communicates()) check_transfers();
    check_order();
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw base::ConfigError(fmt::format("schedule {}: {}", schedule_.name, what));
  }
  [[noreturn]] void fail(Cell cell, const std::string& what) const {
    fail(fmt::format("rank {}, cell {}: {} {}", cell.rank, cell.index + 1,
                     to_string(schedule_.program[cell.rank][cell.index]), what));
  }

  void check_frame() const {
    const Schedule& s = schedule_;
    if (s.ranks < 1 || s.chunks < 1 || s.micro_batches < 1 || std::ssize(s.program) != s.ranks ||
        std::ssize(s.rank_of_chunk) != s.chunks)
      fail(fmt::format(
          "{} ranks with {} programs, {} chunks on {} places, {} micro-batches; "
          "expected a program for each rank, a rank for each chunk, all at least 1",
          s.ranks, s.program.size(), s.chunks, s.rank_of_chunk.size(), s.micro_batches));
    for (int c = 0; c < s.chunks; ++c)
      if (s.rank_of_chunk[c] < 0 || s.rank_of_chunk[c] >= s.ranks)
        fail(fmt::format("chunk {} lies on rank {}, outside of [0, {})", c, s.rank_of_chunk[c],
                         s.ranks));
  }

  /// Takes an action into the table: it must be possible at all, here, and for the first time.
  void place(Cell cell) {
    const Action& action = schedule_.program[cell.rank][cell.index];
    if (action.chunk < 0 || action.chunk >= schedule_.chunks)
      fail(cell, fmt::format("is of chunk {}, outside of [0, {})", action.chunk, schedule_.chunks));
    if (action.micro_batch < 0 || action.micro_batch >= schedule_.micro_batches)
      fail(cell, fmt::format("is of micro-batch {}, outside of [0, {})", action.micro_batch,
                             schedule_.micro_batches));
    if (int rank = schedule_.rank_of_chunk[action.chunk]; rank != cell.rank)
      fail(cell, fmt::format("belongs to rank {}, which holds chunk {}", rank, action.chunk));
    for (Op same : {action.op, Op::B, Op::I, Op::W}) {
      const bool both = same == action.op || (action.op == Op::B && same != Op::B) ||
                        (same == Op::B && (action.op == Op::I || action.op == Op::W));
      if (!both) continue;
      if (const Cell* earlier = find({same, action.chunk, action.micro_batch}))
        fail(cell, fmt::format("is done twice: cell {} holds {} already", earlier->index + 1,
                               to_string(Action{same, action.chunk, action.micro_batch})));
    }
    cells_[key(action)] = cell;
  }

  void check_complete() const {
    // The last micro-batch first: one that is not there may be a mistyped number elsewhere.
    require_micro_batch(schedule_.micro_batches - 1, schedule_.micro_batches > 1);
    for (int m = 0; m + 1 < schedule_.micro_batches; ++m) require_micro_batch(m, false);
  }

  void require_micro_batch(int m, bool last) const {
    const bool forward_only = schedule_.forward_only();
    for (int chunk = 0; chunk < schedule_.chunks; ++chunk) {
      require({Op::F, chunk, m}, "", last);
      if (forward_only || find({Op::B, chunk, m})) continue;
      const bool split = find({Op::I, chunk, m}) || find({Op::W, chunk, m});
      require({split ? Op::I : Op::B, chunk, m}, "", last);
      if (split) require({Op::W, chunk, m}, "", last);
    }
  }

  /// Every edge between two ranks is crossed by one send and one receive, and no other one is.
  void check_transfers() const {
    const bool forward_only = schedule_.forward_only();
    for (int chunk = 0; chunk + 1 < schedule_.chunks; ++chunk) {
      if (!schedule_.crosses(chunk, chunk + 1)) continue;
      for (int m = 0; m < schedule_.micro_batches; ++m) {
        match({Op::SendF, chunk, m}, {Op::RecvF, chunk + 1, m});
        if (!forward_only) match({Op::SendB, chunk + 1, m}, {Op::RecvB, chunk, m});
      }
    }
    for (int rank = 0; rank < schedule_.ranks; ++rank)
      for (size_t i = 0; i < schedule_.program[rank].size(); ++i) {
        const Action& action = schedule_.program[rank][i];
        if (is_compute(action.op)) continue;
        const bool up = action.op == Op::SendF || action.op == Op::RecvB;
        const int other = up ? action.chunk + 1 : action.chunk - 1;
        const bool gradient = action.op == Op::SendB || action.op == Op::RecvB;
        if (!schedule_.crosses(action.chunk, other) || (gradient && forward_only))
          fail({rank, i}, "has no other end: nothing travels between these chunks");
      }
  }

  void match(const Action& send, const Action& receive) const {
    if (find(send) && !find(receive))
      fail(*find(send), fmt::format("has no matching receive {} on rank {}", to_string(receive),
                                    schedule_.rank_of_chunk[receive.chunk]));
    if (find(receive) && !find(send))
      fail(*find(receive), fmt::format("has no matching send {} on rank {}", to_string(send),
                                       schedule_.rank_of_chunk[send.chunk]));
    require(send, " (a transfer)");
    require(receive, " (a transfer)");
  }

  void check_order() const {
    Walk walk(schedule_);
    if (walk.run([](const Action&) { return 0.0; }, 0, [](auto&&...) {})) return;
    // An action before its own rank's earlier work is the plainest reason; else the ranks wait in a
    // circle.
    std::string circle;
    for (int rank = 0; rank < schedule_.ranks; ++rank) {
      const size_t i = walk.position(rank);
      if (i == schedule_.program[rank].size()) continue;
      const Action need = *walk.missing(schedule_.program[rank][i]);
      const Cell* held = find(need);
      if (!held) held = find({Op::B, need.chunk, need.micro_batch});
      base::check(held != nullptr, "schedule {}: {} is nowhere", schedule_.name, to_string(need));
      if (held->rank == rank)
        fail({rank, i}, fmt::format("comes before {} (cell {}), which it needs", to_string(need),
                                    held->index + 1));
      circle += fmt::format("; rank {}, cell {}: {} waits for {} (rank {}, cell {})", rank, i + 1,
                            to_string(schedule_.program[rank][i]), to_string(need), held->rank,
                            held->index + 1);
    }
    fail("deadlock" + circle);
  }

  void require(const Action& action, const std::string& note, bool last = false) const {
    if (find(action)) return;
    const std::string lacks = fmt::format(
        "rank {} lacks {}{}", schedule_.rank_of_chunk[action.chunk], to_string(action), note);
    for (int rank = 0; last && rank < schedule_.ranks; ++rank)
      for (size_t i = 0; i < schedule_.program[rank].size(); ++i)
        if (schedule_.program[rank][i].micro_batch == action.micro_batch)
          fail({rank, i}, fmt::format("is of micro-batch {}, the highest there is, but {}",
                                      action.micro_batch, lacks));
    fail(lacks);
  }

  static std::tuple<Op, int, int> key(const Action& a) { return {a.op, a.chunk, a.micro_batch}; }
  const Cell* find(const Action& action) const {
    auto found = cells_.find(key(action));
    return found == cells_.end() ? nullptr : &found->second;
  }

  const Schedule& schedule_;
  std::map<std::tuple<Op, int, int>, Cell> cells_;
};

}  // namespace

void check(const Schedule& schedule) {
  Checker(schedule).run();
}

}  // namespace trireme::schedule
