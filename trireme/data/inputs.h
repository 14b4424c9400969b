#pragma once
// Inputs: the text files behind the arguments of a command, and their documents in pieces that
// workers take on side by side. Plain text is one document a file; JSON lines (.jsonl, .ndjson,
// .json) one a line. Files may be compressed (.gz, .zst); "-" is standard input, in JSON lines
// unless told otherwise.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/base/io.h"
#include "trireme/data/compressed.h"

namespace trireme::data {

/// Files of the arguments, in their order: a file stands for itself, a folder for all files under
/// it and a pattern (`*`, `?`, `[...]` within a name, `**` for any folders) for its matches, both
/// sorted by path and without hidden names; "-" for itself. ConfigError for an argument that names
/// no file.
std::vector<std::string> expand_inputs(const std::vector<std::string>& arguments);

/// Bytes of a file as it lies on the disk; 0 for standard input.
int64_t input_bytes(const std::string& path);

enum class InputFormat { automatic, text, jsonl };

/// A whole text file or some lines of a JSON lines file.
struct Piece {
  std::string path;
  std::shared_ptr<const void> owner;  // of the text: a map or a string
  std::string_view text;
  bool json_lines = false;
};

/// A place between two pieces; of a compressed file, bytes count as they come out.
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
  Piece next_mapped(const std::string& path, bool json_lines);
  Piece next_streamed(const std::string& path, bool json_lines);
  void end_file();

  std::vector<std::string> files_;
  InputFormat format_;
  InputPosition position_;
  // Of position_.file, once begun:
  std::shared_ptr<const base::MappedFile> map_;
  std::unique_ptr<ByteStream> stream_;
  std::string rest_;  // of the stream: read, but not cut yet
};

}  // namespace trireme::data
