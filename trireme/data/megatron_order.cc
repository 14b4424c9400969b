#include "trireme/data/megatron_order.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/data/legacy_random.h"

namespace trireme::data {
namespace {

/// `documents` repeated and shuffled as one list.
void append_shuffled(std::span<const int64_t> documents, int64_t epochs, NumpyRandom& random,
                     std::vector<int64_t>& all) {
  const size_t first = all.size();
  for (int64_t epoch = 0; epoch < epochs; ++epoch)
    all.insert(all.end(), documents.begin(), documents.end());
  random.shuffle(std::span(all).subspan(first));
}

std::vector<MegatronOrder::Place> cut(std::span<const int32_t> lengths,
                                      std::span<const int64_t> documents, int64_t samples,
                                      int64_t seq_length) {
  std::vector<MegatronOrder::Place> places{{0, 0}};
  places.reserve(samples + 1);
  int64_t document = 0, token = 0;
  for (int64_t sample = 0; sample < samples; ++sample) {
    for (int64_t left = seq_length + 1;;) {
      const int64_t there = lengths[documents[document]] - token;
      if (there >= left) {
        token += left - 1;  // the next sample starts with this one's last token
        break;
      }
      left -= there;
      ++document;
      token = 0;
    }
    places.push_back({document, token});
  }
  return places;
}

/// The tables must fit in memory, and 64-bit products of their sizes in 63 bits.
void check_table(int64_t given, const char* what) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (given <= kMost) return;
  throw base::ConfigError(fmt::format(
      "order megatron keeps tables of all samples and documents; {} {} are more than the {} that it "
      "takes: use order: random, which keeps none",
      given, what, kMost));
}

}  // namespace

std::vector<int32_t> megatron_lengths(const IndexedDataset& dataset) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  std::vector<int32_t> lengths(dataset.sequences());
  for (int64_t s = 0; s < dataset.sequences(); ++s) {
    const int64_t length = dataset.length(s);
    if (length > kMost) {
      throw base::ConfigError(fmt::format(
          "dataset {}: sequence {} has {} tokens; order megatron takes {} at most: use order: random",
          dataset.prefix(), s, length, kMost));
    }
    lengths[s] = static_cast<int32_t>(length);
  }
  return lengths;
}

MegatronOrder megatron_order(std::span<const int32_t> lengths, std::span<const int64_t> documents,
                             const MegatronOrderOptions& options) {
  const int64_t length = options.seq_length;
  int64_t epoch_tokens = 0;
  for (int64_t document : documents) epoch_tokens += lengths[document];
  base::check(length >= 1 && epoch_tokens > length, "{} tokens hold no sample of {}", epoch_tokens,
              length);
  check_table(options.samples, "samples");
  int64_t epochs = 1;
  if (options.samples > 0)
    epochs = std::max<int64_t>(1, (options.samples * length + epoch_tokens) / epoch_tokens);
  const int64_t epoch_samples = (epoch_tokens - 1) / length,
                before_last = ((epochs - 1) * epoch_tokens - 1) / length;
  check_table(std::max((epochs * epoch_tokens - 1) / length, epoch_samples), "samples");
  check_table(epochs * std::ssize(documents), "documents of all epochs");
  const bool separate =
      epochs > 1 && options.samples - before_last <
                        static_cast<int64_t>(0.8 * static_cast<double>(epoch_samples));

  MegatronOrder result;
  NumpyRandom random(options.seed);
  append_shuffled(documents, separate ? epochs - 1 : epochs, random, result.documents);
  if (separate) append_shuffled(documents, 1, random, result.documents);
  const int64_t samples = (epochs * epoch_tokens - 1) / length;
  result.places = cut(lengths, result.documents, samples, length);
  result.order.resize(samples);
  std::iota(result.order.begin(), result.order.end(), int64_t{0});
  const std::span<int64_t> order(result.order);
  if (separate) {
    random.shuffle(order.first(before_last));
    random.shuffle(order.subspan(before_last));
  } else {
    random.shuffle(order);
  }
  return result;
}

}  // namespace trireme::data
