#pragma once
// What the calling thread has spent waiting for operations: communication that computing did not hide.

namespace trireme::comm {

/// Seconds that this thread has waited inside of Work::wait since it began, for operations that the host carries out
/// (the others wait on the device's own stream). Local.
double waited_seconds();

}  // namespace trireme::comm
