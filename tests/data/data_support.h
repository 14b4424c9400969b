#pragma once
// What the tests of trireme/data share: a folder that cleans up after itself and the text of an
// expected error.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "trireme/base/error.h"

namespace trireme::data {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "trireme-data-XXXXXX").string();
    if (!::mkdtemp(name.data())) throw base::IoError(name, errno, "creating");
    path_ = name;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
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

/// The message of the E that `run` throws; empty (and a failure) when it throws none.
template <class E, class Run>
std::string message_of(Run&& run) {
  try {
    run();
  } catch (const E& e) {
    return e.what();
  } catch (const std::exception& e) {
    ADD_FAILURE() << "another exception: " << e.what();
    return "";
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

}  // namespace trireme::data
