#include "trireme/base/error.h"

#include <cerrno>
#include <cstring>

namespace trireme::base {
namespace {

const char* advice(int error_number) {
  switch (error_number) {
    case ENOENT:
      return "; check the path";
    case ENOTDIR:
      return "; a part of the path is a file: choose another path";
    case EISDIR:
      return "; it is a folder, and a file is expected";
    case EACCES:
    case EPERM:
    case EROFS:
      return "; choose a place that this user may use, or change its permissions";
    case ENOSPC:
    case EDQUOT:
      return "; free some space there, or choose another place";
    case EMFILE:
      return "; raise the limit of open files (ulimit -n)";
    default:
      return "";
  }
}

}  // namespace

IoError::IoError(const std::string& path, int error_number, const std::string& doing)
    : IoError(fmt::format("{}: {} failed: {}{}", path, doing, std::strerror(error_number), advice(error_number))) {}

}  // namespace trireme::base
