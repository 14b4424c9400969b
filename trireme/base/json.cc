#include "trireme/base/json.h"

#include <algorithm>
#include <set>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/io.h"

namespace trireme::base {

Json parse_json(std::string_view text, const std::string& source) {
  std::vector<std::set<std::string>> keys;
  auto refuse_duplicates = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second) {
      throw FormatError(fmt::format("{}: key \"{}\" appears twice in one object", source,
                                    value.get<std::string>()));
    }
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), refuse_duplicates);
  } catch (const nlohmann::json::parse_error& e) {
    // `byte` counts from 1 and may lie one past the end.
    std::string_view before = text.substr(0, std::min(text.size(), e.byte > 0 ? e.byte - 1 : 0));
    auto line = std::count(before.begin(), before.end(), '\n') + 1;
    size_t column = before.size() - (before.rfind('\n') + 1) + 1;
    throw FormatError(
        fmt::format("{}:{}:{}: not valid JSON: {}", source, line, column, message_of(e)));
  } catch (const nlohmann::json::exception& e) {
    throw FormatError(fmt::format("{}: not valid JSON: {}", source, message_of(e)));
  }
}

std::string message_of(const nlohmann::json::exception& error) {
  constexpr size_t kLongest = 300;  // it quotes the file's last word, however long
  std::string_view text = error.what();
  if (text.starts_with('[')) text.remove_prefix(std::min(text.find("] ") + 2, text.size()));
  if (text.starts_with("parse error")) text.remove_prefix(text.find(": ") + 2);
  return std::string(text.size() > kLongest ? text.substr(0, kLongest) : text) +
         (text.size() > kLongest ? " ..." : "");
}

Json read_json(const std::string& path) { return parse_json(read_file(path), path); }

}  // namespace trireme::base
