#include "trireme/data/blend_order.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <mutex>
#include <queue>
#include <utility>

#include "trireme/base/error.h"

namespace trireme::data {
namespace {

using Place = BlendOrder::Place;
template <class When>
using Earliest =
    std::priority_queue<std::pair<When, int>, std::vector<std::pair<When, int>>, std::greater<>>;

/// Which source lacks most, from sample to sample, as `most_lacking` would say: a tournament in
/// which each match knows how long its winner stands. A sample plays again the matches of the source
/// that gave the last one and those whose time is over (a kinetic tournament: Basch, Guibas and
/// Hershberger, "Data structures for mobile data", 1999).
class LackTournament {
 public:
  explicit LackTournament(const std::vector<double>& shares)
      : leaves_(std::bit_ceil(shares.size())), matches_(2 * leaves_) {
    for (size_t i = 0; i < shares.size(); ++i) {
      sources_.push_back({.share = shares[i], .used = 0});
      matches_[leaves_ + i].winner = static_cast<int>(i);
    }
  }

  void begin(const std::vector<int64_t>& used) {
    for (size_t i = 0; i < used.size(); ++i) sources_[i].used = static_cast<double>(used[i]);
    for (size_t k = 1; k < leaves_; ++k) matches_[k].stands_until = matches_[k].first_end = -1;
  }
  /// The source that gives sample n, which is one more than at the last call, or any after `begin`.
  int give(int64_t n) {
    play_ended(1, n);
    const int due = matches_[1].winner;
    sources_[due].used += 1;
    for (size_t k = (leaves_ + static_cast<size_t>(due)) / 2; k > 0; k /= 2)
      matches_[k].stands_until = matches_[k].first_end = n;
    return due;
  }
  int64_t looks() const { return looks_; }

 private:
  static constexpr int64_t kForever = std::numeric_limits<int64_t>::max();
  struct Source {
    double share, used;
  };
  struct Match {
    int winner = -1;                  // none: a place that no source takes
    int64_t stands_until = kForever;  // the last sample at which that is certain
    int64_t first_end = kForever;     // the least of this match's and all those below it
  };

  /// Whether the winner of match k has changed.
  bool play_ended(size_t k, int64_t n) {
    Match& match = matches_[k];
    if (match.first_end >= n) return false;
    const Match &a = matches_[2 * k], &b = matches_[2 * k + 1];
    bool again = match.stands_until < n;
    if (a.first_end < n) again |= play_ended(2 * k, n);
    if (b.first_end < n) again |= play_ended(2 * k + 1, n);
    const int before = match.winner;
    if (again) play(match, a.winner, b.winner, n);
    match.first_end = std::min({match.stands_until, a.first_end, b.first_end});
    return match.winner != before;
  }

  void play(Match& match, int a, int b, int64_t n) {
    match.winner = a;
    match.stands_until = kForever;
    if (b < 0) return;
    looks_ += 2;
    const double at = n < 1 ? 1.0 : static_cast<double>(n);
    const Source &left = sources_[a], &right = sources_[b];
    const double lead = (left.share * at - left.used) - (right.share * at - right.used);
    if (lead < 0) match.winner = b;  // the first of equals wins
    const double gains = left.share - right.share;
    match.stands_until = n + (lead < 0 ? stands(-lead, gains, n) : stands(lead, -gains, n));
  }

  /// For how many samples more a lead that shrinks by `shrinks` each is certain to be seen as one.
  static int64_t stands(double lead, double shrinks, int64_t n) {
    const int64_t most = n + 1024;
    if (shrinks == 0) return most;  // both lacks come from one product
    // All that rounds lacks differently up to sample n + most, several times over.
    lead -= 0x1p-50 * static_cast<double>(n + most);
    if (lead <= 0) return 0;
    return lead < shrinks * static_cast<double>(most) ? static_cast<int64_t>(lead / shrinks) : most;
  }

  std::vector<Source> sources_;
  size_t leaves_;
  std::vector<Match> matches_;  // the root is 1, those below k are 2k and 2k + 1, the sources last
  int64_t looks_ = 0;
};

/// Goes from sample to sample.
class Walk {
 public:
  Walk(std::vector<double> shares, BlendRule rule)
      : shares_(std::move(shares)), rule_(rule), most_lacking_(shares_) {
    const double longest = 1 / *std::min_element(shares_.begin(), shares_.end());
    steps_of_jump_ = rule == BlendRule::megatron ? std::numeric_limits<double>::infinity()
                                                 : 2 * longest + static_cast<double>(shares_.size()) + 64;
    go_to(0, std::vector<int64_t>(shares_.size(), 0));
  }
  Walk(const Walk&) = delete;
  int64_t next() const { return next_; }
  /// Samples that each source has given.
  const std::vector<int64_t>& used() const { return used_; }
  int64_t looks() const { return looks_ + most_lacking_.looks(); }

  void go_to(int64_t next, const std::vector<int64_t>& used) {
    next_ = next;
    used_ = used;
    if (rule_ == BlendRule::megatron) return most_lacking_.begin(used_);
    waiting_ = {};
    open_ = {};
    for (int i = 0; i < static_cast<int>(used_.size()); ++i) waiting_.emplace(opens(i), i);
  }

  Place step() {
    const int due = rule_ == BlendRule::megatron ? most_lacking_.give(next_) : closing_first();
    base::check(due >= 0, "no dataset of the blend is due at sample {}", next_);
    ++next_;
    const int64_t sample = used_[due]++;
    if (rule_ == BlendRule::exact) waiting_.emplace(opens(due), due);
    return {due, sample};
  }

  /// How many steps make up for a start in a wrong state, see `jump`; infinite where none do.
  double steps_of_jump() const { return steps_of_jump_; }

  /// Goes to `index` without what lies before, of the rule `exact`: starts steps_of_jump() earlier
  /// with a guess of which of the samples whose window is open have been given. Windows do not
  /// depend on what was given, and of two orders that both serve the open window that closes first,
  /// and have given equally many, one is ahead of the other only by samples whose windows close ever
  /// later: once all that was open at the guess is given, nothing is left in which they differ.
  /// False, without having moved, where there is no such guess.
  bool jump(int64_t index) {
    const int64_t start = index - static_cast<int64_t>(steps_of_jump_);
    std::vector<int64_t> used;
    std::vector<std::pair<double, int>> open;  // by where the window of the last sample closes
    int64_t given = 0;
    for (size_t i = 0; i < shares_.size(); ++i) {
      used.push_back(static_cast<int64_t>(std::ceil(shares_[i] * static_cast<double>(start))));
      given += used.back();
      if (used.back() > 0)
        open.emplace_back(static_cast<double>(used.back()) / shares_[i], static_cast<int>(i));
    }
    const int64_t too_many = given - start;
    if (too_many < 0 || too_many > std::ssize(open)) return false;
    std::nth_element(open.begin(), open.begin() + too_many, open.end(), std::greater<>());
    for (int64_t k = 0; k < too_many; ++k) --used[open[k].second];
    go_to(start, used);
    while (next_ < index) step();
    return true;
  }

 private:
  // Sample j of a dataset of share w has the window of places j / w < n < (j + 1) / w + 1, n
  // counted from 1.
  int closing_first() {
    while (!waiting_.empty() && waiting_.top().first <= next_) {
      const int i = waiting_.top().second;
      waiting_.pop();
      open_.emplace((static_cast<double>(used_[i]) + 1) / shares_[i], i);
    }
    if (open_.empty()) return -1;
    const int due = open_.top().second;
    open_.pop();
    return due;
  }

  /// The first place, counted from 0, at which the next sample of source i may come.
  int64_t opens(int i) {
    ++looks_;
    const auto used = static_cast<double>(used_[i]);
    const auto open = [&](int64_t n) { return used < shares_[i] * static_cast<double>(n + 1); };
    // Rounded; what counts is the comparison.
    const double about = used / shares_[i];
    if (about > 0x1p60) return std::numeric_limits<int64_t>::max();
    auto n = std::max<int64_t>(0, static_cast<int64_t>(about) - 1);
    while (n > 0 && open(n - 1)) --n;
    while (!open(n)) ++n;
    return n;
  }

  std::vector<double> shares_;
  BlendRule rule_;
  double steps_of_jump_;
  int64_t next_ = 0, looks_ = 0;
  std::vector<int64_t> used_;
  LackTournament most_lacking_;  // of the rule `megatron`
  // Of the rule `exact`: sources whose next sample may come from a place on, and those whose sample
  // may come now, by the place at which it is too late.
  Earliest<int64_t> waiting_;
  Earliest<double> open_;
};

}  // namespace

struct BlendOrder::Memory {
  static constexpr int64_t kRecent = 1 << 14;

  Memory(std::vector<double> shares, BlendRule rule)
      : walk(std::move(shares), rule), recent(kRecent), states{walk.used()} {}

  Place at(int64_t index) {
    std::lock_guard lock(mutex);
    if (index < walk.next() && index >= recent_from) return recent[index % kRecent];
    const int64_t nearest = std::min(index / stride, std::ssize(states) - 1);
    if (nearest >= 0 && (index < walk.next() || nearest * stride > walk.next())) {
      walk.go_to(nearest * stride, states[nearest]);
      recent_from = walk.next();
    }
    if (static_cast<double>(index - walk.next()) > walk.steps_of_jump() && walk.jump(index))
      recent_from = index;
    while (walk.next() <= index) step();
    return recent[index % kRecent];
  }

  void step() {
    const int64_t n = walk.next();
    if (n == stride * std::ssize(states)) keep_state();
    recent[n % kRecent] = walk.step();
    recent_from = std::max(recent_from, n + 1 - kRecent);
  }

  void keep_state() {
    if (std::ssize(states) == kStates) {
      for (int64_t k = 1; k < kStates / 2; ++k) states[k] = std::move(states[2 * k]);
      states.resize(kStates / 2);
      stride *= 2;
    }
    states.push_back(walk.used());
  }

  std::mutex mutex;  // guards all of the below
  Walk walk;
  std::vector<Place> recent;  // samples [recent_from, walk.next()), each at its index % kRecent
  int64_t recent_from = 0;
  int64_t stride = 1 << 12;
  std::vector<std::vector<int64_t>> states;  // states[k]: what was used before sample k * stride
};

BlendOrder::BlendOrder(std::vector<double> shares, BlendRule rule)
    : memory_(std::make_unique<Memory>(std::move(shares), rule)) {}
BlendOrder::~BlendOrder() = default;

BlendOrder::Place BlendOrder::at(int64_t index) const {
  base::check(index >= 0, "sample {} of a blend", index);
  return memory_->at(index);
}

int64_t BlendOrder::looks() const {
  std::lock_guard lock(memory_->mutex);
  return memory_->walk.looks();
}

}  // namespace trireme::data
