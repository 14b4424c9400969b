#include "trireme/config/tree.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "trireme/base/error.h"
#include "trireme/base/io.h"

namespace trireme::config {

using base::ConfigError;
using Kind = Tree::Kind;

namespace {

constexpr int kMaxDepth = 64;
constexpr int64_t kMaxNodes =
    200000;  // aliases and references can multiply a small text without end

std::string strip(std::string_view text) {
  size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(" \t") - begin + 1));
}

bool is_null_word(std::string_view text) {
  return text == "~" || text == "null" || text == "Null" || text == "NULL";
}

class Converter {
 public:
  explicit Converter(const std::string& source) : source_(source) {}

  Tree convert(const YAML::Node& node, int depth = 0) {
    Tree tree;
    tree.origin = origin(node);
    if (depth > kMaxDepth || ++nodes_ > kMaxNodes) {
      throw ConfigError(
          fmt::format("{}: nested too deep or too large for a configuration", tree.origin));
    }
    std::string_view tag = node.Tag();
    constexpr std::string_view kStandard = "tag:yaml.org,2002:";
    if (tag.starts_with(kStandard)) tag.remove_prefix(kStandard.size());
    for (std::string_view known :
         {"", "?", "!", "str", "int", "float", "bool", "null", "map", "seq"}) {
      if (tag == known) return fill(std::move(tree), node, tag, depth);
    }
    throw ConfigError(
        fmt::format("{}: the tag {} has no meaning in a configuration", tree.origin, node.Tag()));
  }

 private:
  std::string origin(const YAML::Node& node) const {
    return fmt::format("{}:{}", source_, std::max(0, node.Mark().line) + 1);
  }

  Tree fill(Tree tree, const YAML::Node& node, std::string_view tag, int depth) {
    if (node.IsScalar()) {
      tree.quoted = tag == "!" || tag == "str";
      tree.text = node.Scalar();
      tree.kind = !tree.quoted && is_null_word(tree.text) ? Kind::null : Kind::scalar;
    } else if (node.IsSequence()) {
      tree.kind = Kind::list;
      for (const YAML::Node& item : node) tree.items.push_back(convert(item, depth + 1));
    } else if (node.IsMap()) {
      tree.kind = Kind::map;
      for (const auto& entry : node) {
        if (!entry.first.IsScalar()) {
          throw ConfigError(fmt::format("{}: a key must be plain text", origin(entry.first)));
        }
        const std::string& key = entry.first.Scalar();
        if (const Tree* other = tree.find(key)) {
          throw ConfigError(fmt::format("{}: key \"{}\" appears twice, first at {}",
                                        origin(entry.first), key, other->origin));
        }
        Tree item = convert(entry.second, depth + 1);
        item.key = key;
        item.origin = origin(entry.first);
        tree.items.push_back(std::move(item));
      }
    }
    return tree;
  }

  const std::string& source_;
  int64_t nodes_ = 0;
};

bool is_index(std::string_view text) {
  return !text.empty() && text.size() < 10 &&
         text.find_first_not_of("0123456789") == std::string_view::npos;
}

/// The node at a dotted path, or null.
const Tree* find_path(const Tree& root, std::string_view path) {
  const Tree* node = &root;
  while (!path.empty()) {
    size_t dot = path.find('.');
    std::string_view name = path.substr(0, dot);
    path = dot == std::string_view::npos ? "" : path.substr(dot + 1);
    if (node->kind == Kind::list) {
      if (!is_index(name)) return nullptr;
      size_t index = std::strtoul(std::string(name).c_str(), nullptr, 10);
      if (index >= node->items.size()) return nullptr;
      node = &node->items[index];
    } else {
      node = node->find(name);
    }
    if (!node) return nullptr;
  }
  return node;
}

class Resolver {
 public:
  Resolver(const Tree& root, const Tree& defaults) : root_(root), defaults_(defaults) {}

  void resolve(Tree& node) {
    if (++nodes_ > kMaxNodes) {
      throw ConfigError(
          fmt::format("{}: references multiply beyond {} values", node.origin, kMaxNodes));
    }
    for (Tree& item : node.items) resolve(item);
    if (node.kind == Kind::scalar) resolve_scalar(node);
  }

 private:
  void resolve_scalar(Tree& node) {
    const std::string text = node.text;
    std::string built;
    bool changed = false;
    for (size_t at = 0; at < text.size();) {
      if (text.compare(at, 3, "$${") == 0) {
        built += "${";
        at += 3;
        changed = true;
      } else if (text.compare(at, 2, "${") == 0) {
        size_t end = text.find('}', at);
        if (end == std::string::npos) {
          throw ConfigError(fmt::format(
              "{}: {}: a reference without its closing brace; $${{ stands for a plain ${{",
              node.origin, text));
        }
        Tree value = look_up(text.substr(at + 2, end - at - 2), node.origin);
        if (at == 0 && end + 1 == text.size()) {
          value.key = node.key;
          value.origin = node.origin;
          node = std::move(value);
          return;
        }
        if (value.kind != Kind::scalar) {
          throw ConfigError(fmt::format("{}: {}: {} cannot be part of a text", node.origin, text,
                                        describe(value)));
        }
        built += value.text;
        at = end + 1;
        changed = true;
      } else {
        built += text[at++];
      }
    }
    if (!changed) return;
    node.text = built;
    node.quoted = true;
  }

  Tree look_up(const std::string& name, const std::string& origin) {
    if (name.starts_with("env:")) return look_up_variable(name.substr(4), origin);
    const Tree* target = find_path(root_, name);
    if (!target) target = find_path(defaults_, name);
    if (!target || name.empty()) {
      throw ConfigError(
          fmt::format("{}: ${{{}}} refers to a key that does not exist", origin, name));
    }
    active_.push_back(name);
    for (size_t i = 0; i + 1 < active_.size(); ++i) {
      if (active_[i] == name) {
        throw ConfigError(
            fmt::format("{}: references in a circle: {}", origin, fmt::join(active_, " -> ")));
      }
    }
    Tree value = *target;
    resolve(value);
    active_.pop_back();
    return value;
  }

  static Tree look_up_variable(std::string_view text, const std::string& origin) {
    size_t comma = text.find(',');
    std::string name = strip(text.substr(0, comma));
    Tree value;
    value.kind = Kind::scalar;
    if (const char* set = std::getenv(name.c_str())) {
      value.text = set;
    } else if (comma != std::string_view::npos) {
      value.text = strip(text.substr(comma + 1));
    } else {
      throw ConfigError(fmt::format(
          "{}: the environment has no {}; set it, or give a default: ${{env:{},default}}", origin,
          name, name));
    }
    if (is_null_word(value.text)) value.kind = Kind::null;
    return value;
  }

  const Tree& root_;
  const Tree& defaults_;
  std::vector<std::string> active_;
  int64_t nodes_ = 0;
};

}  // namespace

const Tree* Tree::find(std::string_view name) const {
  if (kind != Kind::map) return nullptr;
  for (const Tree& item : items) {
    if (item.key == name) return &item;
  }
  return nullptr;
}

Tree* Tree::find(std::string_view name) {
  return const_cast<Tree*>(static_cast<const Tree*>(this)->find(name));
}

Tree parse_tree(std::string_view text, const std::string& source) {
  try {
    std::vector<YAML::Node> documents = YAML::LoadAll(std::string(text));
    if (documents.empty()) return Tree{.origin = source + ":1"};
    if (documents.size() > 1) {
      throw ConfigError(
          fmt::format("{}: {} documents; a configuration is one", source, documents.size()));
    }
    return Converter(source).convert(documents[0]);
  } catch (const YAML::Exception& e) {
    if (e.mark.is_null()) throw ConfigError(fmt::format("{}: not valid YAML: {}", source, e.msg));
    throw ConfigError(fmt::format("{}:{}: not valid YAML: {} (column {})", source, e.mark.line + 1,
                                  e.msg, e.mark.column + 1));
  }
}

std::vector<Tree> with_includes(Tree tree, const std::string& path, const std::string& directory,
                                std::vector<std::string> parents) {
  parents.push_back(path);
  std::vector<Tree> layers;
  if (const Tree* includes = tree.find("includes")) {
    if (includes->kind != Kind::list) {
      throw ConfigError(fmt::format("{}: includes: expected a list of files, given {}",
                                    includes->origin, describe(*includes)));
    }
    for (const Tree& item : includes->items) {
      if (item.kind != Kind::scalar) {
        throw ConfigError(
            fmt::format("{}: includes: expected a file, given {}", item.origin, describe(item)));
      }
      std::string file = (std::filesystem::path(directory) / item.text).lexically_normal().string();
      std::error_code error;
      bool circle = std::any_of(parents.begin(), parents.end(), [&](const std::string& parent) {
        return parent == file || std::filesystem::equivalent(parent, file, error);
      });
      if (circle) {
        throw ConfigError(fmt::format("{}: files include each other in a circle: {} -> {}",
                                      item.origin, fmt::join(parents, " -> "), file));
      }
      if (!std::filesystem::exists(file, error)) {
        throw ConfigError(fmt::format("{}: includes: there is no file {}", item.origin, file));
      }
      for (Tree& layer : read_layers(file, parents)) layers.push_back(std::move(layer));
    }
    std::erase_if(tree.items, [](const Tree& item) { return item.key == "includes"; });
  }
  layers.push_back(std::move(tree));
  return layers;
}

std::vector<Tree> read_layers(const std::string& path, std::vector<std::string> parents) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    throw ConfigError(fmt::format("{}: there is no such configuration file", path));
  }
  Tree tree = parse_tree(base::read_file(path), path);
  return with_includes(std::move(tree), path, std::filesystem::path(path).parent_path().string(),
                       std::move(parents));
}

Tree parse_override(const std::string& text) {
  std::string origin = "override " + text;
  size_t equals = text.find('=');
  std::string path = text.substr(0, equals);
  if (equals == std::string::npos || path.empty() || path.front() == '.' || path.back() == '.' ||
      path.find("..") != std::string::npos || path.find_first_of(" \t") != std::string::npos) {
    throw ConfigError(fmt::format("{}: expected key.path=value, for example train.seed=9", origin));
  }
  Tree value = parse_tree(std::string_view(text).substr(equals + 1), origin);
  auto set_origin = [&](auto&& self, Tree& tree) -> void {
    tree.origin = origin;
    for (Tree& item : tree.items) self(self, item);
  };
  set_origin(set_origin, value);
  while (true) {
    size_t dot = path.rfind('.');
    value.key = dot == std::string::npos ? path : path.substr(dot + 1);
    Tree parent{.kind = Kind::map, .origin = origin};
    parent.items.push_back(std::move(value));
    value = std::move(parent);
    if (dot == std::string::npos) return value;
    path.resize(dot);
  }
}

void merge(Tree& base, Tree overlay) {
  bool indices = base.kind == Kind::list && overlay.kind == Kind::map && !overlay.items.empty() &&
                 std::all_of(overlay.items.begin(), overlay.items.end(),
                             [](const Tree& item) { return is_index(item.key); });
  if (indices) {
    for (Tree& item : overlay.items) {
      size_t index = std::strtoul(item.key.c_str(), nullptr, 10);
      if (index >= base.items.size()) {
        throw ConfigError(fmt::format("{}: there is no entry {}; the list has {}", item.origin,
                                      index, base.items.size()));
      }
      item.key.clear();
      merge(base.items[index], std::move(item));
    }
    return;
  }
  if (base.kind != Kind::map || overlay.kind != Kind::map) {
    base = std::move(overlay);
    return;
  }
  for (Tree& item : overlay.items) {
    if (Tree* present = base.find(item.key)) {
      merge(*present, std::move(item));
    } else {
      base.items.push_back(std::move(item));
    }
  }
}

void resolve_references(Tree& root, const Tree& defaults) {
  Tree given = root;
  Resolver(given, defaults).resolve(root);
}

std::optional<bool> as_bool(const Tree& tree) {
  if (tree.kind != Kind::scalar || tree.quoted) return std::nullopt;
  if (tree.text == "true" || tree.text == "True" || tree.text == "TRUE") return true;
  if (tree.text == "false" || tree.text == "False" || tree.text == "FALSE") return false;
  return std::nullopt;
}

std::optional<int64_t> as_integer(const Tree& tree) {
  if (tree.kind != Kind::scalar || tree.quoted) return std::nullopt;
  std::string_view text = tree.text;
  if (text.starts_with('+')) text.remove_prefix(1);
  std::string_view digits = text.substr(text.starts_with('-') && text.size() == tree.text.size());
  // A leading zero means octal to some readers of YAML and decimal to others: no number here.
  if (digits.empty() || (digits.size() > 1 && digits[0] == '0') ||
      digits.find_first_not_of("0123456789") != std::string_view::npos) {
    return std::nullopt;
  }
  int64_t value;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  return value;
}

std::optional<double> as_double(const Tree& tree) {
  if (tree.kind != Kind::scalar || tree.quoted) return std::nullopt;
  std::string_view text = tree.text;
  bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  if (text == ".inf" || text == ".Inf" || text == ".INF") return negative ? -HUGE_VAL : HUGE_VAL;
  if (!negative && (text == ".nan" || text == ".NaN" || text == ".NAN")) return std::nan("");
  bool digit = text.find_first_of("0123456789") != std::string_view::npos;
  bool leading_zero =
      text.size() > 1 && text[0] == '0' && std::isdigit(static_cast<unsigned char>(text[1]));
  if (!digit || leading_zero ||
      text.find_first_not_of("0123456789.eE+-") != std::string_view::npos || text[0] == '-' ||
      text[0] == '+') {
    return std::nullopt;
  }
  double value;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return negative ? -value : value;
}

base::Json to_json(const Tree& tree) {
  base::Json json;
  if (tree.kind == Kind::map) {
    json = base::Json::object();
    for (const Tree& item : tree.items) json[item.key] = to_json(item);
  } else if (tree.kind == Kind::list) {
    json = base::Json::array();
    for (const Tree& item : tree.items) json.push_back(to_json(item));
  } else if (auto boolean = as_bool(tree)) {
    json = *boolean;
  } else if (auto integer = as_integer(tree)) {
    json = *integer;
  } else if (auto number = as_double(tree)) {
    json = *number;
  } else if (tree.kind == Kind::scalar) {
    json = tree.text;
  }
  return json;
}

std::string describe(const Tree& tree) {
  switch (tree.kind) {
    case Kind::null:
      return "null";
    case Kind::list:
      return "a list";
    case Kind::map:
      return "a map";
    case Kind::scalar:
      break;
  }
  bool bare = !tree.quoted && !tree.text.empty();
  return bare ? tree.text : fmt::format("the text \"{}\"", tree.text);
}

}  // namespace trireme::config
