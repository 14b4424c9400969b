// What `trireme preprocess` tells: the bar of a terminal, the lines of a log, the summary.

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "tools/trireme/preprocess_report.h"

namespace trireme::tools {
namespace {

using data::PreprocessProgress;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

/// What is told of `steps`, each with the second at which it comes.
std::vector<std::string> told(bool terminal,
                              const std::vector<std::pair<double, PreprocessProgress>>& steps) {
  std::vector<std::string> out;
  double now = 0;
  ProgressReport report(
      terminal, [&] { return now; }, [&](std::string_view text) { out.emplace_back(text); });
  for (const auto& [second, progress] : steps) {
    now = second;
    report.show(progress);
  }
  return out;
}

PreprocessProgress at(int64_t megabytes, int64_t total) {
  return {.bytes = megabytes * 1'000'000,
          .total_bytes = total * 1'000'000,
          .documents = 10 * megabytes,
          .tokens = 250'000 * megabytes};
}

TEST(PreprocessReport, DrawsABarOnATerminal) {
  EXPECT_THAT(
      told(true, {{0, at(0, 100)}, {0.05, at(2, 100)}, {2, at(50, 100)}, {2.05, at(51, 100)}}),
      ElementsAre("\r[                              ]   0%  0 documents  0.0 MB/s  0:00 left\033[K",
                  "\r[===============               ]  50%  500 documents  25.0 MB/s  0:02 left"
                  "  4.00 bytes per token\033[K",
                  "\r\033[K"));
}

// Ten minutes of a job in a batch system: a line now and then, no control codes.
TEST(PreprocessReport, WritesPlainLinesElsewhere) {
  std::vector<std::pair<double, PreprocessProgress>> steps;
  for (int second = 0; second <= 35; ++second) steps.emplace_back(second, at(10 * second, 3600));
  EXPECT_THAT(
      told(false, steps),
      ElementsAre("preprocess:   3%  1000 documents  10.0 MB/s  5:50 left  4.00 bytes per token\n",
                  StartsWith("preprocess:   6%  2000 documents  10.0 MB/s  5:40 left"),
                  StartsWith("preprocess:   8%  3000 documents  10.0 MB/s  5:30 left")));
  EXPECT_THAT(told(false, {{0, at(0, 1)}, {3, at(1, 1)}}), IsEmpty()) << "a short run is quiet";
  EXPECT_THAT(told(false, {{0, {0, 4'000'000, -1, 0}}, {10, {1'000'000, 4'000'000, -1, 0}}}),
              ElementsAre("preprocess:  25%  0.1 MB/s  0:30 left\n"))
      << "documents that nobody counts";
}

// What an earlier run had done is not this one's speed, and compressed input has no known end.
TEST(PreprocessReport, CountsThisRunsSpeedAlone) {
  EXPECT_THAT(told(false, {{5, at(900, 1000)}, {25, at(940, 1000)}}),
              ElementsAre(HasSubstr("94%  9400 documents  2.0 MB/s  0:30 left")));
  EXPECT_THAT(told(false, {{0, at(0, 0)}, {10, at(40, 0)}}),
              ElementsAre("preprocess: 400 documents  4.0 MB/s  4.00 bytes per token\n"));
}

TEST(PreprocessReport, SumsUp) {
  const data::PreprocessSummary summary{.outputs = {{"out/d_train", 9, 90}, {"out/d_valid", 1, 10}},
                                        .documents = 10,
                                        .tokens = 100,
                                        .text_bytes = 425,
                                        .empty = 2,
                                        .skipped = 1,
                                        .duplicates = 3,
                                        .errors = {"a.jsonl:4: bad"},
                                        .resumed_bytes = 1'500'000};
  EXPECT_EQ(summary_text(summary, 2),
            "went on after 1.5 MB that an earlier run had done\n"
            "10 documents, 100 tokens, 4.250 bytes per token (2.0 s)\n"
            "2 empty documents left out\n3 duplicates left out\n1 bad documents skipped\n"
            "out/d_train: 9 documents, 90 tokens\nout/d_valid: 1 documents, 10 tokens\n");
  const base::Json json = summary_json(summary, 2);
  EXPECT_EQ(json["bytes_per_token"], 4.25);
  EXPECT_EQ(json["duplicates"], 3);
  EXPECT_EQ(json["outputs"][1]["tokens"], 10);
  EXPECT_EQ(json["errors"][0], "a.jsonl:4: bad");
}

}  // namespace
}  // namespace trireme::tools
