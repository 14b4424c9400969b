#include "trireme/data/loader.h"

#include <algorithm>
#include <exception>
#include <thread>

#include "trireme/base/error.h"
#include "trireme/base/threads.h"

namespace trireme::data {
namespace {

LoaderOptions checked(const LoaderOptions& o) {
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
  require(o.prefetch >= 1, "prefetch", o.prefetch, "1 or more");
  return o;
}

}  // namespace

struct Loader::Impl {
  Impl(std::shared_ptr<const Dataset> d, const LoaderOptions& o)
      : dataset(std::move(d)),
        fields(dataset->fields()),
        options(checked(o)),
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
    const int64_t rows = options.end_sample < 0 ? size : std::min(size, options.end_sample - first);
    std::vector<Batch> batches;
    for (int64_t m = 0; m < options.micro_batches; ++m) batches.push_back(read_batch(first, rows, m));
    return batches;
  }

  Batch read_batch(int64_t first, int64_t step_rows, int64_t micro_batch) const {
    const int64_t begin =
        (micro_batch * options.dp_size + options.dp_rank) * options.micro_batch_size;
    const int64_t rows = std::clamp(step_rows - begin, int64_t{0}, options.micro_batch_size);
    Batch batch;
    for (const FieldSpec& spec : fields) {
      Field& field = batch.fields.emplace_back(
          Field{.name = spec.name, .shape = {rows}, .dtype = spec.dtype});
      field.shape.insert(field.shape.end(), spec.shape.begin(), spec.shape.end());
      const auto numbers = static_cast<size_t>(rows * spec.size());
      spec.dtype == base::DType::f32 ? field.reals.resize(numbers) : field.values.resize(numbers);
    }
    std::vector<Slot> row(fields.size());
    for (int64_t i = 0; i < rows; ++i) {
      for (size_t f = 0; f < fields.size(); ++f) {
        const int64_t at = i * fields[f].size();
        Field& field = batch.fields[f];
        row[f] = field.dtype == base::DType::f32 ? Slot{.reals = field.reals.data() + at}
                                                 : Slot{.ids = field.values.data() + at};
      }
      dataset->read(first + begin + i, row);
      batch.samples.push_back(begin + i);
    }
    return batch;
  }

  std::shared_ptr<const Dataset> dataset;
  std::vector<FieldSpec> fields;
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
