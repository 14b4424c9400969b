// The data side of bench_data.py: prints the seconds that a piece of work took.
//
//   data_bench load PREFIX SEQ_LENGTH ROWS STEPS WORKERS random|as-they-lie   micro-batches of the loader; also
//                                                  prints, of those that are not shuffled, a checksum of all ids
//   data_bench index PREFIX DOCUMENTS              writes a dataset of so many short documents
//   data_bench order DOCUMENTS TOKENS SEQ_LENGTH   Megatron-LM's order of an epoch

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "trireme/data/causal.h"
#include "trireme/data/loader.h"

namespace {

using namespace trireme;

int64_t number(const char* word) {
  return std::strtoll(word, nullptr, 10);
}

/// Touches every id, as a training step would; in their order where the checksum is asked for.
uint64_t load(const std::string& prefix, int64_t seq_length, int64_t rows, int64_t steps, int64_t workers,
              bool shuffle) {
  auto dataset = std::make_shared<data::CausalDataset>(
      std::make_shared<data::IndexedDataset>(prefix),
      data::SampleOptions{.seq_length = seq_length, .seed = 1, .shuffle = shuffle});
  data::Loader loader(dataset, {.micro_batch_size = rows, .workers = static_cast<int>(workers)});
  uint64_t sum = 0, checksum = 0;
  for (int64_t step = 0; step < steps; ++step) {
    const data::Batch batch = std::move(loader.next()[0]);
    for (const data::Field& field : batch.fields) {
      sum = std::accumulate(field.values.begin(), field.values.end(), sum);
      if (shuffle) continue;
      for (int64_t id : field.values) checksum = checksum * 31 + static_cast<uint64_t>(id);
    }
  }
  return shuffle ? sum : checksum;
}

int64_t write_index(const std::string& prefix, int64_t documents) {
  data::IndexedWriter writer(prefix, base::DType::u16);
  const std::vector<int64_t> ids{1, 2, 3};
  for (int64_t d = 0; d < documents; ++d) {
    writer.add_sequence(std::span<const int64_t>(ids));
    writer.end_document();
  }
  writer.finish();
  return data::IndexedDataset(prefix).documents();
}

int64_t order(int64_t documents, int64_t tokens, int64_t seq_length) {
  const std::vector<int32_t> lengths(documents, static_cast<int32_t>(tokens));
  std::vector<int64_t> all(documents);
  std::iota(all.begin(), all.end(), int64_t{0});
  return data::megatron_order(lengths, all, {.seq_length = seq_length, .seed = 1}).samples();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  const auto begin = std::chrono::steady_clock::now();
  uint64_t result = 0;
  if (what == "load" && argc == 8) {
    result = load(argv[2], number(argv[3]), number(argv[4]), number(argv[5]), number(argv[6]),
                  std::string(argv[7]) == "random");
  } else if (what == "index" && argc == 4) {
    result = static_cast<uint64_t>(write_index(argv[2], number(argv[3])));
  } else if (what == "order" && argc == 5) {
    result = static_cast<uint64_t>(order(number(argv[2]), number(argv[3]), number(argv[4])));
  } else {
    fmt::print(stderr, "usage: data_bench load|index|order ...\n");
    return 2;
  }
  fmt::print("{} {}\n",
             std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(),
             result);
}
