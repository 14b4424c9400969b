#include "trireme/data/loader.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <optional>
#include <thread>

#include "trireme/base/error.h"
#include "trireme/base/threads.h"

namespace trireme::data {
namespace {

/// The value of a field that counts for nothing; nothing where the field is no label.
std::optional<int64_t> ignored_value(const std::string& field, base::DType dtype) {
  if (dtype != base::DType::i64) return std::nullopt;
  for (const char* name : {"labels", "next_sentence_label", "sentence_order_label"})
    if (field == name) return kIgnoreLabel;
  for (const char* name : {"start_positions", "end_positions"})  // a place outside of any row
    if (field == name) return std::numeric_limits<int32_t>::max();
  return std::nullopt;
}

bool can_pad(const Dataset& dataset) {
  return std::ranges::any_of(dataset.fields(), [](const FieldSpec& field) {
    return ignored_value(field.name, field.dtype).has_value();
  });
}

LoaderOptions checked(const Dataset& dataset, const LoaderOptions& o) {
  auto require = [](bool good, const char* name, int64_t given, const char* expected) {
    if (!good)
      throw base::ConfigError(
          fmt::format("data loader: {} is {}; expected {}", name, given, expected));
  };
  require(o.micro_batch_size >= 1, "micro_batch_size", o.micro_batch_size, "1 or more");
  require(o.micro_batches >= 1, "micro_batches", o.micro_batches, "1 or more");
  require(o.dp_size >= 1, "dp_size", o.dp_size, "1 or more");
  require(o.dp_rank >= 0 && o.dp_rank < o.dp_size, "dp_rank", o.dp_rank, "0 to dp_size - 1");
  require(o.first_sample >= 0, "first_sample", o.first_sample, "0 or more");
  require(o.end_sample >= -1, "end_sample", o.end_sample, "0 or more, or -1 for no end");
  require(o.last != LastBatch::pad || o.end_sample != 0, "end_sample", o.end_sample,
          "1 or more, to pad the last step with samples");
  if (o.last == LastBatch::pad && !can_pad(dataset)) {
    throw base::ConfigError(fmt::format(
        "data.last_batch: pad fills a step up with samples whose labels count for nothing; {} has no "
        "integer labels: take shorter or drop",
        dataset.description()));
  }
  require(o.workers >= 1, "workers", o.workers, "1 or more");
  require(o.prefetch >= 1, "prefetch", o.prefetch, "1 or more");
  return o;
}

}  // namespace

LastBatch last_batch_of(const std::string& name) {
  if (name == "shorter") return LastBatch::shorter;
  if (name == "drop") return LastBatch::drop;
  if (name == "pad") return LastBatch::pad;
  throw base::ConfigError(
      fmt::format("'{}' is no way to end; expected shorter, drop or pad", name));
}

struct Loader::Impl {
  Impl(std::shared_ptr<const Dataset> d, const LoaderOptions& o)
      : dataset(std::move(d)),
        options(checked(*dataset, o)),
        queue(static_cast<size_t>(o.prefetch)),
        thread([this] { run(); }) {}
  ~Impl() {
    queue.close();
    thread.join();
  }

  void run() {
    try {
      for (int64_t first = options.first_sample;;) {
        const int64_t size = step_size(first);
        if (!queue.push(read_step(first, size))) return;
        first += size;
      }
    } catch (...) {
      failure = std::current_exception();
      queue.close();
    }
  }

  int64_t step_size(int64_t first) const {
    const int64_t whole = options.micro_batch_size * options.micro_batches * options.dp_size;
    const int64_t size = options.batch_size ? options.batch_size(first) : whole;
    base::check(size >= 1 && size <= whole, "a step of {} samples, where 1 to {} fit", size, whole);
    return size;
  }

  std::vector<Batch> read_step(int64_t first, int64_t size) const {
    int64_t rows = options.end_sample < 0 ? size : std::min(size, options.end_sample - first);
    if (rows < size && options.last == LastBatch::drop) rows = 0;
    if (rows > 0 && options.last == LastBatch::pad) rows = size;
    std::vector<Batch> batches;
    for (int64_t m = 0; m < options.micro_batches; ++m)
      batches.push_back(read_batch(first, rows, m));
    return batches;
  }

  Batch read_batch(int64_t first, int64_t step_rows, int64_t micro_batch) const {
    const int64_t begin =
        (micro_batch * options.dp_size + options.dp_rank) * options.micro_batch_size;
    const int64_t given = std::clamp(step_rows - begin, int64_t{0}, options.micro_batch_size);
    const bool stands_in = options.stand_in && given == 0 && step_rows > 0;
    const int64_t rows = stands_in ? 1 : given;
    std::vector<int64_t> indices, places;
    for (int64_t i = 0; i < rows; ++i) {
      places.push_back(begin + i);
      indices.push_back(stands_in ? first : first + begin + i);
    }
    const int64_t real = stands_in                ? 0
                         : options.end_sample < 0 ? rows
                             : std::clamp(options.end_sample - first - begin, int64_t{0}, rows);
    for (int64_t i = real; i < rows; ++i) indices[i] %= std::max(options.end_sample, int64_t{1});
    Batch batch = data::read_batch(*dataset, indices, std::move(places), options.workers, options.skip);
    for (Field& field : batch.fields) {
      const auto ignored = ignored_value(field.name, field.dtype);
      if (!ignored || !field.read || real == rows) continue;
      const auto width = std::ssize(field.values) / rows;
      std::fill(field.values.begin() + real * width, field.values.end(), *ignored);
    }
    return batch;
  }

  std::shared_ptr<const Dataset> dataset;
  LoaderOptions options;
  base::BoundedQueue<std::vector<Batch>> queue;
  std::exception_ptr failure;  // written before the queue is closed, read after
  std::thread thread;
};

Loader::Loader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options)
    : impl_(std::make_unique<Impl>(std::move(dataset), options)) {}
Loader::~Loader() = default;

std::vector<Batch> Loader::next() {
  if (auto step = impl_->queue.pop()) return *std::move(step);
  std::rethrow_exception(impl_->failure);
}

}  // namespace trireme::data
