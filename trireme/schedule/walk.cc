#include "trireme/schedule/walk.h"

#include <algorithm>

namespace trireme::schedule {

Walk::Walk(const Schedule& schedule)
    : schedule_(schedule),
      communicates_(schedule.communicates()),
      ended_(size_t{8} * schedule.chunks * schedule.micro_batches, -1),
      next_(schedule.ranks, 0) {}

size_t Walk::key(const Action& action) const {
  // B is both I and W: who waits for the input's gradient waits for I.
  const Op op = action.op == Op::B ? Op::I : action.op;
  return (static_cast<size_t>(op) * schedule_.chunks + action.chunk) * schedule_.micro_batches +
         action.micro_batch;
}

template <class F>
void Walk::for_each_need(const Action& action, F visit) const {
  const auto [op, chunk, micro_batch] = action;
  auto need = [&, m = micro_batch](Op what, int where) { visit(Action{what, where, m}); };
  switch (op) {
    case Op::F:
      if (chunk == 0) return;
      if (communicates_ && schedule_.crosses(chunk, chunk - 1)) return need(Op::RecvF, chunk);
      return need(Op::F, chunk - 1);
    case Op::B:
    case Op::I:
      need(Op::F, chunk);
      if (chunk == schedule_.chunks - 1) return;
      if (communicates_ && schedule_.crosses(chunk, chunk + 1)) return need(Op::RecvB, chunk);
      return need(Op::I, chunk + 1);
    case Op::W:
      return need(Op::I, chunk);
    case Op::SendF:
      return need(Op::F, chunk);
    case Op::SendB:
      return need(Op::I, chunk);
    case Op::RecvF:
      return need(Op::SendF, chunk - 1);
    case Op::RecvB:
      return need(Op::SendB, chunk + 1);
  }
}

std::optional<Action> Walk::missing(const Action& action) const {
  std::optional<Action> found;
  for_each_need(action, [&](const Action& need) {
    if (!found && ended_[key(need)] < 0) found = need;
  });
  return found;
}

bool Walk::run(const Duration& duration, double message, const Visit& visit) {
  std::vector<double> clock(schedule_.ranks, 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (int rank = 0; rank < schedule_.ranks; ++rank) {
      const std::vector<Action>& program = schedule_.program[rank];
      for (; next_[rank] < program.size(); ++next_[rank]) {
        const Action& action = program[next_[rank]];
        if (missing(action)) break;
        double begin = clock[rank];
        for_each_need(action, [&](const Action& need) {
          begin = std::max(begin, ended_[key(need)] + (rank_of(need) == rank ? 0 : message));
        });
        const double end = begin + (is_compute(action.op) ? duration(action) : 0);
        clock[rank] = ended_[key(action)] = end;
        visit(rank, action, begin, end);
        moved = true;
      }
    }
  }
  return std::ranges::equal(next_, schedule_.program, {}, {}, &std::vector<Action>::size);
}

}  // namespace trireme::schedule
