#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>

#include "tests/data/data_support.h"
#include "trireme/data/indexed.h"
#include "trireme/data/sentence_spans.h"

namespace trireme::data {
namespace {

using base::ConfigError;
using base::DType;
using base::Json;
using ::testing::HasSubstr;
using Ids = std::vector<int64_t>;
using Values = std::vector<double>;

constexpr int64_t kPad = 0, kCls = 2, kSep = 3, kMask = 4, kVocab = 1000;

/// Documents of sentences, ids 10, 11, ... in the order of the tokens.
std::string sentences(const TemporaryFolder& folder, const std::vector<Ids>& documents) {
  IndexedWriter writer(folder / "s", DType::i32);
  int64_t next = 10;
  for (const Ids& lengths : documents) {
    for (int64_t length : lengths) {
      Ids ids(length);
      for (int64_t& id : ids) id = 10 + (next++ - 10) % (kVocab - 10);
      writer.add_sequence(std::span<const int64_t>(ids));
    }
    writer.end_document();
  }
  writer.finish();
  return folder / "s";
}

Json with(Json json, const Json& more) {
  json.update(more);
  return json;
}

const Json kBert = {{"cls", kCls}, {"sep", kSep}, {"pad", kPad}, {"mask", kMask}};

std::shared_ptr<const Dataset> open(const std::string& type, const std::string& path,
                                    const Json& options, SampleOptions run) {
  run.vocab_size = run.vocab_size > 0 ? run.vocab_size : kVocab;
  return dataset_types().get(type)(path, options, run);
}

TEST(Bert, PutsTwoSegmentsBetweenSpecialTokensAndMasksSome) {
  TemporaryFolder folder;
  const auto path = sentences(folder, std::vector<Ids>(50, {5, 4, 6, 3, 7}));
  for (const char* pair : {"nsp", "sop"}) {
    auto dataset = open("bert", path, with(kBert, {{"pair", pair}, {"short_seq_prob", 0.0}}),
                        {.seq_length = 32, .seed = 3});
    double swapped = 0, predicted = 0, masked = 0, stayed = 0, tokens = 0;
    for (int64_t i = 0; i < 400; ++i) {
      auto f = read_fields(*dataset, i);
      Values &ids = f["input_ids"], &labels = f["labels"], &types = f["token_type_ids"],
             &attention = f["attention_mask"];
      const auto used = static_cast<int64_t>(std::count(attention.begin(), attention.end(), 1.0));
      ASSERT_EQ(ids[0], kCls);
      ASSERT_EQ(ids[used - 1], kSep);
      EXPECT_EQ(labels[0], -100);
      // Types are 0 up to the first separator, 1 up to the last token, 0 in the padding.
      const auto first = std::find(ids.begin(), ids.end(), double(kSep)) - ids.begin();
      for (int64_t k = 0; k < 32; ++k) {
        EXPECT_EQ(types[k], k > first && k < used ? 1 : 0);
        EXPECT_EQ(attention[k], k < used ? 1 : 0);
        if (k >= used) { EXPECT_EQ(ids[k], kPad); }
        if (k >= used) { EXPECT_EQ(labels[k], -100); }
        if (labels[k] < 0) continue;
        ++predicted;
        masked += ids[k] == kMask;
        stayed += ids[k] == labels[k];
      }
      tokens += static_cast<double>(used - 3);
      swapped += f["next_sentence_label"][0];
    }
    EXPECT_NEAR(swapped / 400, 0.5, 0.08) << pair;
    EXPECT_NEAR(predicted / tokens, 0.15, 0.02);
    EXPECT_NEAR(masked / predicted, 0.8, 0.04);
    EXPECT_NEAR(stayed / predicted, 0.1, 0.04);
  }
}

TEST(Bert, SegmentsOfSopAreThoseOfTheDocumentInEitherOrder) {
  TemporaryFolder folder;
  const auto path = sentences(folder, std::vector<Ids>(4, {5, 4}));
  auto dataset =
      open("bert", path,
           with(kBert, {{"pair", "sop"}, {"masked_lm_prob", 0.0}, {"short_seq_prob", 0.0}}),
           {.seq_length = 16, .shuffle = false});
  for (int64_t i = 0; i < 20; ++i) {
    auto f = read_fields(*dataset, i);
    const double begin = 10 + 9 * static_cast<double>(i % 4);
    const bool other = f["next_sentence_label"][0] == 1;
    EXPECT_EQ(f["input_ids"][1], other ? begin + 5 : begin);
    EXPECT_EQ(f["input_ids"][other ? 6 : 7], other ? begin : begin + 5);
    EXPECT_THAT(f["labels"], ::testing::Each(-100)) << "nothing to predict is no error";
  }
}

// Of a sample nothing depends on what was read before, on threads or on ranks.
TEST(Bert, SamplesAreFunctionsOfSeedAndIndex) {
  TemporaryFolder folder;
  const auto path = sentences(folder, std::vector<Ids>(30, {5, 4, 6}));
  const auto make = [&](uint64_t seed) {
    return open("bert", path, kBert, {.seq_length = 24, .seed = seed});
  };
  auto a = make(1), b = make(1), c = make(2);
  int64_t differ = 0;
  for (int64_t i = 0; i < 60; ++i) {
    EXPECT_EQ(read_fields(*a, 59 - i), read_fields(*b, 59 - i));
    differ += read_fields(*a, i) != read_fields(*c, i);
  }
  EXPECT_GT(differ, 50);
  EXPECT_NE(read_fields(*a, 0), read_fields(*a, a->size())) << "masks of another epoch are others";
}

// Chinese has no spaces: its tokens are characters, and a list says which make a word.
TEST(Bert, HidesWholeWordsOfAList) {
  TemporaryFolder folder;
  const auto tokenizer = word_piece(folder, {"中", "国", "人", "民", "大", "##s"});
  // 5 中 6 国 7 人 8 民 9 大 10 ##s; the list: 中国, 中国人, 人民, and what is no word of several tokens.
  base::write_file_atomic(folder / "words.txt", "中国\r\n中国人\n人民\n大\n\n国s\n");
  IndexedWriter writer(folder / "w", DType::i32);
  for (int d = 0; d < 40; ++d) {
    const Ids ids{5, 6, 7, 8, 9, 5, 6, 9, 7, 8, 5, 6, 10, 6};
    writer.add_sequence(std::span<const int64_t>(ids));
    writer.end_document();
  }
  writer.finish();
  const Json options = {{"pair", "none"},       {"whole_word", true},   {"masked_lm_prob", 0.4},
                        {"random_share", 0.0},  {"mask_share", 1.0},    {"short_seq_prob", 0.0},
                        {"words", folder / "words.txt"}};
  const SampleOptions run{.seq_length = 16, .vocab_size = 11, .tokenizer = tokenizer};
  auto dataset = open("bert", folder / "w", options, run);
  // 中国人 | 民 | 大 | 中国 | 大 | 人民 | 中 | 国s | 国: the longest that fits, and none that ends
  // within a word of the tokenizer's. Ids begin behind [CLS].
  const std::vector<std::pair<int, int>> words{{1, 4}, {4, 5}, {5, 6}, {6, 8}, {8, 9},
                                               {9, 11}, {11, 12}, {12, 14}, {14, 15}};
  std::set<int> hidden;
  for (int64_t i = 0; i < 200; ++i) {
    const Values labels = read_fields(*dataset, i)["labels"];
    for (const auto& [begin, end] : words) {
      for (int k = begin; k < end; ++k)
        EXPECT_EQ(labels[k] >= 0, labels[begin] >= 0) << "token " << k << " of sample " << i;
      if (labels[begin] >= 0) hidden.insert(begin);
    }
  }
  EXPECT_EQ(hidden.size(), words.size());

  const std::string before = dataset->identity().sources[0].samples;
  base::write_file_atomic(folder / "words.txt", "中国\n");
  EXPECT_NE(open("bert", folder / "w", options, run)->identity().sources[0].samples, before);
  base::write_file_atomic(folder / "words.txt", "中\n\n");
  EXPECT_THAT(message_of<ConfigError>([&] { open("bert", folder / "w", options, run); }),
              HasSubstr("expected a word on each line"));
  EXPECT_THAT(message_of<ConfigError>(
                  [&] { open("bert", folder / "w", with(options, {{"whole_word", false}}), run); }),
              HasSubstr("of use with whole_word: true only"));
}

TEST(Bert, HidesWholeWordsAndRunsOfThem) {
  TemporaryFolder folder;
  const auto tokenizer = word_piece(folder, {"un", "##want", "##ed", "run", "##ning"});
  IndexedWriter writer(folder / "w", DType::i32);
  for (int d = 0; d < 40; ++d) {
    const Ids ids{5, 6, 7, 8, 9, 5, 8, 9, 8, 5, 6, 7};  // unwanted running un running run unwanted
    writer.add_sequence(std::span<const int64_t>(ids));
    writer.end_document();
  }
  writer.finish();
  int64_t together = 0;
  for (int64_t ngram : {1, 3}) {
    auto dataset = open("bert", folder / "w",
                        {{"pair", "none"},
                         {"whole_word", true},
                         {"max_ngram", ngram},
                         {"masked_lm_prob", 0.4},
                         {"random_share", 0.0},
                         {"mask_share", 1.0},
                         {"short_seq_prob", 0.0}},
                        {.seq_length = 16, .vocab_size = 10, .tokenizer = tokenizer});
    const std::vector<std::vector<int>> words{{1, 2, 3}, {4, 5}, {6}, {7, 8}, {9}, {10, 11, 12}};
    for (int64_t i = 0; i < 100; ++i) {
      auto labels = read_fields(*dataset, i)["labels"];
      int64_t run = 0, hidden = 0;
      for (const auto& word : words) {
        const bool first = labels[word[0]] >= 0;
        for (int k : word) EXPECT_EQ(labels[k] >= 0, first) << "a word is hidden as a whole";
        run = first ? run + 1 : 0;
        hidden += first ? std::ssize(word) : 0;
        if (ngram == 3) together += run >= 2;
      }
      EXPECT_LE(hidden, 5);
      EXPECT_GE(hidden, 1);
    }
  }
  EXPECT_GT(together, 30);
}

TEST(Bert, RefusesWhatItCannotMake) {
  TemporaryFolder folder;
  const auto path = sentences(folder, {{9}, {8}});
  const auto said = [&](const Json& options, int64_t length) {
    return message_of<ConfigError>([&] { open("bert", path, options, {.seq_length = length}); });
  };
  EXPECT_THAT(said(kBert, 16), HasSubstr("no document has 2 sentences"));
  EXPECT_THAT(said({{"pair", "none"}}, 16),
              HasSubstr("options of bert.mask: no id is given and without `tokenizer` there is "
                        "none of [MASK], <mask>"));
  EXPECT_THAT(said(with(kBert, {{"pair", "both"}}), 16),
              HasSubstr("expected one of nsp, sop, none"));
  EXPECT_THAT(said(with(kBert, {{"masked_lm_prob", 1.5}}), 16), HasSubstr("0 to 1"));
  EXPECT_THAT(said(with(kBert, {{"mask_prob", 0.1}}), 16), HasSubstr("unknown option 'mask_prob'"));
  EXPECT_THAT(said(with(kBert, {{"whole_word", true}, {"pair", "none"}}), 16),
              HasSubstr("whole_word needs `tokenizer`"));
  EXPECT_THAT(said(kBert, 4), HasSubstr("leaves no room beside 3 special tokens"));
}

// The spans that Megatron-LM's build_mapping makes, worked out with its generator by hand: without
// short samples there is no draw, so the cuts follow from the lengths alone.
TEST(SentenceSpans, CutDocumentsAsMegatronDoes) {
  TemporaryFolder folder;
  IndexedDataset data(sentences(folder, {{5, 5, 5, 5, 5}, {3}, {600, 5}, {4, 4}}));
  const auto spans = sentence_spans(data, 10, 0, 2, 1);
  std::vector<Ids> found;
  for (const SentenceSpan& s : spans) found.push_back({s.begin, s.end, s.target, s.document});
  // Document 0: two sentences fill 10 while more than one is left; then all that is left. 1 has one
  // sentence, 2 a long one.
  EXPECT_EQ(found, (std::vector<Ids>{{0, 2, 10, 0}, {2, 5, 10, 0}, {8, 10, 10, 3}}));
  int64_t shorter = 0;
  IndexedDataset many(sentences(folder, std::vector<Ids>(400, {3, 3, 3, 3, 3, 3})));
  for (const SentenceSpan& s : sentence_spans(many, 12, 0.1, 2, 7)) {
    EXPECT_GE(s.target, 2);
    EXPECT_LE(s.target, 12);
    shorter += s.target < 12;
  }
  EXPECT_GT(shorter, 20);
}

TEST(Mlm, FramesWindowsAndMasksThem) {
  TemporaryFolder folder;
  const auto path = sentences(folder, std::vector<Ids>(20, {50}));
  auto dataset = open("mlm", path, {{"bos", 1}, {"eos", 2}, {"mask", kMask}}, {.seq_length = 34});
  EXPECT_EQ(dataset->size(), 1000 / 32);
  std::set<double> seen;
  for (int64_t i = 0; i < dataset->size(); ++i) {
    auto f = read_fields(*dataset, i);
    EXPECT_EQ(f["input_ids"][0], 1);
    EXPECT_EQ(f["input_ids"][33], 2);
    EXPECT_THAT(f["attention_mask"], ::testing::Each(1));
    int64_t labels = 0;
    for (int64_t k = 1; k < 33; ++k) {
      seen.insert(f["labels"][k] >= 0 ? f["labels"][k] : f["input_ids"][k]);
      labels += f["labels"][k] >= 0;
    }
    EXPECT_EQ(labels, 5);  // round(0.15 * 32)
  }
  EXPECT_GE(seen.size(), 980u);
}

TEST(T5, SpansMakeUpTheTextAgain) {
  TemporaryFolder folder;
  const auto path = sentences(folder, std::vector<Ids>(20, {49}));
  const Json options = {{"sentinel", 999}, {"eos", 1}, {"pad", 7}};
  auto dataset = open("t5", path, options, {.seq_length = 40, .shuffle = false});
  int64_t first = 10;
  for (int64_t i = 0; i < dataset->size(); ++i) {
    auto f = read_fields(*dataset, i);
    // Sentinel k in the encoder stands for what follows sentinel k in the labels.
    std::map<double, Ids> spans;
    double at = -1;
    for (double label : f["labels"]) {
      if (label < 0 || label == 1) break;
      if (label > 980)
        spans[at = label];
      else
        spans[at].push_back(static_cast<int64_t>(label));
    }
    Ids text;
    double expected = 999;
    for (size_t k = 0; k < 40 && f["attention_mask"][k] == 1; ++k) {
      const double id = f["input_ids"][k];
      if (id == 1) continue;
      if (id <= 980) {
        text.push_back(static_cast<int64_t>(id));
        continue;
      }
      EXPECT_EQ(id, expected--) << "sentinels count down";
      EXPECT_FALSE(spans.at(id).empty());
      text.insert(text.end(), spans[id].begin(), spans[id].end());
    }
    for (int64_t id : text) EXPECT_EQ(id, 10 + (first++ - 10) % (kVocab - 10));
    // The decoder's input is the labels behind the start token, which is the pad.
    EXPECT_EQ(f["decoder_input_ids"][0], 7);
    for (size_t k = 1; k < f["labels"].size(); ++k)
      EXPECT_EQ(f["decoder_input_ids"][k], f["labels"][k] == -100 ? 7 : f["labels"][k - 1]);
  }
  EXPECT_GT(first, 900);
}

// LiBai made T5's masks by comparing with pad id 0.
TEST(T5, MasksCountTokensWhateverThePadIs) {
  TemporaryFolder folder;
  const auto path = sentences(folder, std::vector<Ids>(20, {49}));
  auto dataset =
      open("t5", path, {{"sentinel", 999}, {"eos", 1}, {"pad", 15}, {"decoder_seq_length", 30}},
           {.seq_length = 40});
  auto f = read_fields(*dataset, 0);
  const auto ones = [](const Values& mask) { return std::count(mask.begin(), mask.end(), 1.0); };
  EXPECT_EQ(ones(f["decoder_attention_mask"]),
            std::count_if(f["labels"].begin(), f["labels"].end(), [](double l) { return l >= 0; }));
  EXPECT_GE(ones(f["attention_mask"]), 38);
  EXPECT_THAT(message_of<ConfigError>([&] {
                open("t5", path, {{"sentinel", 2}, {"eos", 1}, {"pad", 0}}, {.seq_length = 200});
              }),
              HasSubstr("spans need as many sentinels; from id 2 down there are 3"));
  EXPECT_THAT(message_of<ConfigError>([&] {
                open("t5", path,
                     {{"sentinel", 999}, {"eos", 1}, {"pad", 0}, {"decoder_seq_length", 4}},
                     {.seq_length = 40});
              }),
              HasSubstr("decoder_seq_length 4: raise them"));
}

TEST(PrefixLm, LabelsBeginBehindThePrefix) {
  TemporaryFolder folder;
  const auto path = sentences(folder, std::vector<Ids>(20, {50}));
  auto dataset =
      open("prefix_lm", path, {{"min_prefix", 0.25}, {"max_prefix", 0.75}}, {.seq_length = 20});
  std::set<int64_t> prefixes;
  for (int64_t i = 0; i < 60; ++i) {
    auto f = read_fields(*dataset, i);
    const auto prefix = static_cast<int64_t>(
        std::accumulate(f["prefix_mask"].begin(), f["prefix_mask"].end(), 0.0));
    prefixes.insert(prefix);
    for (int64_t k = 0; k < 20; ++k) {
      EXPECT_EQ(f["prefix_mask"][k], k < prefix ? 1 : 0);
      EXPECT_EQ(f["labels"][k] < 0, k < prefix - 1)
          << "the prefix's last token guesses what follows";
      if (k + 1 < 20 && f["labels"][k] >= 0) { EXPECT_EQ(f["labels"][k], f["input_ids"][k + 1]); }
    }
  }
  EXPECT_GE(*prefixes.begin(), 5);
  EXPECT_LE(*prefixes.rbegin(), 15);
  EXPECT_GT(prefixes.size(), 6u);
}

TEST(Examples, AnOrderMayBeNamedAndIdentityTellsOptions) {
  TemporaryFolder folder;
  const auto path = sentences(folder, std::vector<Ids>(20, {50}));
  const Json options = {{"bos", 1}, {"eos", 2}, {"mask", kMask}, {"order", "cyclic"}};
  auto cyclic = open("mlm", path, options, {.seq_length = 34});
  auto random = open("mlm", path, {{"bos", 1}, {"eos", 2}, {"mask", kMask}}, {.seq_length = 34});
  EXPECT_THAT(message_of<ConfigError>(
                  [&] { refuse_change(random->identity(), cyclic->identity(), "ckpt"); }),
              HasSubstr("makes its samples otherwise"));
  EXPECT_THAT(message_of<ConfigError>([&] {
                open("mlm", path, with(options, {{"order", "any"}}), {.seq_length = 34});
              }),
              HasSubstr("order 'any'; expected random"));
  EXPECT_THAT(message_of<ConfigError>(
                  [&] { open_datasets({{.path = path, .type = "brt"}}, {.seq_length = 34}); }),
              HasSubstr("did you mean bert?"));
}

}  // namespace
}  // namespace trireme::data
