#pragma once
// The options of a dataset: the free map of a configuration (`options` of a source, `data.dataset`)
// read into a struct that describes its fields (base/fields.h). Unknown keys, other types and
// values out of range are ConfigErrors that name the key.
//
//   BertOptions options;
//   read_options(json, "bert", options);

#include <algorithm>
#include <concepts>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/fields.h"
#include "trireme/base/json.h"
#include "trireme/base/nearest.h"

namespace trireme::data {

namespace options_detail {

[[noreturn]] inline void refuse(const std::string& key, const base::Json& value,
                                const std::string& expected) {
  throw base::ConfigError(fmt::format("{}: expected {}, given {}", key, expected, value.dump()));
}

inline void check_range(const std::string& key, const base::Json& value, double number,
                        const base::Field& field) {
  if (number < field.min || number > field.max)
    refuse(key, value, fmt::format("{} to {}", field.min, field.max));
}

inline void read(const std::string& key, const base::Json& value, bool& out, const base::Field&) {
  if (!value.is_boolean()) refuse(key, value, "true or false");
  out = value.get<bool>();
}

template <std::integral T>
void read(const std::string& key, const base::Json& value, T& out, const base::Field& field) {
  if (!value.is_number_integer()) refuse(key, value, "an integer");
  check_range(key, value, value.get<double>(), field);
  out = value.get<T>();
}

inline void read(const std::string& key, const base::Json& value, double& out,
                 const base::Field& field) {
  if (!value.is_number()) refuse(key, value, "a number");
  check_range(key, value, value.get<double>(), field);
  out = value.get<double>();
}

inline void read(const std::string& key, const base::Json& value, std::string& out,
                 const base::Field& field) {
  // A text that looks like a number ("949") arrives as one.
  const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  if (!value.is_string() && !value.is_number()) refuse(key, value, "text");
  if (!field.choices.empty() && std::ranges::find(field.choices, text) == field.choices.end())
    refuse(key, value, fmt::format("one of {}", fmt::join(field.choices, ", ")));
  out = text;
}

template <class T>
void read(const std::string& key, const base::Json& value, std::optional<T>& out,
          const base::Field& field) {
  if (value.is_null()) {
    out.reset();
    return;
  }
  T inner{};
  read(key, value, inner, field);
  out = std::move(inner);
}

template <class T>
void read(const std::string& key, const base::Json& value, std::vector<T>& out,
          const base::Field& field) {
  if (!value.is_array()) refuse(key, value, "a list");
  out.clear();
  for (const base::Json& item : value)
    read(fmt::format("{}[{}]", key, out.size()), item, out.emplace_back(), field);
}

}  // namespace options_detail

/// Reads the keys that are there; the others keep their values. `where` starts each message.
template <base::Described T>
void read_options(const base::Json& json, const std::string& where, T& options) {
  std::vector<std::string> names;
  T::visit(options, [&](std::string_view name, auto& value, const base::Field& field) {
    names.emplace_back(name);
    if (auto at = json.find(std::string(name)); at != json.end())
      options_detail::read(fmt::format("{}.{}", where, name), *at, value, field);
  });
  for (const auto& [key, value] : json.items()) {
    if (std::ranges::find(names, key) != names.end()) continue;
    const auto near = base::nearest(key, names);
    throw base::ConfigError(fmt::format("{}: unknown option '{}'{}; known are {}", where, key,
                                        near ? fmt::format(", did you mean {}?", *near) : "",
                                        fmt::join(names, ", ")));
  }
}

}  // namespace trireme::data
