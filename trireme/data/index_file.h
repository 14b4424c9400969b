#pragma once
// IndexFile: the .idx file of an indexed dataset, mapped and checked against its own rules and the
// size of the .bin file. Internal to indexed.cc; docs/data.md has the two formats byte by byte.

#include <cstddef>
#include <cstdint>
#include <string>

#include "trireme/base/dtype.h"
#include "trireme/base/io.h"
#include "trireme/data/indexed.h"

namespace trireme::data {

class IndexFile {
 public:
  /// FormatError: file, byte, given, expected.
  IndexFile(const std::string& path, const std::string& data_path, int64_t data_bytes);

  const base::MappedFile& file() const { return file_; }
  IndexFormat format() const { return format_; }
  base::DType dtype() const { return dtype_; }
  int64_t sequences() const { return sequences_; }
  int64_t documents() const { return documents_; }
  int64_t tokens() const { return tokens_; }
  int64_t length(int64_t sequence) const;
  int64_t begin(int64_t sequence) const;
  int64_t first_sequence(int64_t document) const;

 private:
  void read_megatron();
  void read_torchnet();
  void check_sequences(int64_t data_bytes, const std::string& data_path) const;
  void check_boundaries() const;
  base::DType dtype_of_code(uint64_t code, int64_t place) const;
  int64_t place(const std::byte* at) const { return at - file_.bytes().data(); }

  base::MappedFile file_;
  IndexFormat format_ = IndexFormat::megatron;
  base::DType dtype_ = base::DType::i32;
  int64_t sequences_ = 0, documents_ = 0, tokens_ = 0;
  int64_t length_bytes_ = 4;  // of a number in `lengths_`
  int64_t offset_unit_ = 1;   // what a token adds to the numbers in `offsets_`
  const std::byte *lengths_ = nullptr, *offsets_ = nullptr, *boundaries_ = nullptr;
};

}  // namespace trireme::data
