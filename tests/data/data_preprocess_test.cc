#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <fstream>
#include <set>
#include <vector>

#include "tests/data/data_support.h"
#include "trireme/base/io.h"
#include "trireme/base/philox.h"
#include "trireme/data/indexed.h"
#include "trireme/data/preprocess.h"
#include "trireme/data/split.h"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;
using base::ConfigError;
using base::FormatError;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A token a byte; "!" ends a document; a text may be cut anywhere. `vocab_size` may claim more.
class Bytes : public text::Tokenizer {
 public:
  explicit Bytes(int32_t vocab_size = 256, bool has_end = true)
      : vocab_size_(vocab_size), has_end_(has_end) {}
  std::vector<int32_t> encode(std::string_view text, bool) const override {
    if (text == "unknown") throw ConfigError("no token for it");
    std::vector<int32_t> ids;
    for (char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::optional<size_t> last_cut(std::string_view text) const override {
    return text.size() < 2 ? std::nullopt : std::optional(text.size() / 2 + 1);
  }
  std::vector<int32_t> encode_rest(std::string_view text) const override {
    return encode(text, false);
  }
  std::vector<int32_t> sample(std::string_view text, uint64_t) const override {
    return encode(text, false);
  }
  std::vector<text::Token> encode_with_offsets(std::string_view, bool) const override { return {}; }
  text::Encoding encoding(std::string_view, std::optional<std::string_view>, bool) const override {
    return {};
  }
  text::Encoding encoding(std::string_view, std::optional<std::string_view>,
                          const text::Truncation&) const override {
    return {};
  }
  std::vector<text::Encoding> encodings(std::span<const std::string_view>, bool,
                                        int) const override {
    return {};
  }
  std::string type() const override { return "bytes"; }
  std::string decode(std::span<const int32_t> ids, bool) const override {
    return {ids.begin(), ids.end()};
  }
  std::string token(int32_t id) const override { return std::to_string(id); }
  std::optional<int32_t> find(std::string_view) const override { return std::nullopt; }
  bool is_special(int32_t) const override { return false; }
  int32_t vocab_size() const override { return vocab_size_; }
  std::optional<int32_t> end_of_document() const override {
    return has_end_ ? std::optional<int32_t>('!') : std::nullopt;
  }
  void save(const std::string&) const override {}

 private:
  int32_t vocab_size_;
  bool has_end_;
};

void put(const std::string& path, const std::string& text) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

std::vector<std::string> documents(const std::string& prefix) {
  IndexedDataset data(prefix);
  std::vector<std::string> texts;
  for (int64_t d = 0; d < data.documents(); ++d) {
    std::vector<int64_t> ids(data.document_begin(d + 1) - data.document_begin(d));
    data.read(data.document_begin(d), std::ssize(ids), ids.data());
    texts.emplace_back(ids.begin(), ids.end());
  }
  return texts;
}

/// About `bytes` bytes of JSON lines with documents of many sizes.
std::string many_lines(int64_t bytes) {
  std::string text;
  for (uint64_t i = 0; std::ssize(text) < bytes; ++i) {
    text += fmt::format("{{\"id\": {}, \"text\": \"document {} {}\"}}\n", i, i,
                        std::string(base::uniform_below(7, i, 3000), 'x'));
  }
  return text;
}

TEST(Inputs, FilesFoldersAndPatterns) {
  TemporaryFolder folder;
  for (const char* name :
       {"a.txt", "src/b.py", "src/deep/er/c.py", "src/deep/d.txt", "src/.hidden/e.py", ".f.py"}) {
    put(folder / name, "x");
  }
  auto expand = [&](const std::string& pattern) {
    std::vector<std::string> names;
    for (const auto& path : expand_inputs({folder / pattern}))
      names.push_back(fs::relative(path, folder.path()));
    return names;
  };
  EXPECT_THAT(expand("a.txt"), ElementsAre("a.txt"));
  EXPECT_THAT(expand("src"), ElementsAre("src/b.py", "src/deep/d.txt", "src/deep/er/c.py"));
  EXPECT_THAT(expand("src/"), ElementsAre("src/b.py", "src/deep/d.txt", "src/deep/er/c.py"));
  EXPECT_THAT(expand("**/*.py"), ElementsAre("src/b.py", "src/deep/er/c.py"));
  EXPECT_THAT(expand("src/*.py"), ElementsAre("src/b.py"));
  EXPECT_THAT(expand("src/**/?.txt"), ElementsAre("src/deep/d.txt"));
  EXPECT_THAT(expand("s[r]c/*/d.txt"), ElementsAre("src/deep/d.txt"));
  for (const char* nothing : {"absent", "*.rs", "absent/**"}) {
    EXPECT_THAT(message_of<ConfigError>([&] { expand(nothing); }), HasSubstr("names no file"));
  }
}

TEST(Preprocess, AFileOfTextIsADocument) {
  TemporaryFolder folder;
  put(folder / "in/b.txt", "second\n");
  put(folder / "in/a.txt", "first \xff");
  put(folder / "in/c.txt", "");
  auto summary = preprocess(
      Bytes(), {.inputs = {folder / "in"}, .output = folder / "out/data", .append_eod = true});
  EXPECT_THAT(documents(folder / "out/data"), ElementsAre("first \xff!", "second\n!"));
  EXPECT_EQ(IndexedDataset(folder / "out/data").dtype(), base::DType::u16);
  EXPECT_EQ(summary.documents, 2);
  EXPECT_EQ(summary.tokens, 16);
  EXPECT_EQ(summary.text_bytes, 14);
  EXPECT_EQ(summary.empty, 1);
  EXPECT_EQ(summary.outputs.at(0).prefix, folder / "out/data");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "out"), fs::directory_iterator()), 2);

  preprocess(Bytes(65500), {.inputs = {folder / "in"}, .output = folder / "out/wide"});
  EXPECT_EQ(IndexedDataset(folder / "out/wide").dtype(), base::DType::i32);
  EXPECT_THAT(documents(folder / "out/wide"), ElementsAre("first \xff", "second\n"));
}

TEST(Preprocess, JsonLines) {
  TemporaryFolder folder;
  put(folder / "a.jsonl",
      "{\"text\": \"tab\\t\\u00e9 \\ud83d\\ude00\", \"n\": 1}\r\n"
      "\n"
      "{\"meta\": {\"text\": \"no\"}, \"text\": \"second\"}\n"
      "{\"text\": \"\"}\n"
      "{\"text\": \"without a line's end\"}");
  auto summary = preprocess(Bytes(), {.inputs = {folder / "a.jsonl"}, .output = folder / "d"});
  EXPECT_THAT(documents(folder / "d"),
              ElementsAre("tab\t\xc3\xa9 \xf0\x9f\x98\x80", "second", "without a line's end"));
  EXPECT_EQ(summary.empty, 1);

  put(folder / "b.txt", "{\"body\": \"x\"}\n{\"body\": \"y\"}\n");
  preprocess(Bytes(), {.inputs = {folder / "b.txt"},
                       .output = folder / "d",
                       .format = InputFormat::jsonl,
                       .keys = {"body"},
                       .overwrite = true});
  EXPECT_THAT(documents(folder / "d"), ElementsAre("x", "y"));
}

TEST(Preprocess, SeveralKeysMakeADatasetEach) {
  TemporaryFolder folder;
  put(folder / "in.jsonl",
      "{\"text\": \"one\", \"title\": \"A\"}\n{\"text\": \"two\", \"title\": \"\"}\n"
      "{\"text\": \"six\", \"title\": \"B\"}\n");
  const auto summary = preprocess(Bytes(), {.inputs = {folder / "in.jsonl"},
                                            .output = folder / "out",
                                            .keys = {"text", "title"},
                                            .append_eod = true});
  EXPECT_THAT(documents(folder / "out_text"), ElementsAre("one!", "two!", "six!"));
  EXPECT_THAT(documents(folder / "out_title"), ElementsAre("A!", "B!"));
  EXPECT_EQ(summary.documents, 5);
  EXPECT_EQ(summary.empty, 1);
  EXPECT_EQ(summary.text_bytes, 11);
  EXPECT_THAT(message_of<FormatError>([&] {
                preprocess(Bytes(), {.inputs = {folder / "in.jsonl"},
                                     .output = folder / "o2",
                                     .keys = {"text", "body"}});
              }),
              HasSubstr("in.jsonl:1: no key \"body\"; the object has: text, title"));
  put(folder / "in.txt", "plain");
  EXPECT_THAT(message_of<ConfigError>([&] {
                preprocess(Bytes(), {.inputs = {folder / "in.txt"},
                                     .output = folder / "o3",
                                     .keys = {"text", "body"}});
              }),
              HasSubstr("is plain text, which has no keys"));
}

TEST(Preprocess, SentencesBecomeSequences) {
  TemporaryFolder folder;
  put(folder / "in.jsonl",
      "{\"text\": \"Dr. No came. He left! So?\"}\n{\"text\": [\"Given\", \"as a list\"]}\n");
  preprocess(Bytes(), {.inputs = {folder / "in.jsonl"},
                       .output = folder / "out",
                       .split_sentences = true,
                       .append_eod = true});
  IndexedDataset data(folder / "out");
  ASSERT_EQ(data.documents(), 2);
  std::vector<std::string> sentences;
  for (int64_t s = 0; s < data.sequences(); ++s) {
    std::vector<int64_t> ids(data.length(s));
    data.read(data.begin(s), data.length(s), ids.data());
    sentences.emplace_back(ids.begin(), ids.end());
  }
  EXPECT_THAT(sentences, ElementsAre("Dr. No came.", "He left!", "So?!", "Given", "as a list!"));
  EXPECT_EQ(data.first_sequence(1), 3);
}

TEST(Preprocess, LeavesDuplicatesOutWhenAsked) {
  TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 3000; ++i)
    text += fmt::format("{{\"text\": \"number {}\"}}\n", i % 700 * (i % 3));
  put(folder / "in.jsonl", text);
  std::set<std::string> bytes;
  for (int workers : {1, 3}) {
    for (int64_t part_bytes : {int64_t{1}, int64_t{1} << 30}) {
      const auto summary = preprocess(Bytes(), {.inputs = {folder / "in.jsonl"},
                                                .output = folder / "out",
                                                .dedupe = true,
                                                .overwrite = true,
                                                .workers = workers,
                                                .part_bytes = part_bytes});
      EXPECT_EQ(summary.documents + summary.duplicates, 3000);
      const auto all = documents(folder / "out");
      EXPECT_EQ(std::set<std::string>(all.begin(), all.end()).size(), all.size());
      bytes.insert(base::read_file(folder / "out.bin"));
    }
  }
  EXPECT_EQ(bytes.size(), 1u);
}

TEST(Preprocess, UnpacksGzipAndZstd) {
  TemporaryFolder folder;
  const std::string text = many_lines(5 << 20);
  put(folder / "in.jsonl", text);
  for (const char* tool : {"gzip -k", "zstd -q -k"}) {
    if (std::system(fmt::format("cd {} && {} in.jsonl 2>/dev/null", folder.path().string(), tool)
                        .c_str()) != 0)
      continue;
    const std::string packed = folder / (tool[0] == 'g' ? "in.jsonl.gz" : "in.jsonl.zst");
    preprocess(Bytes(),
               {.inputs = {folder / "in.jsonl"}, .output = folder / "plain", .overwrite = true});
    preprocess(Bytes(), {.inputs = {packed},
                         .output = folder / "packed",
                         .overwrite = true,
                         .workers = 2,
                         .part_bytes = 1 << 20});
    EXPECT_EQ(base::read_file(folder / "plain.bin"), base::read_file(folder / "packed.bin"))
        << tool;
    EXPECT_EQ(base::read_file(folder / "plain.idx"), base::read_file(folder / "packed.idx"))
        << tool;
    const std::string whole = base::read_file(packed);
    put(packed, whole.substr(0, whole.size() / 2));
    EXPECT_THAT(message_of<FormatError>(
                    [&] { preprocess(Bytes(), {.inputs = {packed}, .output = folder / "cut"}); }),
                AllOf(HasSubstr(packed), HasSubstr("cut off")))
        << tool;
  }
  put(folder / "not.jsonl.gz", "{\"text\": \"x\"}\n");
  EXPECT_THAT(message_of<FormatError>([&] {
                preprocess(Bytes(), {.inputs = {folder / "not.jsonl.gz"}, .output = folder / "o"});
              }),
              HasSubstr("is not compressed by gzip"));
}

TEST(Preprocess, BytesDoNotDependOnWorkersOrParts) {
  TemporaryFolder folder;
  put(folder / "in/a.jsonl", many_lines(3 << 20));
  put(folder / "in/b.txt", many_lines(1 << 20));
  put(folder / "in/c.jsonl", many_lines((2 << 20) + 12345));
  std::string index, bin;
  for (int64_t part : {int64_t{1} << 40, int64_t{1} << 20}) {
    for (int workers : {1, 2, 4}) {
      int64_t seen = 0, total = 0;
      preprocess(Bytes(), {.inputs = {folder / "in"},
                           .output = folder / "d",
                           .append_eod = true,
                           .overwrite = true,
                           .workers = workers,
                           .part_bytes = part,
                           .progress = [&](const PreprocessProgress& p) {
                             seen = p.bytes, total = p.total_bytes;
                           }});
      EXPECT_EQ(seen, total);
      EXPECT_GT(total, 6 << 20);
      std::string new_index = base::read_file(folder / "d.idx"),
                  new_bin = base::read_file(folder / "d.bin");
      EXPECT_TRUE(index.empty() || (index == new_index && bin == new_bin)) << workers << " workers";
      index = new_index, bin = new_bin;
    }
  }
}

TEST(Preprocess, SplitsDocumentsAsMegatronDoes) {
  TemporaryFolder folder;
  std::string lines;
  for (int i = 0; i < 50; ++i) lines += fmt::format("{{\"text\": \"{}\"}}\n", i);
  put(folder / "a.jsonl", lines);
  auto split = [&](const std::string& shares) {
    auto summary = preprocess(Bytes(), {.inputs = {folder / "a.jsonl"},
                                        .output = folder / "d",
                                        .split = parse_split(shares),
                                        .overwrite = true});
    std::vector<int64_t> counts;
    for (const auto& output : summary.outputs) counts.push_back(output.documents);
    return counts;
  };
  EXPECT_THAT(split("95,5"), ElementsAre(48, 2));   // 47.5 rounds to the even 48
  EXPECT_THAT(split("85,15"), ElementsAre(42, 8));  // 42.5 to 42
  EXPECT_THAT(split("8,1,1"), ElementsAre(40, 5, 5));
  EXPECT_THAT(split("3"), ElementsAre(50));
  EXPECT_EQ(documents(folder / "d_valid").front(), "40");
  EXPECT_EQ(documents(folder / "d_test").back(), "49");
  EXPECT_FALSE(fs::exists(folder / "d.idx"));
  EXPECT_THAT(message_of<ConfigError>([&] { split("999,1"); }),
              AllOf(HasSubstr("_valid gets no document of 50"), HasSubstr("larger share")));
  EXPECT_FALSE(fs::exists(folder / "d.parts"));
  for (const char* bad : {"", "95,", "95;5", "95,0", "95,-5", "nan", "1,1,1,1", "a"}) {
    EXPECT_THROW(parse_split(bad), ConfigError) << bad;
  }
}

TEST(Preprocess, ReplacesADatasetOnlyWhenAsked) {
  TemporaryFolder folder;
  put(folder / "a.txt", "first");
  put(folder / "b.txt", "second");
  PreprocessOptions options{
      .inputs = {folder / "a.txt", folder / "b.txt"}, .output = folder / "d", .split = {1, 1}};
  preprocess(Bytes(), options);
  options.append_eod = true;
  EXPECT_THAT(message_of<ConfigError>([&] { preprocess(Bytes(), options); }),
              AllOf(HasSubstr("d_train.idx exists already"), HasSubstr("--overwrite")));
  EXPECT_THAT(documents(folder / "d_train"), ElementsAre("first"));
  EXPECT_EQ(folder.entries(), 6) << "two inputs, two datasets";
  options.overwrite = true;
  preprocess(Bytes(), options);
  EXPECT_THAT(documents(folder / "d_train"), ElementsAre("first!"));
}

TEST(Preprocess, BadLinesAreNamedByFileAndLine) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{\"text\": \"open", "not valid JSON"},
      {"[1, 2]", "not an object"},
      {"{\"body\": \"x\", \"n\": 1}", "no key \"text\"; the object has: body, n"},
      {"{\"text\": 5}", "key \"text\" holds no string"},
      {"{\"text\": \"\xff\"}", "UTF-8"},
      {"{\"text\": \"a\"} {\"text\": \"b\"}", "not valid JSON"},
      {"{\"text\": \"unknown\"}", "no token for it"},
  };
  for (const auto& [line, expected] : cases) {
    TemporaryFolder folder;
    std::string good = many_lines(2 << 20);
    const auto lines = std::count(good.begin(), good.end(), '\n');
    put(folder / "in/a.jsonl", good + line + "\n" + good + line + "\n");
    PreprocessOptions options{.inputs = {folder / "in"}, .output = folder / "d", .workers = 2};
    EXPECT_THAT(message_of<FormatError>([&] { preprocess(Bytes(), options); }),
                AllOf(HasSubstr(fmt::format("in/a.jsonl:{}: ", lines + 1)), HasSubstr(expected),
                      HasSubstr("skip")));
    EXPECT_EQ(folder.entries(), 1) << "nothing is left of the output";
    options.skip_errors = true;
    auto summary = preprocess(Bytes(), options);
    EXPECT_EQ(summary.documents, 2 * lines);
    EXPECT_EQ(summary.skipped, 2);
    ASSERT_EQ(summary.errors.size(), 2u);
    EXPECT_THAT(summary.errors[1], HasSubstr(fmt::format("a.jsonl:{}: ", 2 * lines + 2)));
  }
}

TEST(Preprocess, RefusesWhatItCannotDo) {
  TemporaryFolder folder;
  put(folder / "in/a.bin", std::string("a\0b", 3));
  put(folder / "empty.txt", "");
  EXPECT_THAT(message_of<FormatError>([&] {
                preprocess(Bytes(), {.inputs = {folder / "in"}, .output = folder / "d"});
              }),
              HasSubstr("a.bin: holds zero bytes"));
  EXPECT_THAT(message_of<ConfigError>([&] {
                preprocess(Bytes(), {.inputs = {folder / "empty.txt"}, .output = folder / "d"});
              }),
              HasSubstr("no document"));
  EXPECT_THAT(message_of<ConfigError>([&] {
                preprocess(Bytes(256, false),
                           {.inputs = {folder / "in"}, .output = folder / "d", .append_eod = true});
              }),
              HasSubstr("--append-eod"));
  EXPECT_THROW(preprocess(Bytes(), {.inputs = {folder / "in"}, .output = folder / "empty.txt/d"}),
               base::IoError);
  EXPECT_THROW(
      preprocess(Bytes(), {.inputs = {folder / "in"}, .output = folder / "d", .workers = -1}),
      ConfigError);
  EXPECT_EQ(folder.entries(), 2);
}

/// Runs `options` in a child process that kills itself after 7 MB, then here, where it goes on from
/// the last finished part; `whole` stands for a run that was never killed.
PreprocessSummary go_on_after_a_kill(const PreprocessOptions& given) {
  PreprocessOptions options = given;
  pid_t child = ::fork();
  if (child == 0) {
    options.progress = [](const PreprocessProgress& p) {
      if (p.bytes > 7 << 20) ::kill(::getpid(), SIGKILL);
    };
    preprocess(Bytes(), options);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_TRUE(fs::exists(options.output + ".parts"));
  auto summary = preprocess(Bytes(), given);
  EXPECT_GE(summary.resumed_bytes, 4 << 20);
  EXPECT_FALSE(fs::exists(options.output + ".parts"));
  return summary;
}

void expect_equal(const PreprocessSummary& a, const PreprocessSummary& b) {
  ASSERT_EQ(a.outputs.size(), b.outputs.size());
  for (size_t i = 0; i < a.outputs.size(); ++i) {
    for (const char* ending : {".idx", ".bin"})
      EXPECT_TRUE(base::read_file(a.outputs[i].prefix + ending) ==
                  base::read_file(b.outputs[i].prefix + ending))
          << a.outputs[i].prefix << ending;
  }
  EXPECT_EQ(a.documents, b.documents);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.text_bytes, b.text_bytes);
  EXPECT_EQ(a.empty, b.empty);
  EXPECT_EQ(a.duplicates, b.duplicates);
  EXPECT_EQ(a.skipped, b.skipped);
  EXPECT_EQ(a.errors, b.errors);
}

// A child process is killed while it works; the same call then goes on from the last finished part.
TEST(Preprocess, GoesOnAfterAKill) {
  TemporaryFolder folder;
  put(folder / "in/a.jsonl", many_lines(12 << 20));
  PreprocessOptions options{
      .inputs = {folder / "in"}, .output = folder / "whole", .workers = 2, .part_bytes = 2 << 20};
  const auto whole = preprocess(Bytes(), options);
  options.output = folder / "d";
  expect_equal(go_on_after_a_kill(options), whole);
}

// With all that a part must remember: what was seen before, lines, errors, several datasets.
TEST(Preprocess, GoesOnAfterAKillWithEveryOption) {
  TemporaryFolder folder;
  std::string lines;
  for (uint64_t i = 0; std::ssize(lines) < 12 << 20; ++i) {
    const uint64_t again = i % 3 == 2 ? i / 2 : i;  // duplicates, some of them of other parts
    lines += fmt::format("{{\"title\": \"T {}. A b? C!\", \"text\": \"Document {}. {} Then? More.\"}}\n",
                         again, again, std::string(base::uniform_below(7, again, 2000), 'x'));
    if (i % 500 == 499) lines += "bad\n{\"title\": \"\", \"text\": \"\"}\n";
  }
  put(folder / "in/a.jsonl", lines);
  for (bool packed : {false, true}) {
    if (packed && std::system(fmt::format("gzip {}", folder / "in/a.jsonl").c_str()) != 0) return;
    PreprocessOptions options{.inputs = {folder / "in"},
                              .output = folder / "whole",
                              .keys = {"text", "title"},
                              .split_sentences = true,
                              .dedupe = true,
                              .append_eod = true,
                              .split = {9, 1},
                              .skip_errors = true,
                              .overwrite = true,
                              .workers = 1,
                              .part_bytes = 2 << 20};
    const auto whole = preprocess(Bytes(), options);
    EXPECT_GT(whole.duplicates, 1000);
    EXPECT_GT(whole.skipped, 10);
    EXPECT_EQ(whole.outputs.size(), 4u);
    options.output = folder / "d";
    options.workers = 8;
    expect_equal(go_on_after_a_kill(options), whole);
  }
}

// Plain text is cut where its tokenizer allows; what comes out is the document in one.
TEST(Preprocess, LongTextComesInParts) {
  TemporaryFolder folder;
  const std::string first = many_lines(5 << 20), second = many_lines((3 << 20) + 17);
  put(folder / "in/1.txt", first);
  put(folder / "in/2.txt", "short");
  put(folder / "in/3.txt", second);
  put(folder / "in/4.txt", first);  // again
  put(folder / "in/5.txt", second + std::string("\0", 1));
  put(folder / "in/6.txt", std::string(1, '\0') + second);
  put(folder / "in/7.txt", "unknown");
  put(folder / "in/8.txt", second.substr(1));
  for (int workers : {1, 8}) {
    for (int64_t part_bytes : {int64_t{1} << 40, int64_t{1} << 20}) {
      PreprocessOptions options{.inputs = {folder / "in"},
                                .output = folder / "d",
                                .dedupe = true,
                                .append_eod = true,
                                .skip_errors = true,
                                .overwrite = true,
                                .workers = workers,
                                .part_bytes = part_bytes};
      const auto summary = preprocess(Bytes(), options);
      EXPECT_THAT(documents(folder / "d"),
                  ElementsAre(first + "!", "short!", second + "!", second.substr(1) + "!"));
      EXPECT_EQ(summary.duplicates, 1);
      EXPECT_EQ(summary.skipped, 3);
      EXPECT_EQ(summary.documents, 4);
      EXPECT_EQ(summary.tokens, std::ssize(first) + 2 * std::ssize(second) + 8);
      EXPECT_EQ(summary.text_bytes, std::ssize(first) + 2 * std::ssize(second) + 4);
      options.skip_errors = false;
      EXPECT_THAT(message_of<FormatError>([&] { preprocess(Bytes(), options); }),
                  HasSubstr("5.txt: holds zero bytes"));
    }
  }
}

// A text so long that its ids are written before its end is known, which is then taken back.
TEST(Preprocess, TakesAVeryLongDocumentBack) {
  TemporaryFolder folder;
  const std::string text = many_lines(6 << 20);
  put(folder / "in/1.txt", "before");
  put(folder / "in/2.txt", text + std::string("\0", 1));
  put(folder / "in/3.txt", text);
  put(folder / "in/4.txt", text);
  put(folder / "in/5.txt", "behind");
  const auto summary = preprocess(Bytes(), {.inputs = {folder / "in"},
                                            .output = folder / "d",
                                            .dedupe = true,
                                            .skip_errors = true});
  EXPECT_THAT(documents(folder / "d"), ElementsAre("before", text, "behind"));
  EXPECT_EQ(summary.duplicates, 1);
  EXPECT_EQ(summary.skipped, 1);
  EXPECT_EQ(IndexedDataset(folder / "d").sequences(), 3);
}

TEST(Preprocess, LongTextIsCutBetweenSentences) {
  TemporaryFolder folder;
  std::string text, lines = "{\"text\": \"";
  for (int i = 0; std::ssize(text) < 4 << 20; ++i) {
    const std::string paragraph = fmt::format("Sentence {}. Dr. No asks: why? lower case {}", i,
                                              std::string(i % 900, 'y'));
    text += paragraph + (i % 7 == 0 ? "\n" : "\n\n");
    lines += paragraph + (i % 7 == 0 ? "\\n" : "\\n\\n");
  }
  put(folder / "a.txt", text);
  put(folder / "a.jsonl", lines + "\"}\n");
  for (const char* name : {"a.txt", "a.jsonl"})
    preprocess(Bytes(), {.inputs = {folder / name},
                         .output = folder / (name + std::string(".d")),
                         .split_sentences = true,
                         .append_eod = true});
  EXPECT_GT(IndexedDataset(folder / "a.txt.d").sequences(), 5000);
  for (const char* ending : {".idx", ".bin"})
    EXPECT_TRUE(base::read_file(folder / ("a.txt.d" + std::string(ending))) ==
                base::read_file(folder / ("a.jsonl.d" + std::string(ending))));
}

#if defined(__has_feature)  // Clang
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TRIREME_SANITIZED
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TRIREME_SANITIZED
#endif
#ifndef TRIREME_SANITIZED  // the sanitizers need memory of their own
/// A token for each 64 bytes, so that what is written is small.
class Sparse : public Bytes {
 public:
  std::vector<int32_t> encode(std::string_view text, bool) const override {
    return std::vector<int32_t>(text.size() / 64, 5);
  }
};

/// Bytes of memory that a process needs at most for `run`.
template <class Run>
int64_t peak_memory(Run&& run) {
  const pid_t child = ::fork();
  if (child == 0) {
    run();
    ::_exit(0);
  }
  int status = 0;
  rusage usage{};
  ::wait4(child, &status, 0, &usage);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  return usage.ru_maxrss * 1024;
}

// Of a file or a document of any size a few pieces are in memory.
TEST(Preprocess, MemoryDoesNotGrowWithTheInput) {
  TemporaryFolder folder;
  constexpr int64_t kSize = 256 << 20;
  const std::string block(1 << 20, 'x');
  const std::string line = "{\"text\": \"" + std::string(4000, 'y') + "\"}\n";
  for (const char* name : {"a.txt", "a.jsonl"}) {
    std::ofstream out(folder / name, std::ios::binary);
    const std::string& unit = name[2] == 't' ? block : line;
    for (int64_t written = 0; written < kSize; written += std::ssize(unit)) out << unit;
  }
  put(folder / "small.txt", "x");
  const auto peak = [&](const char* name) {
    return peak_memory([&] {
      preprocess(Sparse(), {.inputs = {folder / name},
                            .output = folder / "d",
                            .dedupe = true,
                            .overwrite = true,
                            .workers = 2});
    });
  };
  const int64_t nothing = peak_memory([] {});
  EXPECT_LT(peak("a.txt") - nothing, 64 << 20);
  EXPECT_LT(peak("a.jsonl") - nothing, 64 << 20);
}
#endif

// Parts of another job are of no use; a bad line found late does not cost what was done before it.
TEST(Preprocess, PartsServeTheSameJobOnly) {
  TemporaryFolder folder;
  put(folder / "in/a.jsonl", many_lines(3 << 20) + "bad\n" + many_lines(1 << 20));
  PreprocessOptions options{
      .inputs = {folder / "in"}, .output = folder / "d", .workers = 1, .part_bytes = 1 << 20};
  EXPECT_THROW(preprocess(Bytes(), options), FormatError);
  EXPECT_TRUE(fs::exists(folder / "d.parts"));
  EXPECT_FALSE(fs::exists(folder / "d.idx"));
  options.skip_errors = true;
  PreprocessOptions other = options;
  other.append_eod = true;
  EXPECT_GE(preprocess(Bytes(), options).resumed_bytes, 2 << 20);
  const auto plain = documents(folder / "d");

  options.skip_errors = false;
  options.overwrite = other.overwrite = true;
  EXPECT_THROW(preprocess(Bytes(), options), FormatError);
  EXPECT_EQ(preprocess(Bytes(), other).resumed_bytes, 0);
  EXPECT_EQ(documents(folder / "d").front(), plain.front() + "!");
  EXPECT_EQ(documents(folder / "d").size(), plain.size());
}

}  // namespace
}  // namespace trireme::data
