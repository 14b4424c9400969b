#include "trireme/data/blend_order.h"

#include <algorithm>
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

/// Goes from sample to sample.
class Walk {
 public:
  Walk(std::vector<double> shares, BlendRule rule) : shares_(std::move(shares)), rule_(rule) {
    go_to(0, std::vector<int64_t>(shares_.size(), 0));
  }
  int64_t next() const { return next_; }
  /// Samples that each source has given.
  const std::vector<int64_t>& used() const { return used_; }

  void go_to(int64_t next, const std::vector<int64_t>& used) {
    next_ = next;
    used_ = used;
    if (rule_ == BlendRule::megatron) return;
    waiting_ = {};
    open_ = {};
    for (int i = 0; i < static_cast<int>(used_.size()); ++i) waiting_.emplace(opens(i), i);
  }

  Place step() {
    const int due = rule_ == BlendRule::megatron
                        ? most_lacking(shares_, used_, next_, [](size_t) { return true; })
                        : closing_first();
    base::check(due >= 0, "no dataset of the blend is due at sample {}", next_);
    ++next_;
    const int64_t sample = used_[due]++;
    if (rule_ == BlendRule::exact) waiting_.emplace(opens(due), due);
    return {due, sample};
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
  int64_t opens(int i) const {
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
  int64_t next_ = 0;
  std::vector<int64_t> used_;
  // Of the rule `exact`: sources whose next sample may come from a place on, and those whose sample
  // may come now, by the place at which it is too late.
  Earliest<int64_t> waiting_;
  Earliest<double> open_;
};

}  // namespace

struct BlendOrder::Memory {
  static constexpr int64_t kRecent = 1 << 14;

  Memory(std::vector<double> shares, BlendRule rule)
      : walk(std::move(shares), rule), recent(kRecent) {}

  Place at(int64_t index) {
    std::lock_guard lock(mutex);
    if (index < walk.next() && index >= recent_from) return recent[index % kRecent];
    const int64_t nearest = std::min(index / stride, std::ssize(states) - 1);
    if (nearest >= 0 && (index < walk.next() || nearest * stride > walk.next())) {
      walk.go_to(nearest * stride, states[nearest]);
      recent_from = walk.next();
    }
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

}  // namespace trireme::data
