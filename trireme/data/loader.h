#pragma once
// Loader: the micro-batches of each step for one rank, prefetched. What a step reads is a function
// of (seed, consumed samples, global batch size): the layout only decides which rank sees which
// rows.

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "trireme/data/dataset.h"

namespace trireme::data {

/// A last step with fewer samples than it has room for: `shorter` leaves the rows out, `drop` all
/// of it, `pad` fills it up with the first samples, whose `labels` count for nothing.
enum class LastBatch { shorter, drop, pad };
/// ConfigError for another name than these.
LastBatch last_batch_of(const std::string& name);

struct LoaderOptions {
  int64_t micro_batch_size = 1, micro_batches = 1;
  int dp_rank = 0, dp_size = 1;
  int64_t first_sample = 0;  // consumed samples: where a resumed run goes on
  int64_t end_sample = -1;   // one past the last; -1: endless
  LastBatch last = LastBatch::shorter;
  int prefetch = 2;  // steps read ahead
  std::set<std::string> skip = {};  // names of fields that this rank does not need
  int workers = 1;   // threads that make samples; the batches are the same with any number
  /// Whether a rank that would have no row of a micro-batch, in a step that has some, gets one whose labels are ignored: for
  /// models whose data ranks work together on every micro-batch.
  bool stand_in = false;
  /// Samples of the step that begins after so many consumed ones, at most what the micro-batches
  /// hold; none given: as many as they hold.
  std::function<int64_t(int64_t consumed)> batch_size = {};
};

/// Row i of micro-batch m on data-parallel rank d is sample m * (dp * micro_batch) + d *
/// micro_batch + i of the global batch. Rows past the step's size or, as `last` says, `end_sample`
/// are absent: a micro-batch may be short or empty.
class Loader {
 public:
  /// ConfigError: an option out of range; `pad`, and samples without integer labels, of which none
  /// could be left out of the count.
  Loader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options);
  ~Loader();
  /// The micro-batches of the next step. An error of the reading thread is rethrown here.
  std::vector<Batch> next();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme::data
