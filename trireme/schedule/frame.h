#pragma once
// What the generators share.

#include "trireme/schedule/generators.h"

namespace trireme::schedule {

/// Empty programs for the named schedule, its chunks placed; ConfigError where the request makes no sense.
Schedule frame(std::string_view name, const Request& request);

/// Chunk activations that each rank may hold within the request's memory limit, or the schedule's own; ConfigError below
/// one whole stage.
std::vector<int> chunk_memory(const Schedule& schedule, const Request& request);

/// 1F1B of an empty schedule with one chunk a rank. On rank r as many micro-batches are in flight as its `memory` of chunk
/// activations allows, no more than on the rank before it and than its share of the largest: all of it on rank 0, one on
/// the last rank, in proportion between. With S on each it is 1F1B's own warm-up of S - 1 - r.
Schedule one_f_one_b_within(Schedule schedule, const std::vector<int>& memory);

}  // namespace trireme::schedule
