#include "trireme/text/word_counts.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>

#include "trireme/base/error.h"
#include "trireme/base/hash.h"
#include "trireme/base/io.h"
#include "trireme/base/threads.h"
#include "trireme/text/gpt2_scanner.h"
#include "trireme/text/pre_tokenizer.h"
#include "trireme/text/unicode.h"

namespace trireme::text {

WordCounts::WordCounts() : slots_(1 << 12) {}

void WordCounts::add(std::string_view word, int64_t count) {
  if (word.size() > UINT32_MAX) {
    throw base::ConfigError(fmt::format(
        "a word of {} bytes without a place to cut it; train on text with spaces or lines",
        word.size()));
  }
  const auto hash = static_cast<uint32_t>(base::hash_text(word));
  size_t at = hash & (slots_.size() - 1);
  while (slots_[at].count != 0) {
    Slot& slot = slots_[at];
    if (slot.hash == hash && std::string_view(bytes_).substr(slot.begin, slot.length) == word) {
      slot.count += count;
      return;
    }
    at = (at + 1) & (slots_.size() - 1);
  }
  slots_[at] = {bytes_.size(), hash, static_cast<uint32_t>(word.size()), count};
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

WordCounts::Forgotten WordCounts::keep_most_frequent(int64_t words) {
  std::vector<Word> ranked = sorted();
  std::ranges::stable_sort(ranked, std::greater(), &Word::count);
  WordCounts kept;
  Forgotten forgotten;
  int64_t length = 0;
  for (const Word& word : ranked) {
    length += static_cast<int64_t>(word.bytes.size());
    if (kept.size() < words && length <= 64 * words) {
      kept.add(word.bytes, word.count);
    } else {
      forgotten += {1, word.count};
    }
  }
  *this = std::move(kept);
  return forgotten;
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

namespace {

constexpr size_t kBlock = 1 << 20;
constexpr int64_t kBlocksPerRound = 16;

// Where a part of a text ends that begins at its beginning: behind a line, or in a long line where
// no pattern makes a word of what stands before and behind.
size_t block_end(std::string_view text) {
  if (text.size() <= kBlock) return text.size();
  const std::string_view near = text.substr(0, 2 * kBlock);
  size_t line = near.find('\n', kBlock);
  if (line != std::string_view::npos) return line + 1;
  const char* const begin = text.data();
  const auto word =
      static_cast<size_t>(plain_word_end(begin + kBlock, begin + text.size()) - begin);
  line = text.substr(0, word).find('\n', kBlock);
  return line == std::string_view::npos ? word : line + 1;
}

// The pages of a mapped file that were read are the system's again.
void give_back(std::string_view text) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<uintptr_t>(text.data()) + page - 1) / page * page;
  const auto end = reinterpret_cast<uintptr_t>(text.data() + text.size()) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace

WordCounts count_words(const std::vector<std::string>& files,
                       const std::function<void(std::string_view, WordCounts&)>& cut, int threads,
                       const std::function<void(int64_t, int64_t)>& progress,
                       const WordLimit& limit) {
  std::vector<base::MappedFile> maps;
  std::vector<std::string_view> texts;
  int64_t total = 0, done = 0;
  for (const std::string& path : files) {
    const auto bytes = maps.emplace_back(path).bytes();
    texts.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    total += std::ssize(bytes);
  }
  std::mutex mutex;
  std::vector<std::unique_ptr<WordCounts>> idle;
  auto count = [&](std::string_view block) {
    std::unique_ptr<WordCounts> counts;
    {
      std::lock_guard lock(mutex);
      if (!idle.empty()) {
        counts = std::move(idle.back());
        idle.pop_back();
      }
    }
    if (!counts) counts = std::make_unique<WordCounts>();
    cut(block, *counts);
    std::lock_guard lock(mutex);
    idle.push_back(std::move(counts));
    done += std::ssize(block);
    if (progress) progress(done, total);
  };
  auto merge = [&] {
    for (auto& counts : idle) {  // into the largest
      if (counts->size() > idle[0]->size()) std::swap(counts, idle[0]);
    }
    for (size_t i = 1; i < idle.size(); ++i) {
      idle[0]->add(*idle[i]);
      idle[i].reset();
    }
    idle.resize(std::min<size_t>(idle.size(), 1));
  };
  // All words are at most those of each thread; where that says nothing, they are brought together.
  auto look_at_limit = [&] {
    int64_t words = 0;
    bool long_ones = false;
    for (const auto& counts : idle) {
      words += counts->size();
      long_ones |= counts->exceeds(limit.words / std::ssize(idle));
    }
    if (words <= limit.words && !long_ones) return;
    merge();
    if (idle[0]->exceeds(limit.words)) limit.shrink(*idle[0]);
  };
  std::vector<std::string_view> round;
  auto finish_round = [&] {
    base::parallel_for(std::ssize(round), threads, [&](int64_t i) { count(round[i]); });
    for (std::string_view block : round) give_back(block);
    round.clear();
    if (limit.shrink && !idle.empty()) look_at_limit();
  };
  for (std::string_view text : texts) {
    while (!text.empty()) {
      const size_t length = block_end(text);
      round.push_back(text.substr(0, length));
      text.remove_prefix(length);
      if (std::ssize(round) == kBlocksPerRound) finish_round();
    }
  }
  finish_round();
  merge();
  return idle.empty() ? WordCounts() : std::move(*idle[0]);
}

void check_max_words(int64_t max_words) {
  if (max_words >= 1000) return;
  throw base::ConfigError(
      fmt::format("max_words {}: expected 1000 different words or more", max_words));
}

void check_alphabet(const std::vector<std::string>& characters) {
  for (const std::string& c : characters) {
    if (is_utf8(c) && count_characters(c) == 1) continue;
    throw base::ConfigError(fmt::format(
        "initial_alphabet: \"{}\" is not one character; give the characters one by one", c));
  }
}

std::string told(const WordCounts::Forgotten& forgotten, int64_t max_words) {
  return fmt::format(
      "{} rare words ({} occurrences) were left out of what is learned from, as there "
      "are more than {} different ones at once",
      forgotten.words, forgotten.occurrences, max_words);
}

}  // namespace trireme::text
