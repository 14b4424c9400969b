#pragma once
// Inputs: the text files behind the arguments of a command, and their documents in pieces that
// workers take on side by side. Plain text is one document a file; JSON lines (.jsonl, .ndjson,
// .json) one a line. Files may be compressed (.gz, .zst); "-" is standard input, in JSON lines
// unless told otherwise. Files are read piece by piece, so memory does not grow with them, but for
// plain text in which there is no place to cut, and for long lines.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

/// A text file or a part of it, or some lines of a JSON lines file.
struct Piece {
  std::string path;
  std::shared_ptr<const std::string> owner;  // of the text
  std::string_view text;
  bool json_lines = false;
  bool begins = true, ends = true;  // whether the document of plain text begins and ends here
  /// Part of a document, another part of which is another piece.
  bool partial() const { return !begins || !ends; }
};

/// The last place inside a part of a plain text where the text may be cut; nothing where it has none.
using FindCut = std::function<std::optional<size_t>(std::string_view)>;

/// A place between two pieces; of a compressed file, bytes count as they come out.
struct InputPosition {
  int64_t file = 0, byte = 0;
};

/// Cuts files into pieces, in order. Where it cuts depends on the files alone.
class PieceCutter {
 public:
  /// `start`: between two documents. Without `find_cut` plain text is never cut.
  PieceCutter(std::vector<std::string> files, InputFormat format, FindCut find_cut = {},
              InputPosition start = {});
  /// The next piece; nothing at the end.
  std::optional<Piece> next();
  /// Where the next piece begins.
  InputPosition position() const { return position_; }

 private:
  bool is_json_lines(const std::string& path) const;
  bool fill();
  size_t find_end(bool json_lines);

  std::vector<std::string> files_;
  InputFormat format_;
  FindCut find_cut_;
  InputPosition position_;
  std::unique_ptr<ByteStream> stream_;  // of position_.file, once begun
  std::string rest_;                    // of the stream: read, but not cut yet
};

}  // namespace trireme::data
