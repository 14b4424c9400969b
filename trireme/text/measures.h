#pragma once
// Measures of written text against references: BLEU as sacrebleu counts it, ROUGE as Google's
// rouge-score does, exact match and overlap of answers as SQuAD does. Pure functions of strings in
// UTF-8.

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::text {

/// BLEU of a corpus (Papineni et al., 2002) in percent: n-grams up to 4, tokens as mteval-v13a
/// makes them, exponential smoothing. `references[i]` are all references of hypothesis i.
/// ConfigError where the counts differ or one has none.
double bleu(std::span<const std::string> hypotheses,
            std::span<const std::vector<std::string>> references);

struct Overlap {
  double precision = 0, recall = 0, f1 = 0;
};
/// ROUGE-N: shared n-grams of words (Lin, 2004); words are runs of a-z and 0-9 in lower case.
Overlap rouge_n(std::string_view hypothesis, std::string_view reference, int n);
/// ROUGE-L: the longest common subsequence of words.
Overlap rouge_l(std::string_view hypothesis, std::string_view reference);

/// Answers without case, punctuation, articles and needless spaces (Rajpurkar et al., SQuAD, 2016):
/// equal?
bool exact_match(std::string_view answer, std::string_view reference);
/// Shared words of two such answers.
Overlap answer_overlap(std::string_view answer, std::string_view reference);

}  // namespace trireme::text
