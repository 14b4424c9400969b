// Files that nobody can trust: tokenizer.json with every kind of stage under random damage.

#include <gtest/gtest.h>

#include <fstream>
#include <random>

#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/text/tokenizer.h"

namespace trireme::text {
namespace {

constexpr const char* kAdded = R"("added_tokens":[
  {"id":0,"content":"[UNK]","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true},
  {"id":1,"content":"[CLS]","single_word":true,"lstrip":true,"rstrip":true,"normalized":true,"special":true}])";

constexpr const char* kNormalizer = R"("normalizer":{"type":"Sequence","normalizers":[
  {"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true,"strip_accents":null,"lowercase":true},
  {"type":"NFKC"},{"type":"Nmt"},{"type":"StripAccents"},{"type":"Strip","strip_left":true,"strip_right":true},
  {"type":"Prepend","prepend":"x"},{"type":"Replace","pattern":{"Regex":"[a-c]{1,2}\\p{L}?"},"content":"ab"},
  {"type":"Replace","pattern":{"String":"b"},"content":"c"},
  {"type":"Precompiled","precompiled_charsmap":"BAAAAAAAAABhAA=="}]})";

constexpr const char* kCutters = R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[
  {"type":"Split","pattern":{"Regex":"\\s+|\\p{N}"},"behavior":"MergedWithNext","invert":false},
  {"type":"Metaspace","replacement":"_","prepend_scheme":"first","split":true},
  {"type":"Punctuation","behavior":"Contiguous"},{"type":"Digits","individual_digits":true},
  {"type":"CharDelimiterSplit","delimiter":"o"},{"type":"UnicodeScripts"},{"type":"FixedLength","length":4},
  {"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true}]})";

constexpr const char* kAround = R"("post_processor":{"type":"Sequence","processors":[
  {"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true},
  {"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"[CLS]","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],
   "pair":[{"Sequence":{"id":"A","type_id":0}},{"Sequence":{"id":"B","type_id":1}}],
   "special_tokens":{"[CLS]":{"id":"[CLS]","ids":[1],"tokens":["[CLS]"]}}}]},
  "truncation":{"direction":"Right","max_length":9,"strategy":"LongestFirst","stride":2},
  "padding":{"strategy":{"Fixed":12},"direction":"Left","pad_to_multiple_of":5,"pad_id":0,"pad_type_id":0,"pad_token":"[P]"})";

constexpr const char* kDecoder = R"("decoder":{"type":"Sequence","decoders":[{"type":"ByteFallback"},{"type":"Fuse"},
  {"type":"Strip","content":" ","start":1,"stop":1},{"type":"Replace","pattern":{"Regex":"a+"},"content":"b"},
  {"type":"WordPiece","prefix":"##","cleanup":true},{"type":"CTC","pad_token":"p","word_delimiter_token":"|","cleanup":true}]})";

constexpr const char* kModels[] = {
    R"("model":{"type":"BPE","dropout":null,"unk_token":"[UNK]","continuing_subword_prefix":"","end_of_word_suffix":null,
      "fuse_unk":true,"byte_fallback":true,"ignore_merges":false,
      "vocab":{"[UNK]":0,"[CLS]":1,"a":2,"b":3,"ab":4,"<0xC3>":5,"abb":6},"merges":[["a","b"],"ab b"]})",
    R"("model":{"type":"WordPiece","unk_token":"[UNK]","continuing_subword_prefix":"##","max_input_chars_per_word":9,
      "vocab":{"[UNK]":0,"[CLS]":1,"a":2,"##b":3,"ab":4}})",
    R"("model":{"type":"WordLevel","vocab":{"[UNK]":0,"[CLS]":1,"ab":2},"unk_token":"[UNK]"})",
    R"("model":{"type":"Unigram","unk_id":0,"byte_fallback":true,
      "vocab":[["[UNK]",0.0],["[CLS]",0.0],["a",-1.5],["b",-2.25],["ab",-2.5],["<0x62>",-9.0]]})"};

TEST(DamagedTokenizers, AreRefusedOrWorkButNeverCrash) {
  test::TemporaryFolder folder;
  const std::string path = folder / "tokenizer.json";
  const std::string texts[] = {"ab a9b \xC3\xA9[CLS] \xFFo_x", "", "\n\t ", "aabbcc o1 2 \xE4\xB8\xAD"};
  std::mt19937 random(7);
  int loaded = 0, refused = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string json = R"({"version":"1.0",)";
    for (const char* part : {kAdded, kNormalizer, kCutters, kAround, kDecoder}) {
      if (round < 4 || random() % 4 != 0) json.append(part).append(",");
    }
    json.append(kModels[random() % 4]).append("}");
    for (int k = round < 4 ? 0 : 1 + static_cast<int>(random() % 3); k > 0; --k) {
      const size_t at = random() % json.size();
      switch (random() % 4) {
        case 0:
          json[at] = static_cast<char>(random());
          break;
        case 1:
          json.erase(at, random() % 12);
          break;
        case 2:
          json.insert(at, json.substr(random() % json.size(), random() % 12));
          break;
        default:
          json[at] = "0123456789-.{}[]\",:nul"[random() % 22];
      }
    }
    std::ofstream(path, std::ios::binary) << json;
    try {
      const auto tokenizer = Tokenizer::load(path);
      ++loaded;
      for (const std::string& text : texts) {
        try {
          const auto ids = tokenizer->encode(text, true);
          tokenizer->decode(ids);
          tokenizer->encoding(text, texts[0]);
        } catch (const base::ConfigError&) {
        }
      }
    } catch (const base::Error& e) {
      ++refused;
      EXPECT_EQ(e.exit_code(), 2) << e.what() << "\n" << json;
      EXPECT_NE(std::string(e.what()).find("tokenizer.json"), std::string::npos) << e.what();
    }
  }
  EXPECT_GT(loaded, 100);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace trireme::text
