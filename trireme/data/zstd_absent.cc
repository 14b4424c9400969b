#include "trireme/base/error.h"
#include "trireme/data/compressed.h"

namespace trireme::data {

std::unique_ptr<ByteStream> open_zstd(const std::string& path) {
  throw base::ConfigError(
      fmt::format("{}: this build has no zstd; install libzstd-dev and build again, or give gzip "
                  "or plain files",
                  path));
}

}  // namespace trireme::data
