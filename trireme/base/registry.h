#pragma once
// Registry: the things of one kind that a configuration may name: those that come with trireme, and
// those that a program or a plugin adds before the configuration is used.
//
//   base::Registry<MakeOptimizer>& optimizers();          // one function for each kind
//   optimizers().add("mine", [](...) { ... });
//   optimizers().get(config.optim.name)(...);             // ConfigError for an unknown name

#include <string>
#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/nearest.h"

namespace trireme::base {

template <class T>
class Registry {
 public:
  /// `key`: the configuration's, for messages.
  Registry(std::string key, std::vector<std::pair<std::string, T>> entries = {})
      : key_(std::move(key)), entries_(std::move(entries)) {}

  /// ConfigError when the name is taken. Not thread-safe: before ranks start.
  void add(std::string name, T entry) {
    if (find(name)) throw ConfigError(fmt::format("{}: '{}' is registered twice; rename one", key_, name));
    entries_.emplace_back(std::move(name), std::move(entry));
  }
  /// Null where nothing has the name.
  const T* find(std::string_view name) const {
    for (const auto& [known, entry] : entries_)
      if (known == name) return &entry;
    return nullptr;
  }
  const T& get(std::string_view name) const {
    if (const T* entry = find(name)) return *entry;
    const auto near = nearest(name, names());
    throw ConfigError(fmt::format("{}: '{}' is unknown{}; known are {}, and what a plugin adds", key_, name,
                                  near ? fmt::format(", did you mean {}?", *near) : "",
                                  fmt::join(names(), ", ")));
  }
  /// In the order of their coming.
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : entries_) names.push_back(entry.first);
    return names;
  }

 private:
  std::string key_;
  std::vector<std::pair<std::string, T>> entries_;
};

}  // namespace trireme::base
