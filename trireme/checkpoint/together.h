#pragma once
// together: a step that every rank of a job takes and that succeeds on all of them or on none.

#include <functional>
#include <string>
#include <vector>

#include "trireme/comm/comm.h"

namespace trireme::checkpoint {

/// Collective. Runs `work` on each rank and returns every rank's text, in rank order. When it
/// throws anywhere, all ranks throw the lowest failing rank's error (its kind is kept, the rank
/// named), so the job stays in step and may go on. A CommError leaves at once: there is nobody left
/// to agree with.
std::vector<std::string> together(const comm::Comm& world,
                                  const std::function<std::string()>& work);

}  // namespace trireme::checkpoint
