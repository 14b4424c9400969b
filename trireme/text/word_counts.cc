#include "trireme/text/word_counts.h"

#include <algorithm>
#include <memory>
#include <mutex>

#include "trireme/base/hash.h"
#include "trireme/base/io.h"
#include "trireme/base/threads.h"
#include "trireme/text/gpt2_scanner.h"

namespace trireme::text {

WordCounts::WordCounts() : slots_(1 << 12) {}

void WordCounts::add(std::string_view word, int64_t count) {
  const uint64_t hash = base::hash_text(word);
  size_t at = hash & (slots_.size() - 1);
  while (slots_[at].count != 0) {
    Slot& slot = slots_[at];
    if (slot.hash == hash && std::string_view(bytes_).substr(slot.begin, slot.length) == word) {
      slot.count += count;
      return;
    }
    at = (at + 1) & (slots_.size() - 1);
  }
  slots_[at] = {hash, bytes_.size(), word.size(), count};
  bytes_ += word;
  if (static_cast<size_t>(++size_) * 2 > slots_.size()) grow();
}

void WordCounts::grow() {
  std::vector<Slot> old(slots_.size() * 2);
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.count == 0) continue;
    size_t at = slot.hash & (slots_.size() - 1);
    while (slots_[at].count != 0) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = slot;
  }
}

void WordCounts::add_lines(std::string_view text, bool add_prefix_space) {
  std::string with_prefix;
  while (!text.empty()) {
    const size_t length = std::min(text.find('\n'), text.size() - 1) + 1;
    std::string_view line = text.substr(0, length);
    text.remove_prefix(length);
    if (add_prefix_space && line[0] != ' ') {
      with_prefix.assign(1, ' ').append(line);
      line = with_prefix;
    }
    const char *p = line.data(), *end = p + line.size();
    while (p < end) {
      const char* next = gpt2_piece_end(p, end);
      add({p, static_cast<size_t>(next - p)});
      p = next;
    }
  }
}

void WordCounts::add(const WordCounts& other) {
  for (const Slot& slot : other.slots_) {
    if (slot.count != 0) {
      add(std::string_view(other.bytes_).substr(slot.begin, slot.length), slot.count);
    }
  }
}

std::vector<WordCounts::Word> WordCounts::sorted() const {
  std::vector<Word> words;
  words.reserve(size_);
  for (const Slot& slot : slots_) {
    if (slot.count == 0) continue;
    words.push_back({std::string_view(bytes_).substr(slot.begin, slot.length), slot.count});
  }
  std::ranges::sort(words, {}, &Word::bytes);
  return words;
}

WordCounts count_words(const std::vector<std::string>& files,
                       const std::function<void(std::string_view, WordCounts&)>& cut, int threads,
                       const std::function<void(int64_t, int64_t)>& progress) {
  constexpr size_t kBlock = 1 << 20;
  std::vector<base::MappedFile> maps;
  std::vector<std::string_view> blocks;  // whole lines
  int64_t total = 0, done = 0;
  for (const std::string& path : files) {
    auto bytes = maps.emplace_back(path).bytes();
    std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    total += static_cast<int64_t>(text.size());
    while (!text.empty()) {
      const size_t from = std::min(kBlock, text.size() - 1);
      const size_t length = std::min(text.find('\n', from), text.size() - 1) + 1;
      blocks.push_back(text.substr(0, length));
      text.remove_prefix(length);
    }
  }
  std::mutex mutex;
  std::vector<std::unique_ptr<WordCounts>> idle;
  base::parallel_for(static_cast<int64_t>(blocks.size()), threads, [&](int64_t i) {
    std::unique_ptr<WordCounts> counts;
    {
      std::lock_guard lock(mutex);
      if (!idle.empty()) {
        counts = std::move(idle.back());
        idle.pop_back();
      }
    }
    if (!counts) counts = std::make_unique<WordCounts>();
    cut(blocks[i], *counts);
    std::lock_guard lock(mutex);
    idle.push_back(std::move(counts));
    done += static_cast<int64_t>(blocks[i].size());
    if (progress) progress(done, total);
  });
  if (idle.empty()) return {};
  WordCounts all = std::move(*idle[0]);
  for (size_t i = 1; i < idle.size(); ++i) all.add(*idle[i]);
  return all;
}

}  // namespace trireme::text
