#include <gmock/gmock.h>

#include "trireme/text/sentences.h"

namespace trireme::text {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Sentences, EndAtStopsBeforeWhitespace) {
  EXPECT_THAT(split_sentences("One. Two!  Three?\nFour"),
              ElementsAre("One.", "Two!", "Three?", "Four"));
  EXPECT_THAT(split_sentences("Wait... What?! \"Yes.\" (Sure.) Done."),
              ElementsAre("Wait...", "What?!", "\"Yes.\"", "(Sure.)", "Done."));
  EXPECT_THAT(split_sentences(""), IsEmpty());
  EXPECT_THAT(split_sentences(" \n \t "), IsEmpty());
}

TEST(Sentences, GoOnInsideNumbersNamesAndAbbreviations) {
  EXPECT_THAT(split_sentences("It cost 3.50 at example.com. Then"),
              ElementsAre("It cost 3.50 at example.com.", "Then"));
  EXPECT_THAT(split_sentences("Dr. J. Smith of the U. S. came, e.g. Tuesday. Mr. X did not."),
              ElementsAre("Dr. J. Smith of the U. S. came, e.g. Tuesday.", "Mr. X did not."));
  EXPECT_THAT(split_sentences("He said etc. and left. So did I. We did."),
              ElementsAre("He said etc. and left.", "So did I.", "We did."));
  EXPECT_THAT(split_sentences("1. First\n2. Second"), ElementsAre("1. First\n2. Second"));
  EXPECT_THAT(split_sentences("In 1999. Later"), ElementsAre("In 1999.", "Later"));
}

TEST(Sentences, EndAtEmptyLinesAndWideStops) {
  EXPECT_THAT(split_sentences("A title\n\nA text\nthat goes on\n \n\nEnd"),
              ElementsAre("A title", "A text\nthat goes on", "End"));
  EXPECT_THAT(split_sentences("\u4f60\u597d\u3002\u518d\u89c1\uff01\u55ef"),
              ElementsAre("\u4f60\u597d\u3002", "\u518d\u89c1\uff01", "\u55ef"));
}

TEST(Sentences, TakeAnyBytes) {
  EXPECT_THAT(split_sentences("\xff\xfe. \x80! ."), ElementsAre("\xff\xfe.", "\x80!", "."));
}

}  // namespace
}  // namespace trireme::text
