#pragma once
// Pattern: what a stage of tokenizer.json looks for, {"String": "..."} or {"Regex": "..."}.

#include "trireme/text/json_node.h"
#include "trireme/text/regex.h"

namespace trireme::text {

struct Pattern {
  std::string literal;  // where there is no regex
  std::shared_ptr<const Regex> regex;
};
/// FormatError that names the place.
Pattern read_pattern(const Node& node);

}  // namespace trireme::text
