#pragma once
// Generators: named pipelines. Each returns compute actions only; `with_communication` adds the transfers.

#include <string_view>
#include <vector>

#include "trireme/schedule/schedule.h"

namespace trireme::schedule {

struct Request {
  int ranks = 1, micro_batches = 1, chunks_per_rank = 1;
};

/// All forwards, then all backwards in reverse chunk order (Huang et al., GPipe, 2018).
Schedule gpipe(const Request& request);
/// One forward, one backward (Narayanan et al., PipeDream-Flush, 2021): warm-up of min(S - 1 - r, M).
Schedule one_f_one_b(const Request& request);
/// Forwards only, for evaluation and generation.
Schedule forward_only(const Request& request);

/// By name ("gpipe", "1f1b", "forward"); ConfigError with the known names and what the request must satisfy.
Schedule generate(std::string_view name, const Request& request);
/// In the order of a comparison.
std::vector<std::string_view> names();
/// Does the named schedule take several chunks a rank?
bool takes_chunks(std::string_view name);

}  // namespace trireme::schedule
