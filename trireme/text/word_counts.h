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
  /// All words in byte order; they point into this object.
  std::vector<Word> sorted() const;

 private:
  struct Slot {
    uint64_t hash = 0;
    size_t begin = 0, length = 0;  // in bytes_
    int64_t count = 0;             // 0: a free slot
  };
  void grow();

  std::vector<Slot> slots_;  // open addressing, at most half full
  int64_t size_ = 0;
  std::string bytes_;
};

/// Counts what `cut(lines, counts)` adds for the files' lines, given some whole ones at a time, on
/// `threads` threads; the same for any number of them. `progress(done, total)` in bytes, never
/// called by two threads at once.
WordCounts count_words(const std::vector<std::string>& files,
                       const std::function<void(std::string_view, WordCounts&)>& cut, int threads,
                       const std::function<void(int64_t, int64_t)>& progress);

}  // namespace trireme::text
