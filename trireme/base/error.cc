#include "trireme/base/error.h"

#include <cstring>

namespace trireme::base {

IoError::IoError(const std::string& path, int error_number, const std::string& doing)
    : IoError(fmt::format("{}: {} failed: {}", path, doing, std::strerror(error_number))) {}

}  // namespace trireme::base
