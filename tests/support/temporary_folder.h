#pragma once
// TemporaryFolder: a new folder for one test, removed with everything in it at the end.

#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <iterator>
#include <string>

#include "trireme/base/error.h"

namespace trireme::test {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "trireme-test-XXXXXX").string();
    if (!::mkdtemp(name.data())) throw base::IoError(name, errno, "creating");
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  const std::filesystem::path& path() const { return path_; }
  /// Files and folders in it.
  int64_t entries() const {
    return std::distance(std::filesystem::directory_iterator(path_),
                         std::filesystem::directory_iterator());
  }

 private:
  std::filesystem::path path_;
};

}  // namespace trireme::test
