#pragma once
// Indexed datasets: token ids of many documents in two files, PREFIX.idx and PREFIX.bin, byte for
// byte the `MMIDIDX` format (version 1) of Megatron-LM, so either side reads what the other wrote.
//
//   .idx  "MMIDIDX\0\0", u64 version, u8 dtype code, u64 sequences S, u64 document entries D,
//         i32[S] lengths in tokens, i64[S] byte offsets in .bin, i64[D] document boundaries (in
//         sequences)
//   .bin  the ids, back to back
//
// A document is one or more sequences. All numbers are little-endian and the i64 arrays are not
// aligned. Not here: tokenizing (preprocess.h) and samples (causal.h).
//
//   IndexedWriter writer("out/data", DType::u16);
//   writer.add_sequence(ids); writer.end_document(); writer.finish();
//   IndexedDataset data("out/data");  data.read(0, data.tokens(), buffer);

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "trireme/base/dtype.h"
#include "trireme/base/io.h"

namespace trireme::data {

/// A memory-mapped dataset. Opening checks the whole index against its own rules and the size of
/// .bin; the ids themselves are not looked at. Immutable, so threads may share it.
class IndexedDataset {
 public:
  /// `prefix` may carry the ending .idx or .bin. ConfigError when there is no such dataset;
  /// FormatError: file, byte, given, expected.
  explicit IndexedDataset(const std::string& prefix);

  const std::string& prefix() const { return prefix_; }
  base::DType dtype() const { return dtype_; }
  int64_t sequences() const { return sequences_; }
  int64_t documents() const { return documents_; }
  int64_t tokens() const { return tokens_; }

  /// Tokens of sequence `sequence`.
  int64_t length(int64_t sequence) const;
  /// First token of sequence `sequence` in the concatenation of all; begin(sequences()) is
  /// tokens().
  int64_t begin(int64_t sequence) const;
  /// First sequence of a document; first_sequence(documents()) is sequences().
  int64_t first_sequence(int64_t document) const;
  /// First token of a document; the documents follow one another, so it ends where the next begins.
  int64_t document_begin(int64_t document) const { return begin(first_sequence(document)); }
  /// The document that holds token `token` of the concatenation.
  int64_t document_of(int64_t token) const;

  /// The stored ids of tokens [begin, begin + count) of the concatenation, in place (no copy).
  std::span<const std::byte> bytes(int64_t begin, int64_t count) const;
  /// The same ids, widened to 64 bits.
  void read(int64_t begin, int64_t count, int64_t* ids) const;

  /// Hash of the index and of samples of the ids (all of them where they take up to 4 MB), to tell
  /// datasets apart.
  uint64_t fingerprint() const;

  /// Lowest and highest id; reads all of them. (0, -1) where there are none.
  std::pair<int64_t, int64_t> id_range() const;

 private:
  void check_header() const;
  void check_sizes() const;
  void check_arrays() const;

  std::string prefix_;
  base::MappedFile index_, data_;
  base::DType dtype_ = base::DType::i32;
  int64_t sequences_ = 0, documents_ = 0, tokens_ = 0;
  const std::byte *lengths_ = nullptr, *pointers_ = nullptr, *boundaries_ = nullptr;
};

/// Writes a dataset as a stream, in bounded memory: lengths and boundaries wait in a temporary
/// file. Nothing shows under PREFIX.idx and PREFIX.bin before `finish`; destroyed unfinished, it
/// removes what it wrote. One writer a prefix at a time.
class IndexedWriter {
 public:
  /// dtype: u8, i8, i16, i32, i64 or u16.
  IndexedWriter(const std::string& prefix, base::DType dtype);
  ~IndexedWriter();

  /// Appends one sequence. ConfigError when an id does not fit the dtype.
  void add_sequence(std::span<const int64_t> ids);
  void add_sequence(std::span<const int32_t> ids);
  /// Ends the document that the sequences since the last call make up (none: an empty document).
  void end_document();
  /// Appends documents [begin, end) of another dataset; ids are converted where the dtypes differ.
  void append(const IndexedDataset& source, int64_t begin, int64_t end);
  /// Makes both files durable and visible (.idx last), replacing those that stood there.
  void finish();

  int64_t documents() const;
  int64_t tokens() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// ConfigError when files of a dataset already stand under `prefix`; `remedy` ends the message.
void refuse_existing(const std::string& prefix, std::string_view remedy);

/// The type Megatron stores ids of a vocabulary in: u16 below 65500 entries, i32 from there.
base::DType token_dtype(int64_t vocab_size);

}  // namespace trireme::data
