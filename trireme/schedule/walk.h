#pragma once
// Walk: runs the ranks' programs against one another on a clock. What `check` and `simulate` share.
//
// An action begins when its rank is free and all that it needs has ended; what comes from another rank takes
// one message's time. Where the schedule has transfers they carry the needs across ranks and take no time
// themselves.

#include <functional>
#include <optional>
#include <vector>

#include "trireme/schedule/schedule.h"

namespace trireme::schedule {

class Walk {
 public:
  using Duration = std::function<double(const Action&)>;
  using Visit = std::function<void(int rank, const Action&, double begin, double end)>;

  /// Actions must lie inside of the schedule's chunks and micro-batches.
  explicit Walk(const Schedule& schedule);

  /// Runs all that can run. True when every program came to its end.
  bool run(const Duration& duration, double message, const Visit& visit);
  /// Index of the first action of a rank that has not run.
  size_t position(int rank) const { return next_[rank]; }
  /// What an action still waits for.
  std::optional<Action> missing(const Action& action) const;
  /// Who holds an action.
  int rank_of(const Action& action) const { return schedule_.rank_of_chunk[action.chunk]; }

 private:
  size_t key(const Action& action) const;
  /// Calls `visit` with each action that `action` needs: at most two.
  template <class F>
  void for_each_need(const Action& action, F visit) const;

  const Schedule& schedule_;
  bool communicates_;
  std::vector<double> ended_;  // by key; negative: not yet
  std::vector<size_t> next_;
};

}  // namespace trireme::schedule
