#include "trireme/data/preprocess.h"

#include <simdjson.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <filesystem>
#include <future>
#include <numeric>
#include <optional>
#include <thread>
#include <variant>

#include "trireme/base/error.h"
#include "trireme/base/hash.h"
#include "trireme/base/threads.h"
#include "trireme/data/indexed.h"
#include "trireme/data/preprocess_parts.h"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;
using base::ConfigError;

constexpr size_t kErrorsKept = 10;

/// What a worker makes of a piece.
struct Encoded {
  struct Error {
    int64_t line;  // within the piece, from 1; 0: the whole file
    std::string message;
  };
  std::string path;
  int64_t input_bytes = 0, lines = 0, text_bytes = 0, empty = 0;
  std::vector<int32_t> ids;
  std::vector<int64_t> lengths;  // of the documents
  std::vector<Error> errors;
};

/// The text of a JSON line, or what is wrong with the line.
std::variant<std::string_view, Encoded::Error> text_of(simdjson::dom::parser& parser,
                                                       std::string_view line,
                                                       const std::string& key) {
  simdjson::dom::element value;
  if (auto error = parser.parse(line.data(), line.size()).get(value)) {
    return Encoded::Error{0, fmt::format("not valid JSON ({}); expected one object a line",
                                         simdjson::error_message(error))};
  }
  simdjson::dom::object object;
  if (value.get(object))
    return Encoded::Error{0, "not an object; expected an object with the key \"" + key + "\""};
  if (object.at_key(key).get(value)) {
    std::vector<std::string_view> keys;
    for (auto field : object) keys.push_back(field.key);
    return Encoded::Error{0, fmt::format("no key \"{}\"; the object has: {} (choose with --key)",
                                         key, fmt::join(keys, ", "))};
  }
  std::string_view text;
  if (value.get(text)) return Encoded::Error{0, fmt::format("key \"{}\" holds no string", key)};
  return text;
}

class PieceEncoder {
 public:
  PieceEncoder(const text::Tokenizer& tokenizer, const std::string& key, std::optional<int32_t> end)
      : tokenizer_(tokenizer), key_(key), end_(end) {}

  Encoded operator()(const Piece& piece) const {
    Encoded result;
    result.path = piece.file->path();
    result.input_bytes = piece.end - piece.begin;
    if (piece.json_lines) {
      encode_lines(piece.text(), result);
    } else if (piece.text().find('\0') != std::string_view::npos) {
      result.errors.push_back({0, "holds zero bytes, so it is no text"});
    } else {
      encode_document(piece.text(), 0, result);
    }
    return result;
  }

 private:
  /// `line`: of the piece; 0: a whole file.
  void encode_document(std::string_view text, int64_t line, Encoded& result) const {
    std::vector<int32_t> ids;
    try {
      ids = tokenizer_.encode(text);
    } catch (const ConfigError& e) {
      result.errors.push_back({line, e.what()});
      return;
    }
    if (ids.empty()) {
      ++result.empty;
      return;
    }
    if (end_) ids.push_back(*end_);
    result.ids.insert(result.ids.end(), ids.begin(), ids.end());
    result.lengths.push_back(std::ssize(ids));
    result.text_bytes += std::ssize(text);
  }

  void encode_lines(std::string_view rest, Encoded& result) const {
    simdjson::dom::parser parser;
    while (!rest.empty()) {
      size_t end = std::min(rest.find('\n'), rest.size());
      std::string_view line = rest.substr(0, end);
      rest.remove_prefix(std::min(end + 1, rest.size()));
      ++result.lines;
      if (line.find_first_not_of(" \t\r") == line.npos) continue;  // a blank line holds no document
      auto text = text_of(parser, line, key_);
      if (auto* error = std::get_if<Encoded::Error>(&text)) {
        result.errors.push_back({result.lines, std::move(error->message)});
      } else {
        encode_document(std::get<std::string_view>(text), result.lines, result);
      }
    }
  }

  const text::Tokenizer& tokenizer_;
  const std::string& key_;
  std::optional<int32_t> end_;
};

/// Threads that encode pieces; each piece's result comes through its own future.
class Workers {
 public:
  Workers(const PieceEncoder& encoder, int count) : tasks_(static_cast<size_t>(4 * count)) {
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
  std::future<Encoded> submit(Piece piece) {
    Task task([piece = std::move(piece)](const PieceEncoder& encode) { return encode(piece); });
    auto result = task.get_future();
    tasks_.push(std::move(task));
    return result;
  }

 private:
  using Task = std::packaged_task<Encoded(const PieceEncoder&)>;
  base::BoundedQueue<Task> tasks_;
  std::vector<std::thread> threads_;
};

/// Writes results in order, part by part.
class PartWriter {
 public:
  PartWriter(PreprocessParts& parts, base::DType dtype, const PreprocessOptions& options)
      : parts_(parts), dtype_(dtype), options_(options), state_(parts.state()) {}

  const PreprocessState& state() const { return state_; }

  /// `after`: the input's position after this result.
  void write(const Encoded& result, InputPosition after) {
    note_errors(result);
    if (!writer_) writer_.emplace(parts_.prefix_of(parts_.count()), dtype_);
    const int32_t* at = result.ids.data();
    for (int64_t length : result.lengths) {
      writer_->add_sequence(std::span(at, static_cast<size_t>(length)));
      writer_->end_document();
      at += length;
    }
    state_.line = after.byte == 0 ? 0 : state_.line + result.lines;
    state_.position = after;
    state_.input_bytes += result.input_bytes;
    state_.documents += std::ssize(result.lengths);
    state_.tokens += std::ssize(result.ids);
    state_.text_bytes += result.text_bytes;
    state_.empty += result.empty;
    if (state_.input_bytes - parts_.state().input_bytes >= options_.part_bytes) finish();
  }

  void finish() {
    if (!writer_) return;
    writer_->finish();
    writer_.reset();
    parts_.add(state_);
  }

 private:
  void note_errors(const Encoded& result) {
    for (const Encoded::Error& error : result.errors) {
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
  const PreprocessOptions& options_;
  PreprocessState state_;
  std::optional<IndexedWriter> writer_;
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
    inputs = base::hash_combine(inputs, fs::file_size(file));
    inputs = base::hash_combine(
        inputs, static_cast<uint64_t>(fs::last_write_time(file).time_since_epoch().count()));
  }
  return {{"version", 1},
          {"files", files.size()},
          {"inputs", inputs},
          {"vocabulary", vocabulary},
          {"format", static_cast<int>(options.format)},
          {"key", options.key},
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

/// Appends documents [begin, end) of all parts together.
void append_documents(IndexedWriter& writer, const PreprocessParts& parts, int64_t begin,
                      int64_t end) {
  int64_t first = 0;
  for (int64_t i = 0; i < parts.count(); ++i) {
    IndexedDataset part(parts.prefix_of(i));
    int64_t from = std::clamp(begin - first, int64_t{0}, part.documents());
    int64_t to = std::clamp(end - first, int64_t{0}, part.documents());
    writer.append(part, from, to);
    first += part.documents();
  }
}

/// The prefixes of the datasets to write.
std::vector<std::string> output_prefixes(const PreprocessOptions& options) {
  if (options.split.empty()) return {options.output};
  constexpr const char* kNames[] = {"train", "valid", "test"};
  std::vector<std::string> prefixes;
  for (size_t i = 0; i < options.split.size(); ++i)
    prefixes.push_back(options.output + "_" + kNames[i]);
  return prefixes;
}

/// Name and first document of each output; the last entry only ends the one before.
std::vector<std::pair<std::string, int64_t>> output_bounds(const PreprocessOptions& options,
                                                           int64_t documents) {
  if (options.split.empty()) return {{options.output, 0}, {"", documents}};
  const std::vector<std::string> prefixes = output_prefixes(options);
  const double sum = std::accumulate(options.split.begin(), options.split.end(), 0.0);
  std::vector<std::pair<std::string, int64_t>> bounds;
  double share = 0;
  for (size_t i = 0; i <= options.split.size(); ++i) {
    auto at = static_cast<int64_t>(
        std::nearbyint(share / sum * static_cast<double>(documents)));  // half to even
    if (i > 0 && at == bounds.back().second) {
      throw ConfigError(fmt::format(
          "--split {}: {} gets no document of {}; give more documents or a larger share",
          fmt::join(options.split, ","), bounds.back().first, documents));
    }
    bool last = i == options.split.size();
    bounds.emplace_back(last ? "" : prefixes[i], at);
    if (!last) share += options.split[i];
  }
  return bounds;
}

}  // namespace

std::vector<double> parse_split(const std::string& text) {
  std::vector<double> shares;
  for (size_t at = 0; at <= text.size();) {
    size_t comma = std::min(text.find(',', at), text.size());
    std::string word = text.substr(at, comma - at);
    char* end = nullptr;
    double share = std::strtod(word.c_str(), &end);
    if (word.empty() || *end != '\0' || !(share > 0) || !std::isfinite(share) ||
        shares.size() == 3) {
      throw ConfigError(fmt::format(
          "--split {}: expected one to three positive numbers (train, valid, test), such as 95,5",
          text));
    }
    shares.push_back(share);
    at = comma + 1;
  }
  return shares;
}

PreprocessSummary preprocess(const text::Tokenizer& tokenizer, const PreprocessOptions& options) {
  if (options.workers < 0)
    throw ConfigError(
        fmt::format("--workers {}: expected 1 or more, or 0 for one a core", options.workers));
  const auto files = expand_inputs(options.inputs);
  const auto end = end_of_document(tokenizer, options.append_eod);
  const base::DType dtype = token_dtype(tokenizer.vocab_size());
  PreprocessProgress progress;
  for (const std::string& file : files)
    progress.total_bytes += static_cast<int64_t>(fs::file_size(file));

  PreprocessParts parts(options.output, describe_job(tokenizer, options, end, files),
                        options.skip_errors);
  const int64_t resumed = parts.state().input_bytes;
  // Finished parts are of this very command, whose end may have been reached before it was killed.
  if (!options.overwrite && parts.count() == 0) {
    for (const std::string& prefix : output_prefixes(options))
      refuse_existing(prefix, "give --overwrite to replace the dataset, or another --out");
  }
  {
    PartWriter writer(parts, dtype, options);
    PieceEncoder encoder(tokenizer, options.key, end);
    const int count = options.workers > 0 ? options.workers : base::available_cores();
    Workers workers(encoder, count);
    PieceCutter cutter(files, options.format, parts.state().position);
    std::deque<std::pair<std::future<Encoded>, InputPosition>> pending;
    auto write_oldest = [&] {
      writer.write(pending.front().first.get(), pending.front().second);
      pending.pop_front();
      const PreprocessState& s = writer.state();
      progress = {s.input_bytes, progress.total_bytes, s.documents, s.tokens};
      if (options.progress) options.progress(progress);
    };
    while (auto piece = cutter.next()) {
      pending.emplace_back(workers.submit(std::move(*piece)), cutter.position());
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
  PreprocessSummary summary{{},         done.documents, done.tokens, done.text_bytes,
                            done.empty, done.skipped,   done.errors, resumed};
  std::vector<std::pair<std::string, int64_t>> bounds;
  try {
    bounds = output_bounds(options, done.documents);
  } catch (const ConfigError&) {
    parts.clear();  // so few documents are soon read again
    throw;
  }
  std::deque<IndexedWriter> writers;  // all are written before the first shows
  for (size_t i = 0; i + 1 < bounds.size(); ++i) {
    writers.emplace_back(bounds[i].first, dtype);
    append_documents(writers.back(), parts, bounds[i].second, bounds[i + 1].second);
    summary.outputs.push_back(
        {bounds[i].first, writers.back().documents(), writers.back().tokens()});
  }
  for (IndexedWriter& writer : writers) writer.finish();
  parts.clear();
  return summary;
}

}  // namespace trireme::data
