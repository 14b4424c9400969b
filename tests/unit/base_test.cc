#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/base/hash.h"
#include "trireme/base/hasher.h"
#include "trireme/base/io.h"
#include "trireme/base/json.h"
#include "trireme/base/log.h"
#include "trireme/base/median.h"
#include "trireme/base/philox.h"
#include "trireme/base/threads.h"
#include "trireme/base/wording.h"

namespace trireme::base {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// Known answers of Random123's kat_vectors for philox4x32-10.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox(0, {0, 0, 0, 0}),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(~uint64_t{0}, {~0u, ~0u, ~0u, ~0u}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(0x299f31d0a4093822, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Hash, AsText) {
  for (uint64_t hash : {uint64_t{0}, uint64_t{0xABC}, ~uint64_t{0}}) EXPECT_EQ(hash_from_text(hash_to_text(hash)), hash);
  EXPECT_EQ(hash_to_text(0xABC), "0000000000000abc");
  for (const char* text : {"", "12 ", "12x", "11112222333344445"}) EXPECT_THROW(hash_from_text(text), FormatError) << text;
}

TEST(Hash, OfPiecesIsThatOfTheWhole) {
  std::string text(5000, 'x');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 31);
  Hasher hasher;
  EXPECT_EQ(hasher.hash(), hash_text(""));
  for (size_t at = 0, size = 1; at < text.size(); at += size, size = size * 3 % 701) {
    size = std::min(size, text.size() - at);
    hasher.add(text.data() + at, size);
  }
  EXPECT_EQ(hasher.hash(), hash_text(text));
  Hasher seeded(7);
  seeded.add(text.data(), 3000);
  seeded.add(text.data() + 3000, 2000);
  EXPECT_EQ(seeded.hash(), hash_text(text, 7));
}

TEST(Folders, AreMadeWithThoseAbove) {
  test::TemporaryFolder folder;
  make_folders(folder / "a/b");
  make_folders(folder / "a/b");
  EXPECT_TRUE(std::filesystem::is_directory(folder / "a/b"));
  write_file_atomic(folder / "file", "");
  EXPECT_THROW(make_folders(folder / "file/c"), IoError);
}

TEST(Median, OfOddEvenAndNone) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 3, 2}), 3);
  EXPECT_EQ(median({}), 0);
}

TEST(ParallelFor, RethrowsTheErrorOfTheLowestIndex) {
  std::vector<int> seen(100);
  parallel_for(100, 4, [&](int64_t i) { seen[i] = 1; });
  EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), 100);
  EXPECT_THROW(parallel_for(10, 3, [](int64_t i) { if (i == 4) throw std::runtime_error("four"); }),
               std::runtime_error);
}

// docs/architecture.md section 1.
TEST(Errors, EachClassHasItsExitCode) {
  EXPECT_EQ(ConfigError("").exit_code(), 2);
  EXPECT_EQ(FormatError("").exit_code(), 2);
  EXPECT_EQ(CommError("").exit_code(), 3);
  EXPECT_EQ(IoError("").exit_code(), 4);
  EXPECT_EQ(InternalError("").exit_code(), 70);
}

std::string refusal(std::string_view text) {
  try {
    parse_json(text, "a.json");
  } catch (const FormatError& e) {
    return e.what();
  }
  return "read";
}

TEST(Json, ErrorsSayThePlaceAndNothingOfTheLibrary) {
  EXPECT_THAT(refusal("{\n \"a\": 1,\n \"b\": nul\n}"),
              StartsWith("a.json:3:10: not valid JSON: "));
  EXPECT_THAT(refusal(""), StartsWith("a.json:1:1: not valid JSON: "));
  EXPECT_THAT(refusal("[1,\n"), StartsWith("a.json:2:1: not valid JSON: "));
  EXPECT_THAT(refusal("{\"a\": 1, \"a\": 2}"), HasSubstr("key \"a\" appears twice"));
  for (const char* bad : {"", "{", "[1 2]", "\"\xff\"", "[1e999]", "{\"a\" 1}", "nonsense"}) {
    EXPECT_THAT(refusal(bad), AllOf(StartsWith("a.json:"), Not(HasSubstr("json.exception")),
                                    Not(HasSubstr("parse error"))));
  }
  EXPECT_LT(refusal(std::string(1000, 'x')).size(), 400u);
  try {
    parse_json("{\"a\": 1}", "a.json").at("a").get<std::string>();
    FAIL();
  } catch (const nlohmann::json::exception& e) {
    EXPECT_EQ(message_of(e), "type must be string, but is number");
  }
}

TEST(Wording, CountsAndShowsWhatATerminalMayShow) {
  EXPECT_EQ(counted(1, "stage"), "1 stage");
  EXPECT_EQ(counted(2, "micro-batch"), "2 micro-batches");
  EXPECT_EQ(printable("plain, äöü €"), "plain, äöü €");
  EXPECT_EQ(printable(std::string("\xff\0\n\x1b[m\xc3", 7)), "\\xff\\x00\\x0a\\x1b[m\\xc3");
  EXPECT_EQ(printable(std::string(100, 'x')), std::string(60, 'x') + "...");
}

TEST(Log, EachLineOfATableHasThePrefix) {
  testing::internal::CaptureStderr();
  Logger("rank 0").info("{}", "head\nrow\n");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "[rank 0] head\n[rank 0] row\n");
}

TEST(ScratchFile, IsZeroedMemoryThatLeavesNothing) {
  const auto folder = std::filesystem::temp_directory_path() / "trireme-scratch-test";
  std::filesystem::create_directory(folder);
  {
    ScratchFile scratch(folder, 10000);
    ASSERT_EQ(scratch.bytes().size(), 10000u);
    for (std::byte b : scratch.bytes()) ASSERT_EQ(b, std::byte{0});
    scratch.bytes()[9999] = std::byte{7};
    EXPECT_EQ(scratch.bytes()[9999], std::byte{7});
    EXPECT_TRUE(std::filesystem::is_empty(folder));
  }
  EXPECT_THROW(ScratchFile(folder, int64_t{1} << 60), IoError);  // no disk has that
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  std::filesystem::remove(folder);
  EXPECT_THROW(ScratchFile(folder, 10), IoError);
}

}  // namespace
}  // namespace trireme::base
