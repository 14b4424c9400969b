#include "trireme/data/table.h"

#include <simdjson.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/hash.h"

namespace trireme::data {

using base::FormatError;

Table::Table(const std::string& path, bool header) : file_(path) {
  if (path.ends_with(".csv")) {
    kind_ = Kind::csv;
  } else if (path.ends_with(".tsv") || path.ends_with(".txt")) {
    kind_ = Kind::tsv;
  } else if (path.ends_with(".jsonl") || path.ends_with(".ndjson") || path.ends_with(".json")) {
    kind_ = Kind::json_lines;
  } else {
    throw base::ConfigError(fmt::format("{}: expected a table, .csv, .tsv or .jsonl", path));
  }
  find_rows();
  if (kind_ == Kind::json_lines || begins_.empty()) return;
  header_ = split(begins_[0]);
  if (header) {
    begins_.erase(begins_.begin());
  } else {
    for (size_t i = 0; i < header_.size(); ++i) header_[i] = std::to_string(i);
  }
}

std::string_view Table::text() const {
  return {reinterpret_cast<const char*>(file_.bytes().data()), file_.bytes().size()};
}

/// One past the row's last character, which is a line end or the end of the file.
int64_t Table::row_end(int64_t begin) const {
  const std::string_view all = text();
  bool quoted = false;
  for (auto at = static_cast<size_t>(begin); at < all.size(); ++at) {
    if (kind_ == Kind::csv && all[at] == '"') quoted = !quoted;
    if (all[at] == '\n' && !quoted) return static_cast<int64_t>(at) + 1;
  }
  if (quoted) throw FormatError(path(), begin, "a quote that begins in this row never ends");
  return std::ssize(all);
}

void Table::find_rows() {
  const std::string_view all = text();
  int64_t at = all.starts_with("\xEF\xBB\xBF") ? 3 : 0;
  while (at < std::ssize(all)) {
    const int64_t end = row_end(at);
    if (all.substr(at, end - at).find_first_not_of(" \r\n") != all.npos) begins_.push_back(at);
    at = end;
  }
}

std::vector<std::string> Table::split(int64_t begin) const {
  std::string_view row = text().substr(begin, row_end(begin) - begin);
  while (row.ends_with('\n') || row.ends_with('\r')) row.remove_suffix(1);
  std::vector<std::string> cells(1);
  const char separator = kind_ == Kind::csv ? ',' : '\t';
  bool quoted = false;
  for (size_t i = 0; i < row.size(); ++i) {
    if (kind_ == Kind::csv && row[i] == '"') {
      if (quoted && i + 1 < row.size() && row[i + 1] == '"') {
        cells.back() += row[i++];
      } else {
        quoted = !quoted;
      }
    } else if (row[i] == separator && !quoted) {
      cells.emplace_back();
    } else {
      cells.back() += row[i];
    }
  }
  return cells;
}

std::string Table::place(int64_t row) const {
  const std::string_view before = text().substr(0, begins_[row]);
  return fmt::format("{}:{}", path(), 1 + std::ranges::count(before, '\n'));
}

uint64_t Table::fingerprint() const {
  return base::hash_text(text());
}

std::vector<std::string> Table::cells(int64_t row, const std::vector<std::string>& columns) const {
  if (kind_ == Kind::json_lines) return json_cells(row, columns);
  const std::vector<std::string> all = split(begins_[row]);
  std::vector<std::string> cells;
  for (const std::string& column : columns) {
    const auto i = static_cast<size_t>(std::ranges::find(header_, column) - header_.begin());
    if (i == header_.size())
      throw FormatError(fmt::format("{}: no column \"{}\"; there are: {}", path(), column,
                                    fmt::join(header_, ", ")));
    if (i >= all.size())
      throw FormatError(fmt::format("{}: {} columns; \"{}\" is number {}", place(row), all.size(),
                                    column, i + 1));
    cells.push_back(all[i]);
  }
  return cells;
}

std::vector<std::string> Table::json_cells(int64_t row,
                                           const std::vector<std::string>& columns) const {
  thread_local simdjson::dom::parser parser;
  const std::string_view line = text().substr(begins_[row], row_end(begins_[row]) - begins_[row]);
  simdjson::dom::element value;
  if (auto error = parser.parse(line.data(), line.size()).get(value))
    throw FormatError(fmt::format("{}: not valid JSON ({}); expected one object a line", place(row),
                                  simdjson::error_message(error)));
  simdjson::dom::object object;
  if (value.get(object))
    throw FormatError(fmt::format("{}: not an object; expected one a line", place(row)));
  std::vector<std::string> cells;
  for (const std::string& column : columns) {
    if (object.at_key(column).get(value)) {
      std::vector<std::string_view> keys;
      for (auto field : object) keys.push_back(field.key);
      throw FormatError(fmt::format("{}: no key \"{}\"; the object has: {}", place(row), column,
                                    fmt::join(keys, ", ")));
    }
    std::string_view text;
    cells.push_back(value.get(text) ? simdjson::minify(value) : std::string(text));
  }
  return cells;
}

}  // namespace trireme::data
