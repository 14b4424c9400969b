#include "trireme/base/plugin.h"

#include <dlfcn.h>

#include <filesystem>
#include <set>

#include "trireme/base/error.h"

namespace trireme::base {
namespace {

namespace fs = std::filesystem;

// The linker looks only names without a slash up in its folders.
std::string place_of(const std::string& library) {
  std::error_code error;
  const fs::path file = fs::canonical(library, error);
  return error ? library : file.string();
}

void load(const std::string& library) {
  void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle)
    throw ConfigError(fmt::format("plugins: {} cannot be loaded: {}; build it against this version "
                                  "of trireme and give its path",
                                  library, ::dlerror()));
  const auto* interface = static_cast<const int*>(::dlsym(handle, "trireme_plugin_interface"));
  auto* start = reinterpret_cast<void (*)()>(::dlsym(handle, "trireme_plugin"));
  if (!interface || !start)
    throw ConfigError(
        fmt::format("plugins: {} is no plugin: it has no TRIREME_PLUGIN() function", library));
  if (*interface != kPluginInterface)
    throw ConfigError(fmt::format("plugins: {} was built for interface {}, this program has {}; "
                                  "build it again",
                                  library, *interface, kPluginInterface));
  start();
}

}  // namespace

void load_plugins(const std::vector<std::string>& libraries) {
  static std::set<std::string> loaded;
  for (const std::string& library : libraries) {
    const std::string place = place_of(library);
    if (loaded.contains(place)) continue;
    load(place);
    loaded.insert(place);
  }
}

}  // namespace trireme::base
