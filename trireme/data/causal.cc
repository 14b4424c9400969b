#include "trireme/data/causal.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "trireme/base/error.h"
#include "trireme/base/philox.h"
#include "trireme/data/options.h"
#include "trireme/data/permutation.h"
#include "trireme/data/split.h"
#include "trireme/text/tokenizer.h"

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

CausalDataset::CausalDataset(std::shared_ptr<const IndexedDataset> tokens, const SampleOptions& run,
                             const CausalOptions& options)
    : tokens_(std::move(tokens)),
      run_(run),
      options_(options),
      end_document_(tokens_->documents()) {
  if (run_.seq_length < 1) {
    throw base::ConfigError(
        fmt::format("data.seq_length is {}; expected 1 or more", run_.seq_length));
  }
  if (options_.order == "sequential") run_.shuffle = false;
  const bool resets =
      options_.reset_position_ids || options_.reset_attention_mask || options_.eod_mask_loss;
  if (resets && !options_.eod) {
    throw base::ConfigError(fmt::format(
        "dataset {}: reset_position_ids, reset_attention_mask and eod_mask_loss need the id that "
        "ends a document: give options.eod, or a tokenizer that has one",
        tokens_->prefix()));
  }
  if (!options_.split.empty()) take_part();
  const int64_t count =
      tokens_->document_begin(end_document_) - tokens_->document_begin(first_document_);
  windows_ = (count - 1) / run_.seq_length;
  if (windows_ < 1) {
    throw base::ConfigError(fmt::format(
        "dataset {} has {} tokens; seq_length {} needs at least {}: give more text or a "
        "shorter seq_length",
        tokens_->prefix(), count, run_.seq_length, run_.seq_length + 1));
  }
  if (tokens_->tokens() <= kSmallTokens) check_vocabulary(*tokens_, run_.vocab_size);
  if (options_.order == "megatron") take_megatron_order();
}

CausalDataset::~CausalDataset() = default;

/// Narrows the documents to those of the part of the split.
void CausalDataset::take_part() {
  constexpr std::array<std::string_view, 3> kParts{"train", "valid", "test"};
  const std::vector<double> shares = parse_split(options_.split);
  const auto part = static_cast<size_t>(std::ranges::find(kParts, options_.part) - kParts.begin());
  const std::vector<int64_t> bounds = split_bounds(shares, tokens_->documents());
  if (part >= shares.size() || bounds[part] == bounds[part + 1]) {
    throw base::ConfigError(
        fmt::format("dataset {}: part {} of the split {} holds none of its {} documents; give it a "
                    "larger share",
                    tokens_->prefix(), options_.part, options_.split, tokens_->documents()));
  }
  first_document_ = bounds[part];
  end_document_ = bounds[part + 1];
}

void CausalDataset::take_megatron_order() {
  const std::vector<int32_t> lengths = megatron_lengths(*tokens_);
  std::vector<int64_t> sequences;
  for (int64_t s = tokens_->first_sequence(first_document_);
       s < tokens_->first_sequence(end_document_); ++s)
    sequences.push_back(s);
  megatron_ = megatron_order(
      lengths, sequences,
      {.seq_length = run_.seq_length,
       .samples = options_.samples,
       .seed = static_cast<uint32_t>(options_.seed.value_or(static_cast<int64_t>(run_.run_seed)))});
  windows_ = megatron_->samples();
}

std::string CausalDataset::description() const {
  const int64_t tokens =
      tokens_->document_begin(end_document_) - tokens_->document_begin(first_document_);
  return fmt::format("{}: {} documents, {} tokens, {} samples of {}", tokens_->prefix(),
                     end_document_ - first_document_, tokens, windows_, run_.seq_length);
}

std::vector<FieldSpec> CausalDataset::fields() const {
  std::vector<FieldSpec> fields = causal_fields(run_.seq_length);
  if (options_.reset_position_ids) fields.push_back({"position_ids", {run_.seq_length}});
  if (options_.reset_attention_mask) fields.push_back({"segment_ids", {run_.seq_length}});
  return fields;
}

std::string CausalDataset::origin(int64_t index) const {
  return fmt::format("sample {} of epoch {} of {}.bin", index % windows_, index / windows_,
                     tokens_->prefix());
}

Identity CausalDataset::identity() const {
  SourceIdentity source{
      .path = tokens_->prefix(),
      .documents = end_document_ - first_document_,
      .tokens = tokens_->document_begin(end_document_) - tokens_->document_begin(first_document_),
      .fingerprint = tokens_->fingerprint()};
  if (megatron_)
    source.samples = fmt::format("order megatron, {} samples, seed {}", options_.samples,
                                 options_.seed.value_or(static_cast<int64_t>(run_.run_seed)));
  if (options_.order == "sequential") source.samples = "order sequential";
  if (!options_.split.empty())
    source.samples += fmt::format("{}{} of {}", source.samples.empty() ? "" : ", ", options_.part,
                                  options_.split);
  if (options_.eod_mask_loss) source.samples += ", no labels after documents";
  return {.seq_length = run_.seq_length, .sources = {std::move(source)}};
}

std::shared_ptr<const CausalDataset::Epoch> CausalDataset::epoch(int64_t number) const {
  std::lock_guard lock(mutex_);
  if (current_ && current_->number == number) return current_;
  const int64_t documents = end_document_ - first_document_;
  const auto n = static_cast<uint64_t>(number);
  auto order = std::make_shared<Epoch>(
      Epoch{number,
            Permutation(base::stream_key(run_.seed, "data.documents", n), documents),
            Permutation(base::stream_key(run_.seed, "data.windows", n), windows_),
            {}});
  order->starts.reserve(documents / kStride + 1);
  int64_t at = 0;
  for (int64_t i = 0; i < documents; ++i) {
    if (i % kStride == 0) order->starts.push_back(at);
    int64_t document = first_document_ + order->documents(i);
    at += tokens_->document_begin(document + 1) - tokens_->document_begin(document);
  }
  return current_ = std::move(order);
}

void CausalDataset::copy_tokens(int64_t begin, int64_t count, int64_t* ids) const {
  tokens_->read(begin, count, ids);
  check_ids(*tokens_, begin, count, ids, run_.vocab_size);
}

void CausalDataset::copy(const Epoch& order, int64_t begin, int64_t count, int64_t* ids) const {
  auto after = std::upper_bound(order.starts.begin(), order.starts.end(), begin);
  int64_t i = (after - order.starts.begin() - 1) * kStride, start = *(after - 1);
  for (; count > 0; ++i) {
    int64_t document = first_document_ + order.documents(i),
            first = tokens_->document_begin(document);
    int64_t length = tokens_->document_begin(document + 1) - first;
    if (int64_t skip = begin - start; skip < length) {
      int64_t n = std::min(count, length - skip);
      copy_tokens(first + skip, n, ids);
      ids += n, begin += n, count -= n;
    }
    start += length;
  }
}

void CausalDataset::copy_megatron(int64_t index, int64_t* ids) const {
  const MegatronOrder& order = *megatron_;
  if (index >= order.samples()) {
    throw base::ConfigError(fmt::format(
        "dataset {}: sample {} lies beyond the {} of order megatron; set the option samples to the "
        "number of samples of the whole run",
        tokens_->prefix(), index, order.samples()));
  }
  const int64_t cut = order.order[index];
  const MegatronOrder::Place from = order.places[cut], to = order.places[cut + 1];
  for (int64_t d = from.document; d <= to.document; ++d) {
    const int64_t sequence = order.documents[d];
    const int64_t begin = d == from.document ? from.token : 0,
                  end = d == to.document ? to.token + 1 : tokens_->length(sequence);
    copy_tokens(tokens_->begin(sequence) + begin, end - begin, ids);
    ids += end - begin;
  }
}

void CausalDataset::read(int64_t index, Row row) const {
  base::check(index >= 0, "sample {} of {}", index, tokens_->prefix());
  const int64_t length = run_.seq_length;
  thread_local std::vector<int64_t> window;
  window.resize(length + 1);
  if (megatron_) {
    copy_megatron(index, window.data());
  } else if (run_.shuffle) {
    auto order = epoch(index / windows_);
    copy(*order, order->windows(index % windows_) * length, length + 1, window.data());
  } else {
    copy_tokens(tokens_->document_begin(first_document_) + index % windows_ * length, length + 1,
                window.data());
  }
  std::copy(window.begin(), window.end() - 1, row[0].ids);
  std::copy(window.begin() + 1, window.end(), row[1].ids);
  int64_t* positions = options_.reset_position_ids ? row[2].ids : nullptr;
  int64_t* segments = options_.reset_attention_mask ? row.back().ids : nullptr;
  int64_t start = 0, segment = 0;
  for (int64_t i = 0; options_.eod && i < length; ++i) {
    if (positions) positions[i] = i - start;
    if (segments) segments[i] = segment;
    if (window[i] != *options_.eod) continue;
    start = i + 1;
    ++segment;
    if (options_.eod_mask_loss) row[1].ids[i] = kIgnoreLabel;
  }
}

std::shared_ptr<const Dataset> open_causal(const std::string& path, const base::Json& options,
                                           const SampleOptions& run) {
  CausalOptions own;
  read_options(options, "options of tokens", own);
  if (own.samples == 0) own.samples = run.run_samples;
  const bool resets = own.reset_position_ids || own.reset_attention_mask || own.eod_mask_loss;
  if (resets && !own.eod && !run.tokenizer.empty())
    own.eod = text::Tokenizer::load(run.tokenizer)->end_of_document();
  return std::make_shared<CausalDataset>(
      std::make_shared<IndexedDataset>(path, access_of(own.access)), run, own);
}

}  // namespace trireme::data
