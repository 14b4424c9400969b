#pragma once
// Family: what registry.cc knows of a model family. ConfigReader: reads a configuration tree into a struct and
// refuses what is left over.

#include <functional>
#include <set>
#include <string>

#include "trireme/base/json.h"
#include "trireme/base/registry.h"
#include "trireme/nn/layer.h"

namespace trireme::models {

struct Family {
  nn::ModelDef (*make)(const base::Json& tree, int tp);
  base::Json (*resolve)(const base::Json& tree);
};

/// All families by the name that `family`, or `model_type` in a config.json, gives them.
base::Registry<Family>& families();

Family gpt2_family();

/// Visits keys of a tree: reads those that are there into the fields, notes what was read.
class ConfigReader {
 public:
  ConfigReader(const base::Json& tree, std::string family);
  /// Reads `key` if present; ConfigError names key, value and the expected type.
  void operator()(const char* key, int64_t& field, int64_t min = 1);
  void operator()(const char* key, double& field, double min, double max);
  void operator()(const char* key, bool& field);
  void operator()(const char* key, std::string& field);
  /// Keys that are known to change nothing here.
  void ignore(std::initializer_list<const char*> keys);
  /// ConfigError for keys that nobody read, with the nearest known name.
  void finish() const;

 private:
  const base::Json* find(const char* key);
  [[noreturn]] void refuse(const char* key, const base::Json& value, const std::string& expected) const;
  const base::Json& tree_;
  std::string family_;
  std::set<std::string> known_;
};

}  // namespace trireme::models
