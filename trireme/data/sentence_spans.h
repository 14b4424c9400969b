#pragma once
// Sentence spans: which sentences of a document make up one sample of BERT-like pretraining, as
// Megatron-LM's `build_mapping` cuts documents (one pass, before its shuffle), bit for bit.

#include <cstdint>
#include <vector>

#include "trireme/data/indexed.h"

namespace trireme::data {

struct SentenceSpan {
  int64_t begin, end;  // sequences
  int64_t target;      // tokens that the sample should have
  int64_t document;
};

/// Documents with fewer than `min_sentences`, or with several of which one is longer than 512
/// tokens, are left out. A share of `short_seq_prob` of the spans aim at a random length below
/// `max_tokens`.
std::vector<SentenceSpan> sentence_spans(const IndexedDataset& sentences, int64_t max_tokens,
                                         double short_seq_prob, int64_t min_sentences,
                                         uint32_t seed);

}  // namespace trireme::data
