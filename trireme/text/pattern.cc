#include "trireme/text/pattern.h"

namespace trireme::text {

Pattern read_pattern(const Node& node) {
  if (auto regex = node.find("Regex"))
    return {.literal = {},
            .regex = regex->here([&] { return std::make_shared<const Regex>(regex->text()); })};
  return {.literal = std::string(node.at("String").text()), .regex = nullptr};
}

}  // namespace trireme::text
