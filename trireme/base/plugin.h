#pragma once
// Plugins: shared libraries that add things of their own to the registries, so that a configuration
// can name them. The library takes trireme's functions from the program that loads it.
//
//   TRIREME_PLUGIN() { optim::optimizers().add("mine", make_mine); }     // mine.cc -> libmine.so
//   plugins: [libmine.so]                                                # in the YAML file

#include <string>
#include <vector>

namespace trireme::base {

/// Counts the changes of what plugins use; a library built against another number is refused.
inline constexpr int kPluginInterface = 2;

/// Loads each library once and lets it register itself: a file's path, or a name that the dynamic
/// linker finds. ConfigError with the linker's words where it cannot be loaded, is no plugin, or was
/// built for another version. Not thread-safe: before ranks start.
void load_plugins(const std::vector<std::string>& libraries);

}  // namespace trireme::base

#define TRIREME_PLUGIN()                                                                 \
  extern "C" const int trireme_plugin_interface = ::trireme::base::kPluginInterface;     \
  extern "C" void trireme_plugin()
