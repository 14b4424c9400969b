// Measures of text; the values are those of sacrebleu 2 and rouge-score 0.1.
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/text/measures.h"

namespace trireme::text {
namespace {

const std::vector<std::string> kTexts = {"The cat sat on the mat.", "It's 3.5 degrees, isn't it?",
                                         "Nothing & \"more\" to-say 7-8.."};
const std::vector<std::vector<std::string>> kReferences = {
    {"The cat is on the mat.", "A cat sat on a mat."},
    {"It is 3.5 degrees, is it not?", "It's 3,5 degrees (isn't it)?"},
    {"Nothing and \"more\" to say, 7-8.", "Nothing &amp; more to-say."}};

std::vector<std::vector<std::string>> first_only() {
  std::vector<std::vector<std::string>> some;
  for (const auto& all : kReferences) some.push_back({all[0]});
  return some;
}

TEST(TextMeasures, BleuIsSacrebleus) {
  EXPECT_NEAR(bleu(kTexts, kReferences), 38.464049712194935, 1e-10);
  EXPECT_NEAR(bleu(kTexts, first_only()), 31.03898256281924, 1e-10);
  // Without a common 3-gram the smoothing counts.
  const std::vector<std::string> rug{"the dog sat on my new rug"};
  EXPECT_NEAR(
      bleu(rug, std::vector<std::vector<std::string>>{{"the cat sat on your old mat today"}}),
      12.600736402830258, 1e-10);
  const std::vector<std::string> brief{"the cat"};
  EXPECT_EQ(bleu(brief, std::vector<std::vector<std::string>>{{"the cat sat here"}}), 0);
  EXPECT_NEAR(bleu(rug, std::vector<std::vector<std::string>>{{rug[0]}}), 100, 1e-10);
}

TEST(TextMeasures, BleuRefusesWhatDoesNotFit) {
  EXPECT_THROW(bleu(kTexts, std::vector<std::vector<std::string>>{{"one"}}), base::ConfigError);
  EXPECT_THROW(bleu(kTexts, std::vector<std::vector<std::string>>{{"one"}, {}, {"three"}}),
               base::ConfigError);
}

TEST(TextMeasures, RougeIsRougeScores) {
  struct Want {
    double one, two, longest;
  };
  const Want want[] = {{0.8333333333333334, 0.6, 0.8333333333333334},
                       {0.625, 0.2857142857142857, 0.625},
                       {0.923076923076923, 0.7272727272727272, 0.923076923076923}};
  for (size_t i = 0; i < kTexts.size(); ++i) {
    EXPECT_NEAR(rouge_n(kTexts[i], kReferences[i][0], 1).f1, want[i].one, 1e-14);
    EXPECT_NEAR(rouge_n(kTexts[i], kReferences[i][0], 2).f1, want[i].two, 1e-14);
    EXPECT_NEAR(rouge_l(kTexts[i], kReferences[i][0]).f1, want[i].longest, 1e-14);
  }
  EXPECT_NEAR(rouge_n(kTexts[2], kReferences[2][0], 1).recall, 0.8571428571428571, 1e-14);
  EXPECT_EQ(rouge_n(kTexts[2], kReferences[2][0], 1).precision, 1);
  EXPECT_EQ(rouge_l("", "words").f1, 0);
}

TEST(TextMeasures, AnswersAreComparedAsSquadDoes) {
  EXPECT_TRUE(exact_match("The  Eiffel-Tower!", "eiffeltower"));
  EXPECT_FALSE(exact_match("an Eiffel Tower", "the tower"));
  EXPECT_NEAR(answer_overlap("an Eiffel Tower", "the tower").f1, 2.0 / 3, 1e-14);
  EXPECT_EQ(answer_overlap("the", "a").f1, 1);
  EXPECT_EQ(answer_overlap("", "tower").f1, 0);
}

}  // namespace
}  // namespace trireme::text
