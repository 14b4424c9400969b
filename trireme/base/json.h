#pragma once
// JSON values (nlohmann, insertion order kept) and strict parsing with our errors.

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace trireme::base {

using Json = nlohmann::ordered_json;

/// Parses `text`; `source` names it in the FormatError that a syntax error ("source:line:column: what") or a duplicate
/// key raises.
Json parse_json(std::string_view text, const std::string& source);
/// Reads and parses a file; IoError when it cannot be read, FormatError when it is no JSON.
Json read_json(const std::string& path);
/// What is wrong, in the library's words without its error numbers ("type must be string, but is number").
std::string message_of(const nlohmann::json::exception& error);

}  // namespace trireme::base
