// Tokenizers without an oracle: scanning, merging, round trips, files, refusals.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>

#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/base/io.h"
#include "trireme/text/bpe.h"
#include "trireme/text/bpe_trainer.h"
#include "trireme/text/byte_alphabet.h"
#include "trireme/text/gpt2_scanner.h"
#include "trireme/text/tokenizer.h"
#include "trireme/text/unicode.h"
#include "trireme/text/unigram_trainer.h"
#include "trireme/text/wordpiece_trainer.h"

namespace trireme::text {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<std::string> pieces(std::string_view text) {
  std::vector<std::string> result;
  for (const char *p = text.data(), *end = p + text.size(); p < end;) {
    const char* next = gpt2_piece_end(p, end);
    result.emplace_back(p, next);
    p = next;
  }
  return result;
}

class TextTest : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& content) {
    const std::string path = (folder_ / name).string();
    fs::create_directories(fs::path(path).parent_path());
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  std::unique_ptr<Tokenizer> trained(BpeTrainOptions options = {.vocab_size = 400}) {
    std::string text;
    for (int i = 0; i < 50; ++i)
      text += "the quick brown fox's den, 42 times over\n  the théière, 日本 🙂\n";
    return train_bpe({write("corpus.txt", text)}, options);
  }
  /// The message of the error that loading `path` ends with.
  template <class E>
  std::string refusal(const std::string& path) {
    try {
      Tokenizer::load(path);
    } catch (const E& e) {
      return e.what();
    }
    return "loaded";
  }
  test::TemporaryFolder temporary_;
  const fs::path folder_ = temporary_.path();
};

TEST(Scanner, CutsAsThePatternDoes) {
  EXPECT_THAT(pieces("Hello  world\n\n x"), ElementsAre("Hello", " ", " world", "\n\n", " x"));
  EXPECT_THAT(pieces("it's we'll 'd'S"),
              ElementsAre("it", "'s", " we", "'ll", " '", "d", "'", "S"));
  EXPECT_THAT(pieces("a  "), ElementsAre("a", "  "));
  EXPECT_THAT(pieces("x1½_\xff!"), ElementsAre("x", "1½", "_\xff!"));
  EXPECT_THAT(pieces(" \t b"), ElementsAre(" \t", " b"));
  EXPECT_THAT(pieces(" \tb"), ElementsAre(" ", "\t", "b"));
  EXPECT_THAT(pieces("\u00a0\u3000x"), ElementsAre("\u00a0", "\u3000", "x"));
  EXPECT_THAT(pieces("'"), ElementsAre("'"));
}

TEST(Unicode, ClassesHoldAsManyCodePointsAsUnicode16) {
  int64_t counts[4] = {}, words = 0;
  for (char32_t c = 0; c < kInvalidByte; ++c) {
    ++counts[static_cast<int>(char_class(c))];
    words += is_word_character(c);
  }
  EXPECT_EQ(counts[static_cast<int>(CharClass::letter)], 141028);
  EXPECT_EQ(counts[static_cast<int>(CharClass::number)], 1911);
  EXPECT_EQ(counts[static_cast<int>(CharClass::space)], 25);
  EXPECT_EQ(words, 144667);
}

TEST(Unicode, DecodesBothWaysAndNeverMoreThanIsThere) {
  for (char32_t c = 0; c < kInvalidByte; c += 7) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_utf8(text, c);
    const char *begin = text.data(), *end = begin + text.size();
    EXPECT_EQ(decode_utf8(begin, end).value, c);
    EXPECT_EQ(decode_utf8_before(begin, end).value, c);
    EXPECT_EQ(decode_utf8(begin, end).length, static_cast<int>(text.size()));
    if (text.size() > 1) {
      EXPECT_GE(decode_utf8(begin, end - 1).value, kInvalidByte);
    }
  }
  for (std::string bad :
       {"\x80", "\xc1\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf8"}) {
    EXPECT_GE(decode_utf8(bad.data(), bad.data() + bad.size()).value, kInvalidByte);
    EXPECT_EQ(decode_utf8(bad.data(), bad.data() + bad.size()).length, 1);
  }
}

TEST(ByteAlphabet, HoldsEveryByteOnce) {
  std::string bytes;
  for (int b = 0; b < 256; ++b) bytes += static_cast<char>(b);
  EXPECT_EQ(from_alphabet(to_alphabet(bytes)), bytes);
  EXPECT_EQ(to_alphabet(" a\n"), "ĠaĊ");
  EXPECT_EQ(from_alphabet("a b"), std::nullopt);
}

// The rule itself, without any cleverness.
std::vector<int32_t> merge_slowly(std::string_view word, const std::vector<MergeRule>& merges) {
  std::vector<int32_t> ids(word.begin(), word.end());
  while (true) {
    size_t best = merges.size(), at = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      for (size_t rank = 0; rank < best; ++rank) {
        if (merges[rank].left == ids[i] && merges[rank].right == ids[i + 1]) best = rank, at = i;
      }
    }
    if (best == merges.size()) return ids;
    ids[at] = merges[best].result;
    ids.erase(ids.begin() + static_cast<int64_t>(at) + 1);
  }
}

TEST(Bpe, ShortAndLongWordsFollowTheRule) {
  std::mt19937 random(1);
  std::array<int32_t, 256> bytes;
  for (int b = 0; b < 256; ++b) bytes[b] = b;
  for (int round = 0; round < 200; ++round) {
    std::vector<MergeRule> merges;
    std::vector<int32_t> symbols = {'a', 'b', 'c'};
    for (int32_t next = 256; next < 280; ++next) {
      MergeRule rule{symbols[random() % symbols.size()], symbols[random() % symbols.size()], next};
      bool known = false;
      for (const MergeRule& m : merges) known |= m.left == rule.left && m.right == rule.right;
      if (known) continue;
      merges.push_back(rule);
      symbols.push_back(next);
    }
    Bpe bpe(bytes, merges);
    std::string word;
    for (size_t n = 1 + random() % 150; n > 0; --n) word += static_cast<char>('a' + random() % 3);
    std::vector<int32_t> ids;
    bpe.encode(word, ids);
    EXPECT_EQ(ids, merge_slowly(word, merges)) << word;
  }
}

TEST_F(TextTest, AnyBytesComeBack) {
  auto tokenizer = trained();
  std::mt19937 random(2);
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    for (size_t n = random() % 80; n > 0; --n)
      text += static_cast<char>(i % 2 ? random() : "the \n\xe6\x97"[random() % 7]);
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
    const auto tokens = tokenizer->encode_with_offsets(text);
    const auto ids = tokenizer->encode(text);
    ASSERT_EQ(tokens.size(), ids.size());
    for (size_t k = 0; k < ids.size(); ++k) EXPECT_EQ(tokens[k].id, ids[k]);
  }
}

TEST_F(TextTest, AWordOfAMegabyteTakesNoMoreThanSeconds) {
  auto tokenizer = trained();
  const auto begin = std::chrono::steady_clock::now();
  const std::string text(1'000'000, 'e');
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST_F(TextTest, ALineOfTenMegabytes) {
  const std::string unit = "the quick brown fox's den, 42 times over, the théière, 日本 🙂 ";
  const std::string corpus = write("lines", unit + "\n" + unit);
  const std::unique_ptr<Tokenizer> tokenizers[] = {trained(),
                                                   train_wordpiece({corpus}, {.vocab_size = 200}),
                                                   train_unigram({corpus}, {.vocab_size = 60})};
  const size_t copies = 10'000'000 / unit.size() + 1;
  auto repeated = [&](size_t times) {
    std::string text;
    for (size_t i = 0; i < times; ++i) text += unit;
    return text;
  };
  const std::string line = repeated(copies), part = repeated(20'000);
  for (const auto& tokenizer : tokenizers) {
    auto expected = [&](size_t times) {
      const size_t one = tokenizer->encode(unit).size(),
                   two = tokenizer->encode(unit + unit).size();
      return one + (times - 1) * (two - one);
    };
    EXPECT_EQ(tokenizer->encode(line).size(), expected(copies)) << tokenizer->type();
    EXPECT_EQ(tokenizer->encoding(part, {}, false).size(), expected(20'000)) << tokenizer->type();
  }
  EXPECT_EQ(tokenizers[0]->decode(tokenizers[0]->encode(line)), line);
}

TEST_F(TextTest, BatchesHoldWhatTextsHoldOneByOne) {
  auto tokenizer = trained();
  std::vector<std::string> texts;
  for (int i = 0; i < 500; ++i)
    texts.push_back(std::string(i % 7, 'q') + "the den " + std::to_string(i));
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  for (int threads : {0, 1, 5}) {
    const auto ids = tokenizer->encode_batch(views, true, threads);
    const auto encodings = tokenizer->encodings(views, true, threads);
    ASSERT_EQ(ids.size(), texts.size());
    ASSERT_EQ(encodings.size(), texts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      EXPECT_EQ(ids[i], tokenizer->encode(texts[i], true));
      EXPECT_EQ(encodings[i].ids, ids[i]);
    }
  }
  EXPECT_TRUE(tokenizer->encode_batch({}).empty());
  // An error of one text is the batch's: this vocabulary holds neither "x" nor an unknown token.
  auto words = Tokenizer::load(write(
      "words.json", R"({"version":"1.0","model":{"type":"BPE","vocab":{"a":0},"merges":[]}})"));
  const std::string_view bad[] = {"a", "aa", "ax"};
  EXPECT_THROW(words->encode_batch(bad), base::ConfigError);
  EXPECT_THROW(words->encodings(bad), base::ConfigError);
}

TEST_F(TextTest, SpecialTokens) {
  auto tokenizer = trained();
  const int32_t end = *tokenizer->end_of_document();
  EXPECT_EQ(end, 0);
  EXPECT_EQ(tokenizer->token(end), "<|endoftext|>");
  EXPECT_EQ(tokenizer->find("<|endoftext|>"), end);
  EXPECT_TRUE(tokenizer->is_special(end));
  auto ids = tokenizer->encode("the<|endoftext|>fox");
  EXPECT_EQ(std::count(ids.begin(), ids.end(), end), 1);
  EXPECT_EQ(tokenizer->decode(ids), "the<|endoftext|>fox");
  EXPECT_EQ(tokenizer->decode(ids, true), "thefox");
  EXPECT_THROW(tokenizer->decode(std::vector<int32_t>{-1}), base::ConfigError);
  EXPECT_THROW(tokenizer->token(tokenizer->vocab_size()), base::ConfigError);
}

TEST_F(TextTest, SavedAndLoadedIsTheSame) {
  auto tokenizer = trained(
      {.vocab_size = 350, .special_tokens = {"<pad>", "a b", "<é>"}, .add_prefix_space = true});
  tokenizer->save((folder_ / "deep/saved").string());
  auto loaded = Tokenizer::load((folder_ / "deep/saved").string());
  loaded->save((folder_ / "again").string());
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    EXPECT_EQ(base::read_file((folder_ / "deep/saved" / name).string()),
              base::read_file((folder_ / "again" / name).string()));
  }
  EXPECT_EQ(loaded->end_of_document(), tokenizer->find("<pad>"));
  const std::string text = " the <é>a b théière<pad>";
  EXPECT_EQ(loaded->encode(text), tokenizer->encode(text));
  EXPECT_EQ(loaded->decode(loaded->encode(text)), text);
  EXPECT_EQ(loaded->decode(loaded->encode("the")), " the");  // the prefix space that was asked for
}

TEST_F(TextTest, TrainingRefusesWhatCannotBe) {
  EXPECT_THROW(trained({.vocab_size = 256}), base::ConfigError);
  EXPECT_THROW(trained({.vocab_size = 400, .special_tokens = {""}}), base::ConfigError);
  EXPECT_THROW(trained({.vocab_size = 400, .special_tokens = {"é"}}), base::ConfigError);
  EXPECT_THROW(train_bpe({(folder_ / "absent").string()}, {.vocab_size = 400}), base::IoError);
  EXPECT_THROW(trained({.vocab_size = 400, .max_token_length = -1}), base::ConfigError);
  const std::string text = write("text", "some text to learn from, some more text");
  EXPECT_THROW(train_wordpiece({text}, {.vocab_size = 9}), base::ConfigError);
  EXPECT_THROW(train_wordpiece({text}, {.vocab_size = 99, .limit_alphabet = 0}), base::ConfigError);
  EXPECT_THROW(train_wordpiece({text}, {.vocab_size = 99, .special_tokens = {"a"}}),
               base::ConfigError);
  EXPECT_THROW(train_unigram({text}, {.vocab_size = 9}), base::ConfigError);
  EXPECT_THROW(train_unigram({text}, {.vocab_size = 99, .special_tokens = {}}), base::ConfigError);
  EXPECT_THROW(train_unigram({text}, {.vocab_size = 99, .max_piece_length = 0}), base::ConfigError);
  EXPECT_THROW(train_unigram({text}, {.vocab_size = 99, .character_coverage = 1.5}),
               base::ConfigError);
  EXPECT_EQ(trained({.vocab_size = 257})->vocab_size(), 257);
  EXPECT_EQ(train_bpe({write("empty", "")}, {.vocab_size = 400})->vocab_size(), 257);
  EXPECT_EQ(trained({.vocab_size = 256, .special_tokens = {}})->end_of_document(), std::nullopt);
}

TEST_F(TextTest, MissingFilesAreNamed) {
  EXPECT_THAT(refusal<base::FormatError>(folder_.string()), HasSubstr("tokenizer.json"));
  EXPECT_THAT(refusal<base::FormatError>(folder_.string()), HasSubstr(folder_.string()));
  EXPECT_THAT(refusal<base::ConfigError>((folder_ / "no.json").string()),
              AllOf(HasSubstr("no.json: there is no such file"), HasSubstr("trireme tokenizer train")));
  const std::string vocabulary = write("vocab.json", "{\"a\": 0}");
  EXPECT_THAT(refusal<base::FormatError>(vocabulary), HasSubstr("merges.txt"));
  EXPECT_THAT(refusal<base::FormatError>(folder_.string()), HasSubstr("merges.txt"));
}

TEST_F(TextTest, DamagedVocabularyAndMergesAreNamed) {
  struct Case {
    std::string vocabulary, merges, file, place;
  };
  const std::string good = R"({"a": 0, "b": 1, "ab": 2})";
  for (const Case& c : std::initializer_list<Case>{
           {"{\"a\": 0,", "", "vocab.json", "not valid JSON"},
           {"", "", "vocab.json", "not valid JSON"},
           {"[1]", "", "vocab.json", "an object"},
           {R"({"a": "0"})", "", "vocab.json", "\"a\""},
           {R"({"a": -1})", "", "vocab.json", "\"a\""},
           {R"({"a": 99999999999})", "", "vocab.json", "\"a\""},
           {R"({"a": 0, "b": 0})", "", "vocab.json", "same id 0"},
           {R"({"a": 0, "a": 1})", "", "vocab.json", "appears twice"},
           {R"({"a": 0, "b": 2})", "", "vocab.json", "has id 1"},
           {R"({"a": 0, "": 1})", "", "vocab.json", "empty token"},
           {"{\"a\xff\": 0}", "", "vocab.json", "not valid JSON"},
           {good, "#version: 0.2\na b\na c\n", "merges.txt:3", "\"c\" is not in the vocabulary"},
           {good, "b a\n", "merges.txt:1", "\"ba\" is not in the vocabulary"},
           {good, "a b\nab\n", "merges.txt:2", "two tokens"},
           {good, "a b c\n", "merges.txt:1", "two tokens"},
           {good, "a b\n\nb a\n", "merges.txt:2", "two tokens"}}) {
    write("vocab.json", c.vocabulary);
    write("merges.txt", c.merges);
    EXPECT_THAT(refusal<base::FormatError>(folder_.string()), HasSubstr(c.file))
        << c.vocabulary << c.merges;
    EXPECT_THAT(refusal<base::FormatError>(folder_.string()), HasSubstr(c.place))
        << c.vocabulary << c.merges;
  }
  write("vocab.json", good);
  write("merges.txt", "#version: 0.2\r\na b\r\n");
  auto tokenizer = Tokenizer::load(folder_.string());
  EXPECT_THAT(tokenizer->encode("aba"), ElementsAre(2, 0));
  EXPECT_THROW(tokenizer->encode("abc"), base::ConfigError);  // never dropped silently
}

TEST_F(TextTest, DamagedTokenizerJsonIsNamed) {
  trained({.vocab_size = 270})->save(folder_.string());
  const std::string path = (folder_ / "tokenizer.json").string(), good = base::read_file(path);
  struct Change {
    std::string from, to, place;
  };
  for (const Change& c : std::initializer_list<Change>{
           {"\"version\": \"1.0\",", "", "\"version\" is missing"},
           {"\"vocab\": {", "\"vocab\": {\"new\": 270000000,", "model.vocab"},
           {"\"vocab\": {", "\"vocab\": {\"!\": 269,", "model.vocab"},
           {"\"merges\": [", "\"merges\": [\"a\",", "model.merges[0]"},
           {"\"merges\": [", "\"merges\": [[\"a\"],", "model.merges[0]"},
           {"\"merges\": [", "\"merges\": [[\"a\", 3],", "model.merges[0][1]"},
           {"\"merges\": [", "\"merges\": [[\"nowhere\", \"a\"],",
            "\"nowhere\" is not in the vocabulary"},
           {"\"id\": 0,", "\"id\": 7,", "added_tokens[0].id"},
           {"\"id\": 0,", "", "added_tokens[0]: \"id\" is missing"},
           {"\"content\": \"<|endoftext|>\"", "\"content\": \"<other>\"", "next free id is 270"},
           {"\"special\": true", "\"special\": 1", "added_tokens[0].special"},
           {"\"version\": \"1.0\",", "\"version\": \"1.0\", \"version\": \"1.0\",",
            "appears twice"},
           {"\"model\": {", "\"model\": {]", "not valid JSON"}}) {
    const size_t at = good.find(c.from);
    ASSERT_NE(at, std::string::npos) << c.from;
    write("tokenizer.json", std::string(good).replace(at, c.from.size(), c.to));
    EXPECT_THAT(refusal<base::FormatError>(path), HasSubstr(c.place)) << c.to;
    EXPECT_THAT(refusal<base::FormatError>(path), HasSubstr("tokenizer.json")) << c.to;
  }
  for (const Change& c : std::initializer_list<Change>{
           {"\"normalizer\": null", "\"normalizer\": {\"type\": \"NFX\"}", "normalizer \"NFX\""},
           {"\"type\": \"BPE\"", "\"type\": \"Morse\"", "model \"Morse\""},
           {"\"type\": \"ByteLevel\"", "\"type\": \"Spacy\"", "pre-tokenizer \"Spacy\""},
           {"\"truncation\": null", "\"truncation\": {\"max_length\": -1}", "truncation.max_length"},
           {"\"truncation\": null", "\"truncation\": {\"max_length\": 4, \"stride\": 4}",
            "stride 4"},
           {"\"padding\": null", "\"padding\": {}", "padding: \"strategy\" is missing"},
           {"\"dropout\": null", "\"dropout\": 1.5", "model.dropout: dropout 1.5"},
           {"\"version\": \"1.0\"", "\"version\": \"2.0\"", "2.0"},
           {"\"normalizer\": null",
            "\"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"AAE=\"}",
            "normalizer.precompiled_charsmap"},
           {"\"normalizer\": null",
            "\"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"Regex\": \"(\"}, \"content\": "
            "\"\"}",
            "normalizer.pattern.Regex"}}) {
    const size_t at = good.find(c.from);
    ASSERT_NE(at, std::string::npos) << c.from;
    write("tokenizer.json", std::string(good).replace(at, c.from.size(), c.to));
    EXPECT_THAT(refusal<base::FormatError>(path), HasSubstr(c.place)) << c.to;
  }
  write("tokenizer.json", good);
  std::filesystem::remove(folder_ / "special_tokens_map.json");  // counts before an older folder's configuration
  write("tokenizer_config.json", "{\"eos_token\": \"</s>\"}");
  EXPECT_THAT(refusal<base::FormatError>(path), HasSubstr("tokenizer_config.json: eos_token"));
  write("tokenizer_config.json", "{\"eos_token\": {\"content\": \"a\"}}");
  EXPECT_EQ(Tokenizer::load(path)->end_of_document(), Tokenizer::load(path)->find("a"));
}

TEST_F(TextTest, TruncatedFilesNeverLoadOrCrash) {
  trained({.vocab_size = 300})->save(folder_.string());
  const std::string path = (folder_ / "tokenizer.json").string(), good = base::read_file(path);
  std::mt19937 random(4);
  for (int i = 0; i < 200; ++i) {
    std::string damaged = good.substr(0, random() % good.size());
    if (i % 2) {
      damaged = good;
      for (int k = 0; k < 3; ++k) damaged[random() % damaged.size()] = static_cast<char>(random());
    }
    write("tokenizer.json", damaged);
    try {
      Tokenizer::load(path)->encode("the quick brown fox");
    } catch (const base::Error& e) {
      EXPECT_THAT(e.what(), ::testing::AnyOf(HasSubstr("tokenizer"), HasSubstr("vocabulary")));
      EXPECT_EQ(e.exit_code(), 2);
    }
  }
}

}  // namespace
}  // namespace trireme::text
