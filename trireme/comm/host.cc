#include "trireme/comm/host.h"

#include <unistd.h>

#include <cstdlib>
#include <map>

#include "trireme/base/io.h"

namespace trireme::comm {

std::string host_identity() {
  if (const char* given = std::getenv("TRIREME_HOST"); given != nullptr && *given != 0)
    return std::string("given ") + given;
  char space[64] = {};
  ssize_t size = ::readlink("/proc/self/ns/net", space, sizeof space - 1);
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return base::read_file("/proc/sys/kernel/random/boot_id").substr(0, 36) +
         (size > 0 ? space : "") + " " + name;
}

std::vector<int> number_hosts(std::span<const std::string> identities) {
  std::map<std::string, int> known;
  std::vector<int> numbers;
  for (const std::string& identity : identities)
    numbers.push_back(known.emplace(identity, static_cast<int>(known.size())).first->second);
  return numbers;
}

}  // namespace trireme::comm
