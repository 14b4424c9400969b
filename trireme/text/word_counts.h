#pragma once
// WordCounts: how often each word occurs in a text; a word is what a tokenizer's pre-tokenization
// cuts, as bytes.
//
// Text is cut line by line, line ends kept, as Hugging Face's `Tokenizer.train(files)` reads it.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::text {

class WordCounts {
 public:
  struct Word {
    std::string_view bytes;
    int64_t count = 0;
  };

  WordCounts();
  void add(std::string_view word, int64_t count = 1);
  /// Cuts each line of `text` with GPT-2's pattern; `add_prefix_space` puts a space before lines
  /// without one.
  void add_lines(std::string_view text, bool add_prefix_space);
  void add(const WordCounts& other);
  int64_t size() const { return size_; }
  /// Whether there are more than `words` of them, or their text is longer than 64 bytes for each.
  bool exceeds(int64_t words) const {
    return size_ > words || static_cast<int64_t>(bytes_.size()) > 64 * words;
  }
  /// Forgets the rarest words (of equally rare ones the last in byte order), so that at most
  /// `words` stay whose text is no longer than 64 bytes for each.
  struct Forgotten {
    int64_t words = 0, occurrences = 0;
    void operator+=(const Forgotten& other) {
      words += other.words;
      occurrences += other.occurrences;
    }
  };
  Forgotten keep_most_frequent(int64_t words);
  /// All words in byte order; they point into this object.
  std::vector<Word> sorted() const;

 private:
  struct Slot {
    size_t begin = 0;  // in bytes_
    uint32_t hash = 0, length = 0;
    int64_t count = 0;  // 0: a free slot
  };
  void grow();

  std::vector<Slot> slots_;  // open addressing, at most half full
  int64_t size_ = 0;
  std::string bytes_;
};

/// What happens when the words counted so far exceed `words`: `shrink` takes some of them out.
struct WordLimit {
  int64_t words = INT64_MAX;
  std::function<void(WordCounts&)> shrink = {};
};

/// Counts what `cut(lines, counts)` adds for the files' lines, given some whole ones at a time (a
/// long line in parts that end before a space), on `threads` threads; the same for any number of
/// them, as the limit is looked at after the same 16 MiB each time. `progress(done, total)` in
/// bytes, never called by two threads at once.
WordCounts count_words(const std::vector<std::string>& files,
                       const std::function<void(std::string_view, WordCounts&)>& cut, int threads,
                       const std::function<void(int64_t, int64_t)>& progress,
                       const WordLimit& limit);

/// The words that trainers keep count of unless told otherwise, and the sentence that tells what
/// was forgotten.
inline constexpr int64_t kMaxWords = 8'000'000;
/// ConfigError for less than can be learned from.
void check_max_words(int64_t max_words);
/// ConfigError for an entry of an initial alphabet that is not one character.
void check_alphabet(const std::vector<std::string>& characters);
std::string told(const WordCounts::Forgotten& forgotten, int64_t max_words);

}  // namespace trireme::text
