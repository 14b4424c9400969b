#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <limits>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/threads.h"
#include "trireme/data/indexed.h"
#include "trireme/data/indexed_format.h"

namespace trireme::data {

using base::DType;

namespace {

/// A file that disappears with its owner unless it was published under its final name.
struct Temporary {
  explicit Temporary(const std::string& p) : path(p), writer(std::make_unique<base::FileWriter>(p)) {}
  ~Temporary() { ::unlink(path.c_str()); }
  void write(const void* bytes, size_t size) { writer->write(bytes, size); }
  void write(std::string_view text) { writer->write(text); }
  void close() { writer->close(); }
  int64_t size() const { return writer->bytes_written(); }
  /// Leaves the first `size` bytes.
  void cut(int64_t size) {
    if (size == writer->bytes_written()) return;
    writer->close();
    const std::string old = path + ".old";
    publish(old);
    {
      const base::MappedFile kept(old);
      writer = std::make_unique<base::FileWriter>(path);
      writer->write(kept.bytes().data(), static_cast<size_t>(size));
    }
    ::unlink(old.c_str());
  }
  void publish(const std::string& target) {
    if (std::rename(path.c_str(), target.c_str()) != 0) {
      throw base::IoError(target, errno, "renaming the finished file");
    }
  }
  std::string path;
  std::unique_ptr<base::FileWriter> writer;
};

std::string folder_of(const std::string& path) {
  size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

}  // namespace

struct IndexedWriter::Impl {
  Impl(const std::string& p, DType d, IndexFormat f)
      : prefix(format::without_ending(p)),
        dtype(d),
        index_format(f),
        code(format::code_of(d)),
        data(prefix + ".bin.tmp"),
        lengths(prefix + ".lengths.tmp"),
        boundaries(prefix + ".documents.tmp") {
    end_document();  // the boundaries start with a zero
    documents = 0;
  }

  void end_document() {
    boundaries.write(&sequences, sizeof sequences);
    ++documents;
    whole = {sequences, tokens, data.size()};
  }

  void check_length(int64_t length) const {
    if (index_format == IndexFormat::megatron && length > std::numeric_limits<int32_t>::max()) {
      throw base::ConfigError(fmt::format(
          "{}: a sequence of {} tokens; the format ends at 2147483647: split the document", prefix,
          length));
    }
  }

  void end_sequence(int64_t length) {
    length += std::exchange(open, 0);
    check_length(length);
    lengths.write(&length, sizeof length);
    ++sequences;
    tokens += length;
  }

  void drop_document() {
    data.cut(whole.bytes);
    lengths.cut(static_cast<int64_t>(sizeof(int64_t)) * whole.sequences);
    sequences = whole.sequences;
    tokens = whole.tokens;
    open = 0;
  }

  /// `ids` as they are stored, in `out`; `place_of(i)`: where id number i lies, for an error.
  template <class Id, class Place>
  void convert(std::span<const Id> ids, std::vector<std::byte>& out, Place&& place_of) const {
    format::with_type(dtype, [&]<class T>(T) {
      out.resize(ids.size() * sizeof(T));
      auto* to = reinterpret_cast<T*>(out.data());
      for (size_t i = 0; i < ids.size(); ++i) {
        if (!std::in_range<T>(ids[i])) {
          throw base::ConfigError(fmt::format(
              "{}: token id {} ({}) does not fit {}; expected {} to {}", prefix, ids[i],
              place_of(i), base::name_of(dtype), std::numeric_limits<T>::min(),
              std::numeric_limits<T>::max()));
        }
        to[i] = static_cast<T>(ids[i]);
      }
    });
  }

  template <class Id>
  void write_ids(std::span<const Id> ids) {
    convert(ids, scratch, [&](size_t i) { return fmt::format("token {} of sequence {}", i, sequences); });
    data.write(scratch.data(), scratch.size());
  }

  /// Tokens [begin, begin + count) of another dataset, to byte `place` of the data.
  void copy(const IndexedDataset& source, int64_t begin, int64_t count, int64_t place) {
    std::vector<std::byte> read, converted;
    std::span<const std::byte> bytes = source.bytes(begin, count, read);
    if (source.dtype() != dtype) {
      format::with_type(source.dtype(), [&]<class S>(S) {
        convert(std::span(reinterpret_cast<const S*>(bytes.data()), static_cast<size_t>(count)), converted,
                [&](size_t i) { return fmt::format("token {} of {}", begin + int64_t(i), source.prefix()); });
      });
      bytes = converted;
    }
    data.writer->write_at(place, bytes.data(), bytes.size());
  }

  template <class Id>
  void add_sequence(std::span<const Id> ids) {
    write_ids(ids);
    end_sequence(static_cast<int64_t>(ids.size()));
  }

  void write_index(Temporary& file) const {
    base::MappedFile stored_lengths(lengths.path), stored_boundaries(boundaries.path);
    const auto length = [&](int64_t i) { return stored<int64_t>(stored_lengths, i); };
    const auto put = [&](auto value) { file.write(&value, sizeof value); };
    if (index_format == IndexFormat::megatron) {
      file.write(format::kMegatronMagic);
      put(uint64_t{1});
      put(code);
      put(sequences);
      put(documents + 1);
      for (int64_t i = 0; i < sequences; ++i) put(static_cast<int32_t>(length(i)));
      put_offsets(file, length, base::size_of(dtype), sequences);
    } else {
      file.write(format::kTorchnetMagic);
      put(uint64_t{1});
      put(uint64_t{code});
      put(base::size_of(dtype));
      put(sequences);  // sequences, and their sizes: ids lie in one dimension
      put(sequences);
      put(documents + 1);
      for (int64_t i = 0; i <= sequences; ++i) put(i);
      put_offsets(file, length, 1, sequences + 1);
      file.write(stored_lengths.bytes().data(), stored_lengths.bytes().size());
    }
    file.write(stored_boundaries.bytes().data(), stored_boundaries.bytes().size());
  }

  template <class T>
  static T stored(const base::MappedFile& file, int64_t i) {
    return format::load<T>(file.bytes().data() + static_cast<int64_t>(sizeof(T)) * i);
  }

  /// `count` running sums of the lengths, times `unit`, from 0.
  template <class Length>
  static void put_offsets(Temporary& file, Length&& length, int64_t unit, int64_t count) {
    for (int64_t i = 0, offset = 0; i < count; ++i) {
      file.write(&offset, sizeof offset);
      if (i + 1 < count) offset += length(i) * unit;
    }
  }

  std::string prefix;
  DType dtype;
  IndexFormat index_format;
  uint8_t code;
  int64_t sequences = 0, documents = 0, tokens = 0;
  int64_t open = 0;  // tokens of the sequence that has not ended
  struct {
    int64_t sequences = 0, tokens = 0, bytes = 0;
  } whole = {};  // what there was when the last document ended
  Temporary data, lengths, boundaries;
  std::vector<std::byte> scratch;
};

IndexedWriter::IndexedWriter(const std::string& prefix, DType dtype, IndexFormat format)
    : impl_(std::make_unique<Impl>(prefix, dtype, format)) {}
IndexedWriter::~IndexedWriter() = default;

void IndexedWriter::add_sequence(std::span<const int64_t> ids) {
  impl_->add_sequence(ids);
}
void IndexedWriter::add_sequence(std::span<const int32_t> ids) {
  impl_->add_sequence(ids);
}
void IndexedWriter::add_part(std::span<const int32_t> ids) {
  impl_->write_ids(ids);
  impl_->open += std::ssize(ids);
  impl_->check_length(impl_->open);
}
void IndexedWriter::drop_document() {
  impl_->drop_document();
}
void IndexedWriter::end_document() {
  impl_->end_document();
}
int64_t IndexedWriter::documents() const {
  return impl_->documents;
}
int64_t IndexedWriter::tokens() const {
  return impl_->tokens;
}

void IndexedWriter::append(const IndexedDataset& source, int64_t begin, int64_t end, int threads,
                           const std::function<void(int64_t)>& copied) {
  constexpr int64_t kStep = 1 << 20;
  const int64_t first_sequence = source.first_sequence(begin),
                last_sequence = source.first_sequence(end);
  if (source.format() != impl_->index_format)
    for (int64_t s = first_sequence; s < last_sequence; ++s) impl_->check_length(source.length(s));
  const int64_t first = source.begin(first_sequence), last = source.begin(last_sequence);
  const int64_t width = base::size_of(impl_->dtype);
  const int64_t place = impl_->data.writer->reserve((last - first) * width);
  std::mutex telling;
  base::parallel_for((last - first + kStep - 1) / kStep, threads, [&](int64_t step) {
    const int64_t at = first + step * kStep, count = std::min(kStep, last - at);
    impl_->copy(source, at, count, place + (at - first) * width);
    if (!copied) return;
    std::lock_guard lock(telling);
    copied(count);
  });
  for (int64_t document = begin; document < end; ++document) {
    for (int64_t s = source.first_sequence(document); s < source.first_sequence(document + 1);
         ++s) {
      impl_->end_sequence(source.length(s));
    }
    impl_->end_document();
  }
}

void IndexedWriter::finish() {
  Impl& w = *impl_;
  w.data.close();
  w.lengths.close();
  w.boundaries.close();
  Temporary index(w.prefix + ".idx.tmp");
  w.write_index(index);
  index.close();
  // An index must never stand beside data of another run, so the old one goes first.
  const std::string target = w.prefix + ".idx";
  if (::unlink(target.c_str()) != 0 && errno != ENOENT)
    throw base::IoError(target, errno, "removing the old index");
  w.data.publish(w.prefix + ".bin");
  index.publish(target);
  base::sync_directory(folder_of(w.prefix));
}

}  // namespace trireme::data
