#include "trireme/config/load.h"

#include <cmath>
#include <concepts>

#include "trireme/base/error.h"
#include "trireme/base/nearest.h"
#include "trireme/config/tree.h"

namespace trireme::config {

using base::ConfigError;
using base::Described;
using Kind = Tree::Kind;

namespace {

std::string join_path(const std::string& path, std::string_view name) {
  return path.empty() ? std::string(name) : fmt::format("{}.{}", path, name);
}

/// The names of a struct's fields.
template <class T>
std::vector<std::string> names_of() {
  std::vector<std::string> names;
  T object;
  T::visit(object, [&](std::string_view name, auto&, const Field&) { names.emplace_back(name); });
  return names;
}

/// The dotted paths of all fields called `name`: where a misplaced key belongs.
template <class T>
void find_elsewhere(std::string_view name, const std::string& path,
                    std::vector<std::string>& found) {
  T object;
  T::visit(object, [&](std::string_view field, auto& value, const Field&) {
    using Value = std::remove_cvref_t<decltype(value)>;
    if (field == name) found.push_back(join_path(path, field));
    if constexpr (Described<Value>) find_elsewhere<Value>(name, join_path(path, field), found);
  });
}

/// Moves a tree's values into the fields of a struct and collects what is wrong.
class Binder {
 public:
  /// `has_plugins`: open choices take any word.
  explicit Binder(bool has_plugins) : has_plugins_(has_plugins) {}

  std::vector<std::string> errors;

  template <Described T>
  void bind(const Tree& tree, const std::string& path, T& object, const Field&) {
    if (tree.kind == Kind::null) return;  // a section without entries
    if (tree.kind != Kind::map) return expected(tree, path, "a map of keys");
    for (const Tree& item : tree.items) refuse_unknown<T>(item, path);
    T::visit(object, [&](std::string_view name, auto& value, const Field& field) {
      if (const Tree* item = tree.find(name)) bind(*item, join_path(path, name), value, field);
    });
  }

  void bind(const Tree& tree, const std::string& path, bool& value, const Field&) {
    auto given = as_bool(tree);
    if (!given) return expected(tree, path, "true or false");
    value = *given;
  }

  template <std::integral T>
  void bind(const Tree& tree, const std::string& path, T& value, const Field& field) {
    auto given = as_integer(tree);
    if (!given) return expected(tree, path, "an integer");
    double min = std::max(field.min, static_cast<double>(std::numeric_limits<T>::min()));
    double max = std::min(field.max, static_cast<double>(std::numeric_limits<T>::max()));
    if (in_range(tree, path, static_cast<double>(*given), min, max)) value = static_cast<T>(*given);
  }

  void bind(const Tree& tree, const std::string& path, double& value, const Field& field) {
    auto given = as_double(tree);
    if (!given) return expected(tree, path, "a number");
    if (in_range(tree, path, *given, field.min, field.max)) value = *given;
  }

  void bind(const Tree& tree, const std::string& path, std::string& value, const Field& field) {
    if (tree.kind != Kind::scalar) return expected(tree, path, "text");
    if (!field.choices.empty() && !(field.open && has_plugins_) &&
        std::find(field.choices.begin(), field.choices.end(), tree.text) == field.choices.end()) {
      return expected(tree, path, fmt::format("one of {}", fmt::join(field.choices, ", ")));
    }
    bool text = tree.quoted || !(as_bool(tree) || as_double(tree));
    if (!text)
      return expected(tree, path, fmt::format("text (write \"{}\" if that is meant)", tree.text));
    value = tree.text;
  }

  template <class T>
  void bind(const Tree& tree, const std::string& path, std::optional<T>& value,
            const Field& field) {
    if (tree.kind == Kind::null) {
      value.reset();
    } else {
      T given{};
      bind(tree, path, given, field);
      value = std::move(given);
    }
  }

  template <class T>
  void bind(const Tree& tree, const std::string& path, std::vector<T>& value, const Field& field) {
    if (tree.kind != Kind::list) return expected(tree, path, "a list");
    value.clear();
    for (const Tree& item : tree.items) {
      T given{};
      bind(item, join_path(path, std::to_string(value.size())), given, field);
      value.push_back(std::move(given));
    }
  }

  void bind(const Tree& tree, const std::string& path, Json& value, const Field&) {
    if (tree.kind != Kind::map) return expected(tree, path, "a map of keys");
    value = to_json(tree);
  }

 private:
  void add(const Tree& tree, const std::string& message) {
    errors.push_back(fmt::format("{}: {}", tree.origin, message));
  }

  void expected(const Tree& tree, const std::string& path, const std::string& what) {
    add(tree, fmt::format("{}: expected {}, given {}", path, what, describe(tree)));
  }

  bool in_range(const Tree& tree, const std::string& path, double value, double min, double max) {
    if (value >= min && value <= max) return true;
    bool lower = min > -1e18 || value < min, upper = max < 2e9 || value > max;
    std::string range = lower && upper ? fmt::format("{} to {}", min, max)
                        : lower        ? fmt::format("at least {}", min)
                                       : fmt::format("at most {}", max);
    if (!std::isfinite(value)) range = "a finite number";
    expected(tree, path, range);
    return false;
  }

  bool has_plugins_;

  template <class T>
  void refuse_unknown(const Tree& item, const std::string& path) {
    std::vector<std::string> names = names_of<T>();
    if (std::find(names.begin(), names.end(), item.key) != names.end()) return;
    std::string hint;
    std::vector<std::string> elsewhere;
    find_elsewhere<RunConfig>(item.key, "", elsewhere);
    if (auto name = base::nearest(item.key, names)) {
      hint = fmt::format("did you mean {}?", *name);
    } else if (!elsewhere.empty()) {
      hint = fmt::format("did you mean {}?", fmt::join(elsewhere, " or "));
    } else {
      hint = fmt::format("known are {}", fmt::join(names, ", "));
    }
    add(item, fmt::format("unknown key {}; {}", join_path(path, item.key), hint));
  }
};

/// A map that names a feature's `key` but not `enabled` asks for the feature.
void switch_on(Tree& layer, std::string_view section, std::string_view key) {
  Tree* train = layer.find("train");
  Tree* node = train ? train->find(section) : nullptr;
  const Tree* given = node ? node->find(key) : nullptr;
  if (!given || node->find("enabled")) return;
  Tree enabled{.kind = Kind::scalar, .key = "enabled", .text = "true", .origin = given->origin};
  node->items.push_back(std::move(enabled));
}

RunConfig from_layers(std::vector<Tree> layers, const std::vector<std::string>& overrides) {
  std::string source = layers.back().origin;
  if (layers.back().kind != Kind::map && layers.back().kind != Kind::null) {
    throw ConfigError(
        fmt::format("{}: expected a map of keys, given {}", source, describe(layers.back())));
  }
  for (const std::string& text : overrides) layers.push_back(parse_override(text));
  Tree tree{.kind = Kind::map, .origin = source};
  for (Tree& layer : layers) {
    switch_on(layer, "zero_optimization", "stage");
    switch_on(layer, "amp", "dtype");
    if (layer.kind == Kind::map) merge(tree, std::move(layer));
  }
  static const Tree defaults = parse_tree(to_yaml(RunConfig{}), "defaults");
  resolve_references(tree, defaults);
  RunConfig config;
  Binder binder(tree.find("plugins") != nullptr);
  binder.bind(tree, "", config, Field{});
  if (!binder.errors.empty()) throw ConfigError(fmt::format("{}", fmt::join(binder.errors, "\n")));
  check_consistent(config);
  return config;
}

}  // namespace

RunConfig load(const std::string& path, const std::vector<std::string>& overrides) {
  return from_layers(read_layers(path), overrides);
}

RunConfig parse(std::string_view text, const std::string& source,
                const std::vector<std::string>& overrides) {
  return from_layers(with_includes(parse_tree(text, source), source, ""), overrides);
}

}  // namespace trireme::config
