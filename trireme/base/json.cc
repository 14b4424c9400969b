#include "trireme/base/json.h"

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
  } catch (const nlohmann::json::exception& e) {
    throw FormatError(fmt::format("{}: not valid JSON: {}", source, e.what()));
  }
}

Json read_json(const std::string& path) { return parse_json(read_file(path), path); }

}  // namespace trireme::base
