#pragma once
// What the tests of trireme/data share: a folder that cleans up after itself and the text of an
// expected error.

#include <gtest/gtest.h>

#include <string>

#include "tests/support/temporary_folder.h"

namespace trireme::data {

using test::TemporaryFolder;

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
