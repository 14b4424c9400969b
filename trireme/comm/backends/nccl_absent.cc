// Takes the place of nccl.cc where trireme is built without NCCL.
#include "trireme/base/error.h"
#include "trireme/comm/backends/nccl.h"

namespace trireme::comm {

std::string nccl_version() {
  return "";
}

std::unique_ptr<Backend> make_nccl_backend(std::unique_ptr<Backend>, int,
                                           std::chrono::milliseconds) {
  throw base::ConfigError(
      "trireme is built without NCCL, over which ranks with GPUs communicate: build with the CUDA "
      "build of LibTorch and NCCL beside it (-DTRIREME_WITH_NCCL=ON says what is missing), or run "
      "one rank");
}

}  // namespace trireme::comm
