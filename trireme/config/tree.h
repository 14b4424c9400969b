#pragma once
// Tree: a configuration before it has types: scalars, lists and maps that remember where they were
// written, so that an error can name file and line (or the override). Reading, merging and
// references happen here; what the keys mean is the business of load.cc. yaml-cpp stays behind
// tree.cc.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/base/json.h"

namespace trireme::config {

struct Tree {
  enum class Kind { null, scalar, list, map };
  Kind kind = Kind::null;
  std::string key = {};          // its name, when it is an entry of a map
  std::string text = {};         // of a scalar
  bool quoted = false;           // a quoted scalar is a string, whatever it looks like
  std::vector<Tree> items = {};  // of a list or, with their keys, of a map
  std::string origin = {};       // "config.yaml:12" or "override train.seed=9"

  const Tree* find(std::string_view name) const;
  Tree* find(std::string_view name);
};

/// Parses one YAML document (JSON is YAML). ConfigError with `source` and line: bad syntax, a key
/// twice.
Tree parse_tree(std::string_view text, const std::string& source);

/// `tree` as layers to merge in order: the files that its key `includes` names (relative to
/// `directory`), theirs first, then `tree` without that key. ConfigError when files include each
/// other in a circle; `path` names `tree`.
std::vector<Tree> with_includes(Tree tree, const std::string& path, const std::string& directory,
                                std::vector<std::string> parents = {});

/// A file and its includes, as layers.
std::vector<Tree> read_layers(const std::string& path, std::vector<std::string> parents = {});

/// `key.path=value` as a map of one entry; the value is YAML.
Tree parse_override(const std::string& text);

/// Puts `overlay` over `base`: maps merge, everything else replaces. A map of indices changes a
/// list's entries.
void merge(Tree& base, Tree overlay);

/// Replaces `${a.b}` by the value at that path (of `root`, else of `defaults`) and
/// `${env:NAME,default}` by a variable. A reference that is the whole scalar keeps type and
/// structure. `$${` stands for a plain `${`.
void resolve_references(Tree& root, const Tree& defaults);

/// The value of a plain scalar as YAML 1.2 reads it; nothing where it is no such thing.
std::optional<bool> as_bool(const Tree& tree);
std::optional<int64_t> as_integer(const Tree& tree);
std::optional<double> as_double(const Tree& tree);

base::Json to_json(const Tree& tree);

/// "a map", "text \"no\"", "null": for messages.
std::string describe(const Tree& tree);

}  // namespace trireme::config
