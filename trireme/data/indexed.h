#pragma once
// Indexed datasets: token ids of many documents in two files, PREFIX.idx and PREFIX.bin, byte for
// byte as Megatron-LM, LiBai and OSLO write them, so either side reads what the other wrote. Two
// formats of the index (docs/data.md): `MMIDIDX`, and the older `TNTIDX` of OSLO's modes "lazy" and
// "cached". The .bin file holds the ids back to back.
//
// A document is one or more sequences. Not here: tokenizing (preprocess.h) and samples (causal.h).
//
//   IndexedWriter writer("out/data", DType::u16);
//   writer.add_sequence(ids); writer.end_document(); writer.finish();
//   IndexedDataset data("out/data");  data.read(0, data.tokens(), buffer);

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/base/dtype.h"
#include "trireme/base/io.h"

namespace trireme::data {

enum class IndexFormat { megatron, torchnet };

/// How ids are read: `mmap` maps the file; `lazy` reads each piece from it, which takes no address
/// space (blends of very many datasets, file systems that cannot map); `cached` holds all of them.
enum class Access { mmap, lazy, cached };
/// "mmap", "lazy", "cached"; ConfigError for another word.
Access access_of(const std::string& name);
/// The format in which OSLO writes a mode: mmap `MMIDIDX`, lazy and cached `TNTIDX`.
IndexFormat format_of(Access access);
std::string_view name_of(IndexFormat format);

/// Opening checks the whole index against its own rules and the size of .bin; the ids themselves
/// are not looked at. Immutable, so threads may share it; copies share the files.
class IndexedDataset {
 public:
  /// `prefix` may carry the ending .idx or .bin. ConfigError when there is no such dataset;
  /// FormatError: file, byte, given, expected.
  explicit IndexedDataset(const std::string& prefix, Access access = Access::mmap);

  const std::string& prefix() const { return prefix_; }
  IndexFormat format() const;
  base::DType dtype() const;
  int64_t sequences() const;
  int64_t documents() const;
  int64_t tokens() const;

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

  /// The stored ids of tokens [begin, begin + count) of the concatenation: in place, or, where the
  /// file is not in memory, read into `scratch`. FormatError when a file has changed since it was
  /// opened.
  std::span<const std::byte> bytes(int64_t begin, int64_t count,
                                   std::vector<std::byte>& scratch) const;
  /// The same ids, widened to 64 bits.
  void read(int64_t begin, int64_t count, int64_t* ids) const;

  /// Hash of the index and of samples of the ids (all of them where they take up to 4 MB), to tell
  /// datasets apart.
  uint64_t fingerprint() const;

  /// Lowest and highest id; reads all of them. (0, -1) where there are none.
  std::pair<int64_t, int64_t> id_range() const;

 private:
  struct Files;
  std::string prefix_;
  std::shared_ptr<const Files> files_;
};

/// Writes a dataset as a stream, in bounded memory: lengths and boundaries wait in a temporary
/// file. Nothing shows under PREFIX.idx and PREFIX.bin before `finish`; destroyed unfinished, it
/// removes what it wrote. One writer a prefix at a time.
class IndexedWriter {
 public:
  /// dtype: u8, i8, i16, i32, i64 or u16.
  IndexedWriter(const std::string& prefix, base::DType dtype,
                IndexFormat format = IndexFormat::megatron);
  ~IndexedWriter();

  /// Appends one sequence. ConfigError when an id does not fit the dtype.
  void add_sequence(std::span<const int64_t> ids);
  void add_sequence(std::span<const int32_t> ids);
  /// Appends ids to the sequence that the next add_sequence ends.
  void add_part(std::span<const int32_t> ids);
  /// Takes back all that was added since the last document ended; copies what was there before.
  void drop_document();
  /// Ends the document that the sequences since the last call make up (none: an empty document).
  void end_document();
  /// Appends documents [begin, end) of another dataset, on up to `threads` threads that hold a few
  /// megabytes each; ids are converted where the dtypes differ. The bytes do not depend on the
  /// number of threads. `copied` is told, by one thread at a time, of so many tokens more. After an
  /// error the writer can only be destroyed. ConfigError when an id does not fit the dtype or a
  /// sequence the format; FormatError when the source has changed; IoError where there is no room,
  /// before any id is copied.
  void append(const IndexedDataset& source, int64_t begin, int64_t end, int threads = 1,
              const std::function<void(int64_t)>& copied = {});
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

/// The smallest type that holds all ids of both.
base::DType common_dtype(base::DType a, base::DType b);

/// The type Megatron stores ids of a vocabulary in: u16 below 65500 entries, i32 from there.
base::DType token_dtype(int64_t vocab_size);

}  // namespace trireme::data
