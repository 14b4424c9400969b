#pragma once
// Regex: the regular expressions of tokenizer.json, written in Oniguruma's syntax, run by PCRE2.
//
// Classes such as \p{L}, \s and \w are spelled out with our tables, so that they hold the code
// points that Hugging Face's library sees whatever Unicode version PCRE2 has. What the two engines
// understand differently is translated or refused by name.
//
//   Regex regex("\\p{L}+");
//   regex.for_each_match(text, [](size_t begin, size_t end) { ... });

#include <memory>
#include <string>
#include <string_view>

namespace trireme::text {

class Regex {
 public:
  /// FormatError (message only) for a pattern that is wrong or not supported.
  explicit Regex(std::string_view pattern);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  /// Calls `use(begin, end)` for each match from left to right. An empty match right after another
  /// match does not count. ConfigError when a text makes the pattern too expensive. Thread-safe.
  template <class Use>
  void for_each_match(std::string_view text, const Use& use) const {
    Search search(*this, text);
    while (search.next()) use(search.begin, search.end);
  }

 private:
  struct Compiled;
  struct Search {
    Search(const Regex& regex, std::string_view text);
    ~Search();
    bool next();
    size_t begin = 0, end = 0;

   private:
    const Compiled& compiled_;
    std::string repaired_;  // a text whose invalid bytes are replaced
    std::string_view text_;
    size_t from_ = 0, last_end_ = SIZE_MAX;
    void* match_ = nullptr;
  };
  std::unique_ptr<Compiled> compiled_;
};

/// The pattern in PCRE2's syntax with our classes. FormatError (message only).
std::string translate_regex(std::string_view pattern);

}  // namespace trireme::text
