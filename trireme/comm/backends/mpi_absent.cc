// Takes the place of mpi.cc where trireme is built without MPI.
#include "trireme/base/error.h"
#include "trireme/comm/backends/mpi.h"

namespace trireme::comm {
namespace {
[[noreturn]] void refuse() {
  throw base::ConfigError(
      "trireme is built without MPI: install an MPI (Debian: libopenmpi-dev or libmpich-dev) and "
      "configure with -DTRIREME_WITH_MPI=ON, or start the ranks with `trireme launch` or torchrun, "
      "which connect hosts over TCP");
}
}  // namespace

std::string mpi_version() {
  return "";
}
std::unique_ptr<Backend> make_mpi_backend(std::chrono::milliseconds, int) {
  refuse();
}
std::vector<std::string> mpi_all_gather(const std::string&) {
  refuse();
}

}  // namespace trireme::comm
