#pragma once
// What the readers of tokenizer files share: vocabularies in JSON.

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "trireme/text/json_node.h"

namespace trireme::text {

/// The keys point into the parser's document.
using TokenIds = std::unordered_map<std::string_view, int32_t>;

/// {"token": id, ...} to tokens by id; an id that no token has stays empty.
TokenIds read_vocabulary(const Node& node, std::vector<std::string>& vocabulary);
/// FormatError where an id below the highest has no token.
void refuse_holes(const std::string& path, const std::vector<std::string>& vocabulary);

}  // namespace trireme::text
