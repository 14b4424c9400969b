#include "trireme/nn/policy.h"

#include <string_view>

namespace trireme::nn {
namespace {

bool matches(std::string_view pattern, std::string_view text) {
  if (pattern.empty()) return text.empty();
  if (pattern.front() == '*') {
    for (size_t skip = 0; skip <= text.size(); ++skip)
      if (matches(pattern.substr(1), text.substr(skip))) return true;
    return false;
  }
  return !text.empty() && pattern.front() == text.front() && matches(pattern.substr(1), text.substr(1));
}

}  // namespace

Rule find_rule(const Policy& policy, const std::string& module) {
  for (const Rule& rule : policy)
    if (matches(rule.pattern, module)) return rule;
  return Rule{.pattern = module, .style = Style::replicate};
}

}  // namespace trireme::nn
