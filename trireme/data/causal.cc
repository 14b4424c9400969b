#include "trireme/data/causal.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/philox.h"
#include "trireme/data/permutation.h"

namespace trireme::data {
namespace {

constexpr int64_t kStride = 64;             // documents between two entries of Epoch::starts
constexpr int64_t kSmallTokens = 16 << 20;  // datasets up to here are looked through when opened

/// Checks ids read from tokens [begin, begin + count).
void check_ids(const IndexedDataset& tokens, int64_t begin, int64_t count, const int64_t* ids,
               int64_t vocab_size) {
  if (vocab_size == 0) return;
  uint64_t highest = 0;  // a negative id becomes a large one
  for (int64_t i = 0; i < count; ++i) highest = std::max(highest, static_cast<uint64_t>(ids[i]));
  const auto vocab = static_cast<uint64_t>(vocab_size);
  if (highest < vocab) return;
  auto bad = std::find_if(ids, ids + count,
                          [&](int64_t id) { return static_cast<uint64_t>(id) >= vocab; });
  int64_t token = begin + (bad - ids), document = tokens.document_of(token);
  throw base::ConfigError(fmt::format(
      "dataset {}: token {} of document {} (token {} of all) has id {}; the model's "
      "vocabulary has {} entries, so ids end at {}: raise model.vocab_size or preprocess "
      "with the model's tokenizer",
      tokens.prefix(), token - tokens.document_begin(document), document, token, *bad, vocab_size,
      vocab_size - 1));
}

}  // namespace

void check_vocabulary(const IndexedDataset& tokens, int64_t vocab_size) {
  std::vector<int64_t> ids(1 << 16);
  for (int64_t at = 0; at < tokens.tokens(); at += std::ssize(ids)) {
    int64_t count = std::min<int64_t>(std::ssize(ids), tokens.tokens() - at);
    tokens.read(at, count, ids.data());
    check_ids(tokens, at, count, ids.data(), vocab_size);
  }
}

/// One epoch's order of documents and windows. Of the shuffled documents only each kStride-th start
/// is kept.
struct CausalDataset::Epoch {
  int64_t number;
  Permutation documents, windows;
  std::vector<int64_t> starts;
};

CausalDataset::CausalDataset(std::shared_ptr<const IndexedDataset> tokens,
                             const CausalOptions& options)
    : tokens_(std::move(tokens)), options_(options) {
  if (options_.seq_length < 1) {
    throw base::ConfigError(
        fmt::format("data.seq_length is {}; expected 1 or more", options_.seq_length));
  }
  windows_ = (tokens_->tokens() - 1) / options_.seq_length;
  if (windows_ < 1) {
    throw base::ConfigError(fmt::format(
        "dataset {} has {} tokens; seq_length {} needs at least {}: give more text or a "
        "shorter seq_length",
        tokens_->prefix(), tokens_->tokens(), options_.seq_length, options_.seq_length + 1));
  }
  if (tokens_->tokens() <= kSmallTokens) check_vocabulary(*tokens_, options_.vocab_size);
}

CausalDataset::~CausalDataset() = default;

std::string CausalDataset::description() const {
  return fmt::format("{}: {} documents, {} tokens, {} samples of {}", tokens_->prefix(),
                     tokens_->documents(), tokens_->tokens(), windows_, options_.seq_length);
}

Identity CausalDataset::identity() const {
  return {.seq_length = options_.seq_length,
          .sources = {{.path = tokens_->prefix(),
                       .documents = tokens_->documents(),
                       .tokens = tokens_->tokens(),
                       .fingerprint = tokens_->fingerprint()}}};
}

std::shared_ptr<const CausalDataset::Epoch> CausalDataset::epoch(int64_t number) const {
  std::lock_guard lock(mutex_);
  if (current_ && current_->number == number) return current_;
  const int64_t documents = tokens_->documents();
  const auto n = static_cast<uint64_t>(number);
  auto order = std::make_shared<Epoch>(
      Epoch{number,
            Permutation(base::stream_key(options_.seed, "data.documents", n), documents),
            Permutation(base::stream_key(options_.seed, "data.windows", n), windows_),
            {}});
  order->starts.reserve(documents / kStride + 1);
  int64_t at = 0;
  for (int64_t i = 0; i < documents; ++i) {
    if (i % kStride == 0) order->starts.push_back(at);
    int64_t document = order->documents(i);
    at += tokens_->document_begin(document + 1) - tokens_->document_begin(document);
  }
  return current_ = std::move(order);
}

void CausalDataset::copy(const Epoch& order, int64_t begin, int64_t count, int64_t* ids) const {
  auto after = std::upper_bound(order.starts.begin(), order.starts.end(), begin);
  int64_t i = (after - order.starts.begin() - 1) * kStride, start = *(after - 1);
  for (; count > 0; ++i) {
    int64_t document = order.documents(i), first = tokens_->document_begin(document);
    int64_t length = tokens_->document_begin(document + 1) - first;
    if (int64_t skip = begin - start; skip < length) {
      int64_t n = std::min(count, length - skip);
      tokens_->read(first + skip, n, ids);
      check_ids(*tokens_, first + skip, n, ids, options_.vocab_size);
      ids += n, begin += n, count -= n;
    }
    start += length;
  }
}

void CausalDataset::read(int64_t index, int64_t* input_ids, int64_t* labels) const {
  base::check(index >= 0, "sample {} of {}", index, tokens_->prefix());
  const int64_t length = options_.seq_length;
  thread_local std::vector<int64_t> window;
  window.resize(length + 1);
  if (options_.shuffle) {
    auto order = epoch(index / windows_);
    copy(*order, order->windows(index % windows_) * length, length + 1, window.data());
  } else {
    int64_t begin = index % windows_ * length;
    tokens_->read(begin, length + 1, window.data());
    check_ids(*tokens_, begin, length + 1, window.data(), options_.vocab_size);
  }
  std::copy(window.begin(), window.end() - 1, input_ids);
  std::copy(window.begin() + 1, window.end(), labels);
}

base::Registry<OpenDataset>& dataset_types() {
  static base::Registry<OpenDataset> all(
      "data type", {{"tokens", [](const std::string& path, const base::Json&, const CausalOptions& causal) {
                       return std::make_shared<CausalDataset>(std::make_shared<IndexedDataset>(path), causal);
                     }}});
  return all;
}

std::shared_ptr<const Dataset> open_datasets(const std::vector<Source>& sources,
                                             const CausalOptions& options) {
  if (sources.empty()) {
    throw base::ConfigError(
        "no dataset given; expected a list of {path, weight}, for example data.train");
  }
  std::vector<std::shared_ptr<const Dataset>> datasets;
  std::vector<double> weights;
  for (const Source& source : sources) {
    CausalOptions own = options;
    own.seed = base::stream_key(options.seed, "data.source", datasets.size());
    datasets.push_back(dataset_types().get(source.type)(source.path, source.options, own));
    weights.push_back(source.weight);
  }
  auto blend = std::make_shared<BlendDataset>(
      datasets, weights);  // also checks the weight of a single source
  return datasets.size() == 1 ? datasets.front() : blend;
}

}  // namespace trireme::data
