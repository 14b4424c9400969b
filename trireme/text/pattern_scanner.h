#pragma once
// The well-known patterns that cut text into words, written by hand: GPT-2's, cl100k's (Llama 3
// uses it too), Qwen 2's and o200k's. Each covers any text without gaps.
//
//   auto pattern = known_pattern(regex);   // nothing for a regex that is not one of them
//   for (const char* p = begin; p < end;) p = word_end(*pattern, p, end);

#include <optional>
#include <string_view>

namespace trireme::text {

enum class WordPattern { gpt2, cl100k, qwen2, o200k };

/// The pattern that a regular expression spells, in one of the spellings in use.
std::optional<WordPattern> known_pattern(std::string_view regex);
/// Where the word that begins at `p` ends; p < end.
const char* word_end(WordPattern pattern, const char* p, const char* end);

}  // namespace trireme::text
