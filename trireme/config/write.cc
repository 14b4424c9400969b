// The two texts that follow from the fields: a resolved configuration and the reference of all
// keys.

#include <cmath>

#include "trireme/base/error.h"
#include "trireme/config/load.h"
#include "trireme/config/tree.h"

namespace trireme::config {

using base::Described;

namespace {

/// Text as a scalar that reads back as the same text, plain where it can be.
std::string write_text(std::string_view text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-";
  bool first = !text.empty() && text[0] != '-' && text[0] != '.';
  Tree tree{.kind = Tree::Kind::scalar, .text = std::string(text)};
  if ((first || text.starts_with("./") || text.starts_with("../")) &&
      text.find_first_not_of(kPlain) == std::string_view::npos && !as_bool(tree) &&
      !as_double(tree) && text != "null" && text != "Null" && text != "NULL") {
    return tree.text;
  }
  std::string quoted = "\"";
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned char c = static_cast<unsigned char>(text[i]);
    if (text.substr(i, 2) == "${") {
      quoted += "$$";
    } else if (c == '"' || c == '\\') {
      quoted += {'\\', text[i]};
    } else if (c < 0x20 || c == 0x7f) {
      quoted += fmt::format("\\x{:02x}", c);
    } else {
      quoted += text[i];
    }
  }
  return quoted + "\"";
}

std::string write_number(double value) {
  if (std::isinf(value)) return value < 0 ? "-.inf" : ".inf";
  return fmt::format("{}", value);  // the shortest digits that read back as the same number
}

std::string write(bool value) {
  return value ? "true" : "false";
}
std::string write(double value) {
  return write_number(value);
}
std::string write(const std::string& value) {
  return write_text(value);
}
template <std::integral T>
std::string write(T value) {
  return std::to_string(value);
}
std::string write(const Json& value);
template <class T>
std::string write(const std::vector<T>& values);

template <class T>
std::string write(const std::optional<T>& value) {
  return value ? write(*value) : "null";
}

template <Described T>
std::string write(const T& object) {
  std::vector<std::string> entries;
  T::visit(object, [&](std::string_view name, const auto& value, const Field&) {
    entries.push_back(fmt::format("{}: {}", name, write(value)));
  });
  return fmt::format("{{{}}}", fmt::join(entries, ", "));
}

template <class T>
std::string write(const std::vector<T>& values) {
  std::vector<std::string> entries;
  for (const T& value : values) entries.push_back(write(value));
  return fmt::format("[{}]", fmt::join(entries, ", "));
}

std::string write(const Json& value) {
  if (value.is_string()) return write_text(value.get_ref<const std::string&>());
  if (value.is_number_float()) {
    std::string digits = write_number(value.get<double>());
    bool integral = digits.find_first_not_of("-0123456789") == std::string::npos;
    return integral ? digits + ".0" : digits;
  }
  if (value.is_array()) return write(value.get<std::vector<Json>>());
  if (!value.is_object()) return value.dump();
  std::vector<std::string> entries;
  for (const auto& [key, item] : value.items()) {
    entries.push_back(fmt::format("{}: {}", write_text(key), write(item)));
  }
  return fmt::format("{{{}}}", fmt::join(entries, ", "));
}

void write_block(std::string& out, const std::string& indent, std::string_view key,
                 const std::string& value) {
  out += fmt::format("{}{}: {}\n", indent, key, value);
}

template <Described T>
void write_section(std::string& out, const std::string& indent, const T& object) {
  T::visit(object, [&](std::string_view name, const auto& value, const Field&) {
    using Value = std::remove_cvref_t<decltype(value)>;
    if constexpr (Described<Value>) {
      out += fmt::format("{}{}:\n", indent, name);
      write_section(out, indent + "  ", value);
    } else if constexpr (std::is_same_v<Value, Json>) {
      if (value.empty()) return write_block(out, indent, name, "{}");
      out += fmt::format("{}{}:\n", indent, name);
      for (const auto& [key, item] : value.items()) {
        write_block(out, indent + "  ", write_text(key), write(item));
      }
    } else {
      write_block(out, indent, name, write(value));
    }
  });
}

// The type of a field as the reference names it.
std::string type_name(bool) {
  return "bool";
}
template <std::integral T>
std::string type_name(T) {
  return "int";
}
std::string type_name(double) {
  return "number";
}
std::string type_name(const std::string&) {
  return "text";
}
std::string type_name(const Json&) {
  return "map";
}
template <Described T>
std::string type_name(const T&) {
  return "map";
}
template <class T>
std::string type_name(const std::vector<T>&);
template <class T>
std::string type_name(const std::optional<T>&) {
  return type_name(T{}) + " or null";
}
template <class T>
std::string type_name(const std::vector<T>&) {
  return "list of " + type_name(T{}) + "s";
}

std::string allowed(const Field& field) {
  if (!field.choices.empty())
    return fmt::format("`{}`{}", fmt::join(field.choices, "`, `"), field.open ? ", a plugin's" : "");
  bool min = field.min > std::numeric_limits<double>::lowest(),
       max = field.max < std::numeric_limits<double>::max();
  if (min && max) return fmt::format("{} to {}", field.min, field.max);
  if (min) return fmt::format(">= {}", field.min);
  return "";
}

template <Described T>
void describe_section(std::string& out, const std::string& path, std::string_view help) {
  T defaults;
  std::string title(help);
  title[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(title[0])));
  out += fmt::format("\n## {}\n\n{}.\n\n", path.empty() ? "Top level" : "`" + path + "`", title);
  out += "| key | type | default | allowed | meaning |\n|---|---|---|---|---|\n";
  std::string sections;
  T::visit(defaults, [&](std::string_view name, auto& value, const Field& field) {
    using Value = std::remove_cvref_t<decltype(value)>;
    std::string full = path.empty() ? std::string(name) : fmt::format("{}.{}", path, name);
    if constexpr (Described<Value>) {
      out += fmt::format("| `{}` | section | | | {} |\n", name, field.help);
      describe_section<Value>(sections, full, field.help);
    } else {
      out += fmt::format("| `{}` | {} | `{}` | {} | {} |\n", name, type_name(value), write(value),
                         allowed(field), field.help);
    }
    if constexpr (requires { requires Described<typename Value::value_type>; }) {
      describe_section<typename Value::value_type>(sections, full + "[i]", "An entry of the list");
    }
  });
  out += sections;
}

}  // namespace

std::string to_yaml(const RunConfig& config) {
  std::string out;
  write_section(out, "", config);
  return out;
}

std::string reference() {
  std::string out =
      "# Configuration\n\n"
      "Generated from the program (`trireme train --help-config`); do not edit.\n\n"
      "A run is described by one YAML (or JSON) file: `trireme train --config FILE [key.path=value "
      "...]`.\n\n"
      "- `includes: [base.yaml]` takes over other files, relative to this one; later files win "
      "over earlier ones and the\n"
      "  file itself over all. Maps merge key by key; lists and values replace.\n"
      "- `\"${train.seed}\"` stands for another key's value, `\"${env:NAME,default}\"` for an "
      "environment variable. A\n"
      "  reference alone keeps the type. `$${` stands for a plain `${`.\n"
      "- `train.dist.tensor_parallel_size=2` on the command line overrides a key; the value is "
      "YAML. `data.train.0.path=x`\n"
      "  reaches into a list.\n"
      "- Types are strict: `yes` is no bool, `\"2\"` no number. An unknown key is an error that "
      "names the nearest one.\n"
      "- `null` means not given. `train.zero_optimization.stage` and `train.amp.dtype` without "
      "`enabled` switch their\n"
      "  feature on; the last file or override that speaks of it decides.\n"
      "- A run writes the resolved file to `output_dir/config.yaml`; training with it repeats the "
      "run.\n";
  describe_section<RunConfig>(out, "", "The sections of the file");
  return out;
}

}  // namespace trireme::config
