#pragma once
// Sentences: cuts a text into sentences by rule, without a trained model (BERT and T5 pretrain on
// them). A sentence ends
//   - after `.`, `!`, `?` or an ellipsis, closing quotes and brackets behind them, and whitespace,
//     unless the next character is a lowercase letter, or the stop belongs to an abbreviation
//     ("Dr.", "e.g."), to an initial ("J. Smith") or to a list's number ("1. First");
//   - after the full-width stops of Chinese and Japanese, whitespace or not;
//   - at an empty line.
//
//   split_sentences("Dr. No came. He left!")   // {"Dr. No came.", "He left!"}

#include <string_view>
#include <vector>

namespace trireme::text {

/// The sentences in their order, without the whitespace around them; none is empty.
std::vector<std::string_view> split_sentences(std::string_view text);

}  // namespace trireme::text
