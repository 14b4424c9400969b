#pragma once
// Fields: the one description of a configuration struct. From it come the reader of YAML files,
// dotted overrides, the resolved file, the help text and docs/config.md.
//
// A struct describes itself with one static `visit` that works on const and mutable objects alike:
//
//   struct Dist {
//     int tensor_parallel_size = 1;
//     template <class Self, class V>
//     static void visit(Self& self, V&& v) {
//       v("tensor_parallel_size", self.tensor_parallel_size, Field{"ranks that share a layer", 1});
//     }
//   };
//
// Members may be bool, integers, double, std::string, std::optional of those (null in YAML),
// std::vector of those or of structs, nested structs, and base::Json for a free tree that somebody
// else checks.

#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::base {

/// What is known of a field beside its type and default.
struct Field {
  std::string_view help;
  double min =
      std::numeric_limits<double>::lowest();  // allowed range, inclusive; finite unless said
  double max = std::numeric_limits<double>::max();
  std::vector<std::string_view> choices = {};  // allowed words; empty: any
  bool open = false;                           // where `plugins` is given, they may add words
};

/// A struct with a `visit` as above.
template <class T>
concept Described = requires(T& object) {
  T::visit(object, [](std::string_view, auto&, const Field&) {});
};

}  // namespace trireme::base
