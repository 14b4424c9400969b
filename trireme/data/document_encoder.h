#pragma once
// What a worker of preprocess makes of a piece of its input: the documents of one key or several of
// JSON lines, or of plain text, as ids. Internal to preprocess.cc.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/data/inputs.h"
#include "trireme/text/tokenizer.h"

namespace trireme::data {

/// 128 bits of a document's text: equal texts have equal ones, others practically never.
using TextHash = std::array<uint64_t, 2>;

struct EncodedPiece {
  struct Error {
    int64_t line;  // within the piece, from 1; 0: the whole file
    std::string message;
  };
  /// The documents under one key.
  struct Column {
    std::vector<int32_t> ids;
    std::vector<int64_t> lengths;    // of the sequences
    std::vector<int64_t> sequences;  // of each document; 0: nothing to write
  };
  bool partial() const { return !begins || !ends; }
  std::string path;
  bool begins = true, ends = true;  // as of the piece
  int64_t input_bytes = 0, lines = 0;
  std::vector<Column> columns;      // one a key; each has as many documents
  std::vector<int64_t> text_bytes;  // of each document, all keys together
  std::vector<TextHash> hashes;     // of each document, where duplicates are looked for
  std::vector<Error> errors;
};

struct DocumentEncoderOptions {
  std::vector<std::string> keys;
  std::optional<int32_t> end;  // after each document
  bool split_sentences = false;
  bool hash = false;
};

class DocumentEncoder {
 public:
  DocumentEncoder(const text::Tokenizer& tokenizer, DocumentEncoderOptions options)
      : tokenizer_(tokenizer), options_(std::move(options)) {}
  /// What is made of a part of a document has neither its end nor its hash; without sentences it is
  /// one sequence, which goes on in the next part. Thread-safe.
  EncodedPiece operator()(const Piece& piece) const;
  /// Where this encoder allows plain text to be cut.
  std::optional<size_t> last_cut(std::string_view text) const;

 private:
  using Texts = std::vector<std::string_view>;  // of one key's value: sentences, or one whole text
  void add(const std::vector<Texts>& values, int64_t line, EncodedPiece& result) const;
  void add_part(const Piece& piece, EncodedPiece& result) const;
  void add_lines(std::string_view rest, EncodedPiece& result) const;

  const text::Tokenizer& tokenizer_;
  DocumentEncoderOptions options_;
};

}  // namespace trireme::data
