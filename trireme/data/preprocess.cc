#include "trireme/data/preprocess.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <unordered_set>

#include "trireme/base/error.h"
#include "trireme/base/hash.h"
#include "trireme/base/hasher.h"
#include "trireme/base/threads.h"
#include "trireme/data/document_encoder.h"
#include "trireme/data/indexed.h"
#include "trireme/data/preprocess_parts.h"
#include "trireme/data/split.h"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;
using base::ConfigError;

constexpr size_t kErrorsKept = 10;

/// Threads that encode pieces; each piece's result comes through its own future.
class Workers {
 public:
  Workers(const DocumentEncoder& encoder, int count) : tasks_(static_cast<size_t>(4 * count)) {
    for (int i = 0; i < count; ++i) {
      threads_.emplace_back([this, &encoder] {
        while (auto task = tasks_.pop()) (*task)(encoder);
      });
    }
  }
  ~Workers() {
    tasks_.close();
    while (tasks_.pop()) {
    }
    for (std::thread& thread : threads_) thread.join();
  }
  std::future<EncodedPiece> submit(Piece piece) {
    Task task([piece = std::move(piece)](const DocumentEncoder& encode) { return encode(piece); });
    auto result = task.get_future();
    tasks_.push(std::move(task));
    return result;
  }

 private:
  using Task = std::packaged_task<EncodedPiece(const DocumentEncoder&)>;
  base::BoundedQueue<Task> tasks_;
  std::vector<std::thread> threads_;
};

struct HashOfHash {
  size_t operator()(const TextHash& hash) const { return static_cast<size_t>(hash[0]); }
};

/// Writes results in order, part by part.
class PartWriter {
 public:
  PartWriter(PreprocessParts& parts, base::DType dtype, std::optional<int32_t> end,
             const PreprocessOptions& options)
      : parts_(parts), dtype_(dtype), end_(end), options_(options), state_(parts.state()) {
    for (const TextHash& hash : parts.hashes()) seen_.insert(hash);
  }

  const PreprocessState& state() const { return state_; }

  /// `after`: the input's position after this result; `hash`: of a document that came in parts,
  /// with its last one.
  void write(EncodedPiece result, InputPosition after, const std::optional<TextHash>& hash) {
    state_.input_bytes += result.input_bytes;
    if (writers_.empty()) {
      for (size_t k = 0; k < options_.keys.size(); ++k)
        writers_.emplace_back(parts_.prefix_of(parts_.count(), static_cast<int64_t>(k)), dtype_);
    }
    if (result.partial()) {
      if (!take_part(std::move(result), hash)) return;
    } else {
      write_documents(result);
    }
    state_.line = after.byte == 0 ? 0 : state_.line + result.lines;
    state_.position = after;
    if (state_.input_bytes - parts_.state().input_bytes >= options_.part_bytes) finish();
  }

  void finish() {
    if (writers_.empty()) return;
    for (IndexedWriter& writer : writers_) writer.finish();
    writers_.clear();
    parts_.add(state_, new_hashes_);
    new_hashes_.clear();
  }

 private:
  /// A document of plain text that comes in parts. They are held until it is whole, so that it can
  /// still be left out; a very long one is written as it comes and taken back where it must.
  struct LongDocument {
    static constexpr int64_t kHeldIds = 4 << 20;
    std::vector<EncodedPiece> held = {};
    int64_t held_ids = 0, sequences = 0, tokens = 0, bytes = 0;
    bool begun = false, bad = false;
  };

  void write_documents(const EncodedPiece& result) {
    note_errors(result);
    std::vector<bool> left_out(result.text_bytes.size(), false);
    for (size_t d = 0; d < result.hashes.size(); ++d) {
      left_out[d] = !seen_.insert(result.hashes[d]).second;
      state_.duplicates += left_out[d];
      if (!left_out[d]) new_hashes_.push_back(result.hashes[d]);
    }
    for (size_t k = 0; k < result.columns.size(); ++k)
      write(result.columns[k], left_out, writers_[k]);
    for (size_t d = 0; d < left_out.size(); ++d)
      if (!left_out[d]) state_.text_bytes += result.text_bytes[d];
  }

  /// True once the document is over.
  bool take_part(EncodedPiece part, const std::optional<TextHash>& hash) {
    const bool ends = part.ends;
    if (part.begins) long_ = {};
    if (!long_.bad) {
      note_errors(part);
      long_.bad = !part.errors.empty();
    }
    if (!long_.bad) {
      long_.bytes += part.input_bytes;
      long_.held_ids += std::ssize(part.columns.front().ids);
      long_.held.push_back(std::move(part));
      if (!ends && long_.held_ids >= LongDocument::kHeldIds) write_held();
    }
    if (ends) end_long(hash);
    return ends;
  }

  /// A part without sentences goes on in the sequence of the part before.
  void write_held() {
    IndexedWriter& writer = writers_.front();
    for (const EncodedPiece& part : long_.held) {
      const EncodedPiece::Column& column = part.columns.front();
      const int32_t* at = column.ids.data();
      for (int64_t length : column.lengths) {
        if (long_.sequences == 0 || options_.split_sentences) {
          if (long_.sequences > 0) writer.add_sequence(std::span<const int32_t>());
          ++long_.sequences;
        }
        writer.add_part({at, static_cast<size_t>(length)});
        long_.begun = true;
        at += length;
      }
      long_.tokens += std::ssize(column.ids);
    }
    long_.held.clear();
    long_.held_ids = 0;
  }

  void end_long(const std::optional<TextHash>& hash) {
    IndexedWriter& writer = writers_.front();
    const bool duplicate = !long_.bad && hash && !seen_.insert(*hash).second;
    if (hash && !long_.bad && !duplicate) new_hashes_.push_back(*hash);
    state_.duplicates += duplicate;
    if (long_.bad || duplicate) {
      if (long_.begun) writer.drop_document();
    } else {
      write_held();
      if (long_.sequences == 0) {
        ++state_.empty;
      } else {
        if (end_) {
          writer.add_part({&*end_, 1});
          ++long_.tokens;
        }
        writer.add_sequence(std::span<const int32_t>());
        writer.end_document();
        ++state_.documents;
        state_.tokens += long_.tokens;
        state_.text_bytes += long_.bytes;
      }
    }
    long_ = {};
  }

  void write(const EncodedPiece::Column& column, const std::vector<bool>& left_out,
             IndexedWriter& writer) {
    const int32_t* at = column.ids.data();
    const int64_t* length = column.lengths.data();
    for (size_t d = 0; d < left_out.size(); ++d) {
      for (int64_t s = 0; s < column.sequences[d]; ++s, at += *length++) {
        if (left_out[d]) continue;
        writer.add_sequence(std::span(at, static_cast<size_t>(*length)));
        state_.tokens += *length;
      }
      if (left_out[d]) continue;
      if (column.sequences[d] == 0) {
        ++state_.empty;
        continue;
      }
      writer.end_document();
      ++state_.documents;
    }
  }

  void note_errors(const EncodedPiece& result) {
    for (const EncodedPiece::Error& error : result.errors) {
      std::string place = error.line == 0
                              ? result.path
                              : fmt::format("{}:{}", result.path, state_.line + error.line);
      std::string message = fmt::format("{}: {}", place, error.message);
      if (!options_.skip_errors) {
        throw base::FormatError(message +
                                "; mend it, or leave such documents out with --on-error skip");
      }
      ++state_.skipped;
      if (state_.errors.size() < kErrorsKept) state_.errors.push_back(std::move(message));
    }
  }

  PreprocessParts& parts_;
  base::DType dtype_;
  std::optional<int32_t> end_;  // of documents
  const PreprocessOptions& options_;
  PreprocessState state_;
  std::deque<IndexedWriter> writers_;  // one a key
  std::unordered_set<TextHash, HashOfHash> seen_;
  std::vector<TextHash> new_hashes_;  // of the part
  LongDocument long_;
};

/// The hash of a document that comes in parts: what DocumentEncoder gives a whole one.
class PartHasher {
 public:
  /// With the last part the hash of all.
  std::optional<TextHash> add(const Piece& piece) {
    if (piece.begins) {
      for (uint64_t half : {0, 1}) halves_[half] = std::make_unique<base::Hasher>(half + 1);
    }
    TextHash hash{};
    for (uint64_t half : {0, 1}) {
      halves_[half]->add(piece.text.data(), piece.text.size());
      if (piece.ends) hash[half] = base::hash_combine(0, halves_[half]->hash());
    }
    return piece.ends ? std::optional(hash) : std::nullopt;
  }

 private:
  std::array<std::unique_ptr<base::Hasher>, 2> halves_;
};

/// All that decides the bytes of the parts.
base::Json describe_job(const text::Tokenizer& tokenizer, const PreprocessOptions& options,
                        std::optional<int32_t> end, const std::vector<std::string>& files) {
  uint64_t vocabulary = 0;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    vocabulary = base::hash_combine(vocabulary, base::hash_text(tokenizer.token(id)));
  }
  uint64_t inputs = 0;
  for (const std::string& file : files) {
    inputs = base::hash_combine(inputs, base::hash_text(file));
    if (file == "-") {  // gone when it was read, so no other run can go on in it
      inputs = base::hash_combine(
          inputs,
          static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count()));
      continue;
    }
    inputs = base::hash_combine(inputs, fs::file_size(file));
    inputs = base::hash_combine(
        inputs, static_cast<uint64_t>(fs::last_write_time(file).time_since_epoch().count()));
  }
  return {{"version", 2},
          {"files", files.size()},
          {"inputs", inputs},
          {"vocabulary", vocabulary},
          {"format", static_cast<int>(options.format)},
          {"keys", options.keys},
          {"split_sentences", options.split_sentences},
          {"dedupe", options.dedupe},
          {"end_of_document", end.value_or(-1)},
          {"part_bytes", options.part_bytes}};
}

std::optional<int32_t> end_of_document(const text::Tokenizer& tokenizer, bool wanted) {
  if (!wanted) return std::nullopt;
  if (auto end = tokenizer.end_of_document()) return end;
  throw ConfigError(
      "--append-eod: the tokenizer has no token that ends a document; leave the flag out or add "
      "\"<|endoftext|>\" "
      "to the tokenizer");
}

/// Appends documents [begin, end) of key `key` of all parts together.
void append_documents(IndexedWriter& writer, const PreprocessParts& parts, int64_t key,
                      int64_t begin, int64_t end, int threads) {
  int64_t first = 0;
  for (int64_t i = 0; i < parts.count(); ++i) {
    IndexedDataset part(parts.prefix_of(i, key));
    int64_t from = std::clamp(begin - first, int64_t{0}, part.documents());
    int64_t to = std::clamp(end - first, int64_t{0}, part.documents());
    writer.append(part, from, to, threads);
    first += part.documents();
  }
}

int64_t count_documents(const PreprocessParts& parts, int64_t key) {
  int64_t documents = 0;
  for (int64_t i = 0; i < parts.count(); ++i)
    documents += IndexedDataset(parts.prefix_of(i, key)).documents();
  return documents;
}

/// The prefixes of the datasets to write: for each key, one for each part of the split.
std::vector<std::vector<std::string>> output_prefixes(const PreprocessOptions& options) {
  constexpr const char* kNames[] = {"train", "valid", "test"};
  std::vector<std::vector<std::string>> all;
  for (const std::string& key : options.keys) {
    const std::string prefix =
        options.keys.size() == 1 ? options.output : fmt::format("{}_{}", options.output, key);
    auto& prefixes = all.emplace_back();
    for (size_t i = 0; i < options.split.size(); ++i)
      prefixes.push_back(fmt::format("{}_{}", prefix, kNames[i]));
    if (options.split.empty()) prefixes.push_back(prefix);
  }
  return all;
}

/// An output and which of its key's documents it takes.
struct Output {
  std::string prefix;
  int64_t key, begin, end;
};

std::vector<Output> plan_outputs(const PreprocessOptions& options, const PreprocessParts& parts) {
  std::vector<Output> outputs;
  const auto prefixes = output_prefixes(options);
  for (int64_t key = 0; key < std::ssize(prefixes); ++key) {
    const int64_t documents = count_documents(parts, key);
    const auto bounds = options.split.empty() ? std::vector<int64_t>{0, documents}
                                              : split_bounds(options.split, documents);
    for (size_t i = 0; i + 1 < bounds.size(); ++i) {
      if (bounds[i] == bounds[i + 1]) {
        throw ConfigError(
            options.split.empty()
                ? fmt::format("no document has a token under the key \"{}\"", options.keys[key])
                : fmt::format("--split {}: {} gets no document of {}; give more documents or a "
                              "larger share",
                              fmt::join(options.split, ","), prefixes[key][i], documents));
      }
      outputs.push_back({prefixes[key][i], key, bounds[i], bounds[i + 1]});
    }
  }
  return outputs;
}

void check(const PreprocessOptions& options) {
  constexpr int kMostWorkers = 1024;
  if (options.workers < 0 || options.workers > kMostWorkers)
    throw ConfigError(fmt::format("--workers {}: expected 1 to {}, or 0 for one a core",
                                  options.workers, kMostWorkers));
  if (options.keys.empty()) throw ConfigError("--key: expected a key of the JSON lines at least");
  for (size_t i = 0; i < options.keys.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (options.keys[i] == options.keys[j])
        throw ConfigError(fmt::format("--key: \"{}\" stands twice", options.keys[i]));
  if (options.keys.size() > 1 && options.format == InputFormat::text)
    throw ConfigError("--key: plain text has no keys; give one, or JSON lines");
}

}  // namespace

PreprocessSummary preprocess(const text::Tokenizer& tokenizer, const PreprocessOptions& options) {
  check(options);
  const auto files = expand_inputs(options.inputs);
  const auto end = end_of_document(tokenizer, options.append_eod);
  const base::DType dtype = token_dtype(tokenizer.vocab_size());
  PreprocessProgress progress;
  for (const std::string& file : files)
    progress.total_bytes += is_stream(file) ? 0 : input_bytes(file);

  const int count = options.workers > 0 ? options.workers : base::available_cores();
  PreprocessParts parts(options.output, std::ssize(options.keys),
                        describe_job(tokenizer, options, end, files), options.skip_errors);
  const int64_t resumed = parts.state().input_bytes;
  // Finished parts are of this very command, whose end may have been reached before it was killed.
  if (!options.overwrite && parts.count() == 0) {
    for (const auto& prefixes : output_prefixes(options))
      for (const std::string& prefix : prefixes)
        refuse_existing(prefix, "give --overwrite to replace the dataset, or another --out");
  }
  {
    PartWriter writer(parts, dtype, end, options);
    DocumentEncoder encoder(tokenizer, {.keys = options.keys,
                                        .end = end,
                                        .split_sentences = options.split_sentences,
                                        .hash = options.dedupe});
    Workers workers(encoder, count);
    PieceCutter cutter(
        files, options.format,
        [&encoder](std::string_view text) { return encoder.last_cut(text); },
        parts.state().position);
    PartHasher hasher;
    struct Pending {
      std::future<EncodedPiece> result;
      InputPosition after;
      std::optional<TextHash> hash;
    };
    std::deque<Pending> pending;
    auto write_oldest = [&] {
      writer.write(pending.front().result.get(), pending.front().after, pending.front().hash);
      pending.pop_front();
      const PreprocessState& s = writer.state();
      progress = {s.input_bytes, progress.total_bytes, s.documents, s.tokens};
      if (options.progress) options.progress(progress);
    };
    while (auto piece = cutter.next()) {
      if (options.keys.size() > 1 && !piece->json_lines)
        throw ConfigError(fmt::format("--key: {} is plain text, which has no keys", piece->path));
      std::optional<TextHash> hash;
      if (options.dedupe && piece->partial()) hash = hasher.add(*piece);
      pending.push_back({workers.submit(std::move(*piece)), cutter.position(), hash});
      if (std::ssize(pending) >= 4 * count) write_oldest();
    }
    while (!pending.empty()) write_oldest();
    writer.finish();
  }

  const PreprocessState done = parts.state();
  if (done.documents == 0) {
    parts.clear();
    throw ConfigError(fmt::format(
        "the input holds no document with a token ({} files, {} empty documents, {} skipped)",
        files.size(), done.empty, done.skipped));
  }
  PreprocessSummary summary{.outputs = {},
                            .documents = done.documents,
                            .tokens = done.tokens,
                            .text_bytes = done.text_bytes,
                            .empty = done.empty,
                            .skipped = done.skipped,
                            .duplicates = done.duplicates,
                            .errors = done.errors,
                            .resumed_bytes = resumed};
  std::vector<Output> outputs;
  try {
    outputs = plan_outputs(options, parts);
  } catch (const ConfigError&) {
    parts.clear();  // so few documents are soon read again
    throw;
  }
  std::deque<IndexedWriter> writers;  // all are written before the first shows
  for (const Output& output : outputs) {
    writers.emplace_back(output.prefix, dtype, options.index_format);
    append_documents(writers.back(), parts, output.key, output.begin, output.end, count);
    summary.outputs.push_back({output.prefix, writers.back().documents(), writers.back().tokens()});
  }
  for (IndexedWriter& writer : writers) writer.finish();
  parts.clear();
  return summary;
}

}  // namespace trireme::data
