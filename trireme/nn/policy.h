#pragma once
// Policy: how a model's weights lie on the tensor axis, as a table of name patterns.

#include <string>
#include <vector>

namespace trireme::nn {

/// column: the output features are split; row: the input features are; vocab: rows of an embedding are.
enum class Style : uint8_t { replicate, column, row, vocab };

struct Rule {
  std::string pattern;  // of the module's name without the parameter's own; '*' matches any text
  Style style = Style::replicate;
  int blocks = 1;       // equal blocks of a fused output (q|k|v: 3), each split on its own
};
using Policy = std::vector<Rule>;

/// The first rule that matches `module`; replicate where none does.
Rule find_rule(const Policy& policy, const std::string& module);

}  // namespace trireme::nn
