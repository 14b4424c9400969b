#pragma once
// Inputs: the text files behind the arguments of a command, and their documents in pieces that
// workers take on side by side. Plain text is one document a file; JSON lines (.jsonl, .ndjson,
// .json) one a line.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/base/io.h"

namespace trireme::data {

/// Files of the arguments, in their order: a file stands for itself, a folder for all files under
/// it and a pattern (`*`, `?`, `[...]` within a name, `**` for any folders) for its matches, both
/// sorted by path and without hidden names. ConfigError for an argument that names no file.
std::vector<std::string> expand_inputs(const std::vector<std::string>& arguments);

enum class InputFormat { automatic, text, jsonl };

/// A whole text file or some lines of a JSON lines file, mapped.
struct Piece {
  std::shared_ptr<const base::MappedFile> file;
  int64_t begin = 0, end = 0;
  bool json_lines = false;
  std::string_view text() const {
    return {reinterpret_cast<const char*>(file->bytes().data()) + begin,
            static_cast<size_t>(end - begin)};
  }
};

/// A place between two pieces.
struct InputPosition {
  int64_t file = 0, byte = 0;
};

/// Cuts files into pieces, in order. Where it cuts depends on the files alone.
class PieceCutter {
 public:
  PieceCutter(std::vector<std::string> files, InputFormat format, InputPosition start = {});
  /// The next piece; nothing at the end.
  std::optional<Piece> next();
  /// Where the next piece begins.
  InputPosition position() const { return position_; }

 private:
  bool is_json_lines(const std::string& path) const;

  std::vector<std::string> files_;
  InputFormat format_;
  InputPosition position_;
  std::shared_ptr<const base::MappedFile> open_;  // of position_.file, once begun
};

}  // namespace trireme::data
