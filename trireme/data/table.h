#pragma once
// Table: rows of named columns in a text file, read by row number: .csv (RFC 4180), .tsv (no
// quotes, as GLUE's files) or .jsonl (an object a line). The file is mapped; only where each row
// begins is kept.

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/base/io.h"

namespace trireme::data {

class Table {
 public:
  /// `header`: whether the first row of .csv and .tsv names the columns; else they are "0", "1",
  /// ... FormatError: an open quote, a file of another ending.
  explicit Table(const std::string& path, bool header = true);

  const std::string& path() const { return file_.path(); }
  int64_t rows() const { return std::ssize(begins_); }
  /// The named cells of a row, as text; of .jsonl also numbers, as they are written. FormatError
  /// with file and line for a row without such a column. Thread-safe.
  std::vector<std::string> cells(int64_t row, const std::vector<std::string>& columns) const;
  /// "FILE:LINE" of a row.
  std::string place(int64_t row) const;
  /// Hash of the content.
  uint64_t fingerprint() const;

 private:
  enum class Kind { csv, tsv, json_lines };
  std::string_view text() const;
  void find_rows();
  int64_t row_end(int64_t begin) const;
  std::vector<std::string> split(int64_t begin) const;
  std::vector<std::string> json_cells(int64_t row, const std::vector<std::string>& columns) const;

  base::MappedFile file_;
  Kind kind_;
  std::vector<std::string> header_;
  std::vector<int64_t> begins_;
};

}  // namespace trireme::data
