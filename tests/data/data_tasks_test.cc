#include <gmock/gmock.h>

#include <fstream>
#include <functional>

#include "tests/data/data_support.h"
#include "trireme/data/table.h"

namespace trireme::data {
namespace {

using base::ConfigError;
using base::FormatError;
using base::Json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Values = std::vector<double>;

class Tasks : public ::testing::Test {
 protected:
  Tasks() : tokenizer_(word_piece(folder_, {"a", "b", "c", "d", "e", "x"})) {}
  std::string file(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }
  std::shared_ptr<const Dataset> open(const std::string& type, const std::string& path,
                                      const Json& options, int64_t length) {
    return dataset_types().get(type)(
        path, options,
        {.seq_length = length, .shuffle = false, .vocab_size = 20, .tokenizer = tokenizer_});
  }
  TemporaryFolder folder_;
  std::string tokenizer_;
};

TEST_F(Tasks, FinetuningMasksThePrompt) {
  const auto path = file("t.jsonl",
                         "{\"prompt\": \"a b\", \"completion\": \"c d\"}\n\n{\"prompt\": \"a\", "
                         "\"completion\": \"b c d e x a b\"}\n");
  const Json options = {{"eod", 3}, {"pad", 0}};
  auto dataset = open("sft", path, options, 6);
  ASSERT_EQ(dataset->size(), 2);
  auto f = read_fields(*dataset, 0);
  EXPECT_EQ(f["input_ids"], (Values{5, 6, 7, 8, 0, 0}));
  EXPECT_EQ(f["attention_mask"], (Values{1, 1, 1, 1, 0, 0}));
  EXPECT_EQ(f["labels"], (Values{-100, 7, 8, 3, -100, -100}));
  EXPECT_THAT(message_of<FormatError>([&] { read_fields(*dataset, 1); }),
              AllOf(HasSubstr("t.jsonl:3: 9 tokens, 1 of them the prompt's; expected 2 to 7"),
                    HasSubstr("too_long: truncate")));
  auto cut = open("sft", path,
                  {{"eod", 3}, {"pad", 0}, {"too_long", "truncate"}, {"prompt_loss", true}}, 6);
  f = read_fields(*cut, 1);
  EXPECT_EQ(f["input_ids"], (Values{5, 6, 7, 8, 9, 10}));
  EXPECT_EQ(f["labels"], (Values{6, 7, 8, 9, 10, 5}));
  EXPECT_THAT(
      message_of<FormatError>([&] {
        read_fields(*open("sft", path, {{"eod", 3}, {"pad", 0}, {"completion", "answer"}}, 6), 0);
      }),
      HasSubstr("t.jsonl:1: no key \"answer\"; the object has: prompt, completion"));
}

TEST_F(Tasks, ClassesOfPairsFromATable) {
  const auto path = file("t.tsv",
                         "id\ts1\ts2\tlabel\n0\ta b\tc\tentailment\n1\ta a a a a a\tb b "
                         "b\tcontradiction\n2\ta\tb\tother\n");
  const Json options = {
      {"text", "s1"}, {"text_pair", "s2"}, {"labels", {"contradiction", "entailment"}}};
  auto dataset = open("classification", path, options, 9);
  auto f = read_fields(*dataset, 0);
  EXPECT_EQ(f["input_ids"], (Values{2, 5, 6, 3, 7, 3, 0, 0, 0}));
  EXPECT_EQ(f["token_type_ids"], (Values{0, 0, 0, 0, 1, 1, 0, 0, 0}));
  EXPECT_EQ(f["attention_mask"], (Values{1, 1, 1, 1, 1, 1, 0, 0, 0}));
  EXPECT_EQ(f["labels"], (Values{1}));
  f = read_fields(*dataset, 1);
  EXPECT_EQ(f["input_ids"], (Values{2, 5, 5, 5, 3, 6, 6, 6, 3})) << "the longer one is cut first";
  EXPECT_EQ(f["labels"], (Values{0}));
  EXPECT_THAT(message_of<FormatError>([&] { read_fields(*dataset, 2); }),
              HasSubstr("t.tsv:4: label \"other\"; expected one of contradiction, entailment"));
  EXPECT_THAT(message_of<FormatError>([&] {
                open("classification", path, {{"text", "sentence1"}}, 9);
              }),
              HasSubstr("no column \"sentence1\"; there are: id, s1, s2, label"));
}

TEST_F(Tasks, NumbersFromCsv) {
  const auto path =
      file("t.csv", "\xEF\xBB\xBFsentence,label\r\n\"a, \"\"b\"\"\",2.5\r\n\"c\nd\",-1\r\n");
  auto dataset = open("classification", path, {{"regression", true}}, 8);
  ASSERT_EQ(dataset->size(), 2);
  auto f = read_fields(*dataset, 0);
  EXPECT_EQ(f["labels"], (Values{2.5}));
  EXPECT_EQ(f["input_ids"][1], 5);
  f = read_fields(*dataset, 1);
  EXPECT_EQ(f["labels"], (Values{-1}));
  EXPECT_EQ((Values{f["input_ids"].begin(), f["input_ids"].begin() + 4}), (Values{2, 7, 8, 3}));
  EXPECT_THAT(
      message_of<FormatError>([&] { read_fields(*open("classification", path, {}, 8), 0); }),
      AllOf(HasSubstr("label \"2.5\"; expected the number of a class"),
            HasSubstr("option labels")));
  EXPECT_THAT(message_of<FormatError>([&] { Table(file("open.csv", "a,b\n\"c,d\n")); }),
              HasSubstr("never ends"));
  EXPECT_THROW(Table(file("x.parquet", "")), ConfigError);
}

TEST_F(Tasks, TablesWithoutHeaderAndPredictionsWithoutLabels) {
  const auto path = file("cola.tsv", "gj04\t1\t*\ta b\ngj05\t0\t\tc\n");
  auto dataset =
      open("classification", path, {{"text", "3"}, {"label", "1"}, {"header", false}}, 6);
  ASSERT_EQ(dataset->size(), 2);
  EXPECT_EQ(read_fields(*dataset, 0)["labels"], (Values{1}));
  auto unlabelled =
      open("classification", path, {{"text", "3"}, {"label", ""}, {"header", false}}, 6);
  EXPECT_EQ(unlabelled->fields().size(), 3u);
  EXPECT_EQ(read_fields(*unlabelled, 1)["input_ids"][1], 7);
}

TEST_F(Tasks, AnswersArePositionsInTheirWindow) {
  const std::string context = "a b c d e x a b c d";
  const Json squad = {{"data",
                       {{{"paragraphs",
                          {{{"context", context},
                            {"qas",
                             {{{"id", "1"},
                               {"question", "x a"},
                               {"answers", {{{"text", "e x"}, {"answer_start", 8}}}}},
                              {{"id", "2"},
                               {"question", "b"},
                               {"is_impossible", true},
                               {"answers", Json::array()}}}}}}}}}}};
  const auto path = file("squad.json", squad.dump());
  auto dataset = open("squad", path, {{"stride", 2}}, 10);
  // Room for 5 of 10 tokens of the first question's text (windows of 5 that share 2: 0-4, 3-7, 6-9)
  // and 6 of the second's (0-5, 4-9).
  ASSERT_EQ(dataset->size(), 5);
  std::vector<Values> spans;
  for (int64_t i = 0; i < 5; ++i) {
    auto f = read_fields(*dataset, i);
    spans.push_back({f["start_positions"][0], f["end_positions"][0]});
    EXPECT_EQ(f["input_ids"][0], 2);
  }
  EXPECT_THAT(spans,
              ElementsAre(Values{0, 0}, Values{5, 6}, Values{0, 0}, Values{0, 0}, Values{0, 0}));
  auto f = read_fields(*dataset, 1);
  EXPECT_EQ(f["input_ids"], (Values{2, 10, 5, 3, 8, 9, 10, 5, 6, 3}));
  EXPECT_EQ(f["token_type_ids"], (Values{0, 0, 0, 0, 1, 1, 1, 1, 1, 1}));
  const auto lines =
      file("squad.jsonl", Json({{"question", "b"},
                                {"context", "\u00e9 a b"},
                                {"answers", {{"text", {"b"}}, {"answer_start", {4}}}}})
                                  .dump() +
                              "\n");
  f = read_fields(*open("squad", lines, {{"stride", 0}}, 10), 0);
  EXPECT_EQ(f["start_positions"], (Values{5})) << "answers begin at characters, not bytes";
  EXPECT_THAT(message_of<FormatError>(
                  [&] { open("squad", file("bad.jsonl", "{\"question\": \"a\"}\n"), {}, 10); }),
              HasSubstr("bad.jsonl:1"));
}

TEST_F(Tasks, SyntheticNeedsNoFile) {
  auto dataset = open("synthetic", "", {{"samples", 3}, {"high", 13}}, 5);
  EXPECT_EQ(dataset->size(), 3);
  auto f = read_fields(*dataset, 1);
  EXPECT_EQ(f["input_ids"], (Values{1, 12, 2, 4, 1}));
  EXPECT_EQ(f["labels"], (Values{12, 2, 4, 1, 12}));
  EXPECT_THROW(open("synthetic", "", {{"high", 21}}, 5), ConfigError);
}

}  // namespace
}  // namespace trireme::data
