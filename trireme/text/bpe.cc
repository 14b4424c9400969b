#include "trireme/text/bpe.h"

#include <bit>
#include <functional>
#include <queue>

#include "trireme/base/error.h"

namespace trireme::text {
namespace {

constexpr size_t kShortWord = 48;  // scanning for the lowest rank beats a heap up to about here

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
}

uint64_t scramble(uint64_t key) {
  return key * 0x9E3779B97F4A7C15u;
}

}  // namespace

Bpe::Bpe(const std::array<int32_t, 256>& byte_ids, const std::vector<MergeRule>& merges)
    : byte_ids_(byte_ids) {
  const size_t slots = std::bit_ceil(merges.size() * 2 + 2);
  shift_ = 64 - std::countr_zero(slots);
  table_.resize(slots);
  results_.reserve(merges.size());
  for (const MergeRule& merge : merges) {
    const uint64_t pair = pair_key(merge.left, merge.right);
    size_t slot = scramble(pair) >> shift_;
    while (table_[slot].pair != pair && table_[slot].pair != UINT64_MAX)
      slot = (slot + 1) & (slots - 1);
    table_[slot] = {pair, static_cast<uint32_t>(results_.size()), merge.result};
    results_.push_back(merge.result);
  }
}

const Bpe::Entry& Bpe::find(int32_t left, int32_t right) const {
  const uint64_t pair = pair_key(left, right);
  size_t slot = scramble(pair) >> shift_;
  while (table_[slot].pair != pair && table_[slot].pair != UINT64_MAX) {
    slot = (slot + 1) & (table_.size() - 1);
  }
  return table_[slot];
}

int32_t Bpe::byte_id(char byte) const {
  const int32_t id = byte_ids_[static_cast<uint8_t>(byte)];
  if (id < 0) {
    throw base::ConfigError(
        fmt::format("the text holds byte 0x{:02x}, which this tokenizer's vocabulary lacks; use "
                    "one whose vocabulary "
                    "holds all 256 bytes",
                    static_cast<uint8_t>(byte)));
  }
  return id;
}

void Bpe::encode(std::string_view word, std::vector<int32_t>& ids) const {
  if (word.size() <= kShortWord) {
    encode_short(word, ids);
  } else {
    encode_long(word, ids);
  }
}

void Bpe::encode_short(std::string_view word, std::vector<int32_t>& ids) const {
  if (word.empty()) return;
  int32_t symbols[kShortWord];
  uint32_t ranks[kShortWord];  // of the pair that begins here
  size_t n = word.size();
  for (size_t i = 0; i < n; ++i) symbols[i] = byte_id(word[i]);
  for (size_t i = 0; i + 1 < n; ++i) ranks[i] = find(symbols[i], symbols[i + 1]).rank;
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (ranks[i] < ranks[best]) best = i;
    }
    if (ranks[best] == kNoRank) break;
    symbols[best] = results_[ranks[best]];
    --n;
    for (size_t i = best + 1; i < n; ++i) {
      symbols[i] = symbols[i + 1];
      ranks[i - 1] = ranks[i];
    }
    if (best > 0) ranks[best - 1] = find(symbols[best - 1], symbols[best]).rank;
    if (best + 1 < n) ranks[best] = find(symbols[best], symbols[best + 1]).rank;
  }
  ids.insert(ids.end(), symbols, symbols + n);
}

void Bpe::encode_long(std::string_view word, std::vector<int32_t>& ids) const {
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  for (char byte : word) symbols.push_back({byte_id(byte), 1});
  merge(symbols);
  for (const Symbol& symbol : symbols) ids.push_back(symbol.id);
}

// Symbols in a linked list, candidate pairs in a heap ordered by rank, then position. A heap entry
// whose rank is no longer that of the pair at its position is stale.
void Bpe::merge(std::vector<Symbol>& symbols, const Skip& skip) const {
  struct Link {
    int32_t previous, next;
    uint32_t rank;  // of the pair that begins here
  };
  base::check(symbols.size() < INT32_MAX, "a word of {} symbols", symbols.size());
  const auto n = static_cast<int32_t>(symbols.size());
  if (n < 2) return;
  std::vector<Link> links(symbols.size());
  std::vector<uint64_t> candidates;
  auto entry = [](uint32_t rank, int32_t at) {
    return static_cast<uint64_t>(rank) << 32 | static_cast<uint32_t>(at);
  };
  for (int32_t i = 0; i < n; ++i) {
    const bool last = i + 1 == n;
    const uint32_t rank = last ? kNoRank : find(symbols[i].id, symbols[i + 1].id).rank;
    links[i] = {i - 1, last ? -1 : i + 1, rank};
    if (rank != kNoRank) candidates.push_back(entry(rank, i));
  }
  if (candidates.empty()) return;
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> queue(std::greater<>{},
                                                                             std::move(candidates));
  auto refresh = [&](int32_t i) {
    const int32_t next = links[i].next;
    links[i].rank = next < 0 ? kNoRank : find(symbols[i].id, symbols[next].id).rank;
    if (links[i].rank != kNoRank) queue.push(entry(links[i].rank, i));
  };
  std::vector<uint64_t> skipped;
  while (!queue.empty()) {
    const uint64_t top = queue.top();
    const auto rank = static_cast<uint32_t>(top >> 32);
    const auto i = static_cast<int32_t>(top & UINT32_MAX);
    queue.pop();
    if (skip && skip()) {
      skipped.push_back(top);
      continue;
    }
    for (uint64_t waiting : skipped) queue.push(waiting);
    skipped.clear();
    Link& left = links[i];
    if (left.rank != rank) continue;
    const int32_t taken = left.next;
    Link& right = links[taken];
    symbols[i].id = results_[rank];
    symbols[i].length += symbols[taken].length;
    left.next = right.next;
    right.rank = kNoRank;
    if (right.next >= 0) links[right.next].previous = i;
    refresh(i);
    if (left.previous >= 0) refresh(left.previous);
  }
  size_t kept = 0;
  for (int32_t i = 0; i >= 0; i = links[i].next) symbols[kept++] = symbols[i];
  symbols.resize(kept);
}

}  // namespace trireme::text
