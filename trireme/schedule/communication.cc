#include "trireme/schedule/schedule.h"

namespace trireme::schedule {

Schedule with_communication(Schedule schedule) {
  if (schedule.communicates()) return schedule;
  for (auto& row : schedule.program) {
    std::vector<Action> full;
    for (const Action& action : row) {
      const auto [op, chunk, micro_batch] = action;
      const bool forward = op == Op::F;
      const bool travels = forward || op == Op::B || op == Op::I;
      const int from = forward ? chunk - 1 : chunk + 1, to = forward ? chunk + 1 : chunk - 1;
      if (travels && schedule.crosses(chunk, from))
        full.push_back({forward ? Op::RecvF : Op::RecvB, chunk, micro_batch});
      full.push_back(action);
      if (travels && schedule.crosses(chunk, to))
        full.push_back({forward ? Op::SendF : Op::SendB, chunk, micro_batch});
    }
    row = std::move(full);
  }
  return schedule;
}

}  // namespace trireme::schedule
