#pragma once
// The order of samples of Megatron-LM's GPTDataset (LiBai's and OSLO's too), bit for bit: documents
// repeated for all epochs and shuffled as one list, cut into samples that overlap by a token, and
// the samples shuffled. All depends on (lengths, seq_length, samples, seed).
//
// Unlike trireme's own order it depends on the number of samples of the whole run, and the tables
// take about 24 bytes a sample.

#include <cstdint>
#include <span>
#include <vector>

#include "trireme/data/indexed.h"

namespace trireme::data {

struct MegatronOrder {
  /// A place in the concatenation of `documents`.
  struct Place {
    int64_t document;  // index into `documents`
    int64_t token;     // within it
    bool operator==(const Place&) const = default;
  };
  std::vector<int64_t> documents;  // doc_idx
  std::vector<Place>
      places;  // sample_idx: sample k runs from places[k] to places[k + 1], inclusive
  std::vector<int64_t> order;  // shuffle_idx: sample i of the dataset is cut `order[i]`

  int64_t samples() const { return static_cast<int64_t>(order.size()); }
};

struct MegatronOrderOptions {
  int64_t seq_length = 0;
  int64_t samples = 0;  // that the run asks for; 0: one epoch
  uint32_t seed = 0;
};

/// Tokens of each sequence, which Megatron-LM counts as documents. ConfigError where one has more
/// than 2^31 - 1, as no file of Megatron-LM's own has.
std::vector<int32_t> megatron_lengths(const IndexedDataset& dataset);

/// `lengths`: tokens of each document of the dataset; `documents`: those that take part, in their
/// order. The last epoch is shuffled apart when less than 80 % of it are needed. The epoch's
/// tokens + 1 must hold a sample. ConfigError above 2^31 - 1 samples, or documents of all epochs.
MegatronOrder megatron_order(std::span<const int32_t> lengths, std::span<const int64_t> documents,
                             const MegatronOrderOptions& options);

}  // namespace trireme::data
