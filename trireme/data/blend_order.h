#pragma once
// BlendOrder: which of several sources gives sample n of a blend, and which of its samples that is:
// a function of (shares, rule, n), in any order and from any thread. The rules are in blend.h.
//
// Who walks on from where somebody was lately pays for one step a sample, which looks at some log2
// of the sources; who jumps back, for the steps from the nearest state kept. States are kept at even
// distances, at most kStates of them: when there would be more, every other one goes. A first jump
// to n walks there from 0, of the rule `exact` from a few of its slowest source's turns before n.
//
//   BlendOrder order({0.7, 0.3}, BlendRule::exact);
//   auto [dataset, sample] = order.at(consumed_samples);

#include <cstdint>
#include <memory>
#include <vector>

#include "trireme/data/dataset.h"

namespace trireme::data {

class BlendOrder {
 public:
  struct Place {
    int dataset;
    int64_t sample;
    bool operator==(const Place&) const = default;
  };
  static constexpr int64_t kStates = 1024;

  /// `shares`: positive, of sum 1.
  BlendOrder(std::vector<double> shares, BlendRule rule);
  ~BlendOrder();
  /// Thread-safe.
  Place at(int64_t index) const;
  /// How often a source was looked at so far: what `at` has cost, without a clock.
  int64_t looks() const;

 private:
  struct Memory;
  std::unique_ptr<Memory> memory_;
};

/// Megatron-LM's choice: the largest lack at sample `n`, the first of equals, among those open.
template <class Open>
int most_lacking(const std::vector<double>& shares, const std::vector<int64_t>& used, int64_t n,
                 Open&& open) {
  const double at = n < 1 ? 1.0 : static_cast<double>(n);
  int due = -1;
  double most = 0;
  for (size_t i = 0; i < used.size(); ++i) {
    const double lack = shares[i] * at - static_cast<double>(used[i]);
    if (open(i) && (due < 0 || lack > most)) {
      most = lack;
      due = static_cast<int>(i);
    }
  }
  return due;
}

}  // namespace trireme::data
