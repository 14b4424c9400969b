#include "tests/fuzz/targets.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <memory>

#include "trireme/base/error.h"
#include "trireme/base/io.h"
#include "trireme/data/document_encoder.h"
#include "trireme/data/image_files.h"
#include "trireme/data/indexed.h"
#include "trireme/data/npy.h"
#include "trireme/data/table.h"
#include "trireme/formats/safetensors.h"
#include "trireme/text/tokenizer.h"

namespace trireme::fuzz {
namespace {

void write(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// A byte-level vocabulary of a few tokens with every kind of stage around it.
std::string tokenizer_json(const std::string& model) {
  return R"({"version":"1.0","truncation":{"direction":"Right","max_length":9,"strategy":"LongestFirst","stride":2},
"padding":{"strategy":{"Fixed":12},"direction":"Left","pad_to_multiple_of":5,"pad_id":0,"pad_type_id":0,"pad_token":"[P]"},
"added_tokens":[{"id":0,"content":"[UNK]","single_word":false,"lstrip":true,"rstrip":false,"normalized":false,"special":true}],
"normalizer":{"type":"Sequence","normalizers":[{"type":"NFKC"},{"type":"Lowercase"},
 {"type":"Replace","pattern":{"Regex":"[a-c]{1,2}\\p{L}?"},"content":"ab"},{"type":"Precompiled","precompiled_charsmap":"BAAAAAAAAABhAA=="}]},
"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"\\s+|\\p{N}"},"behavior":"MergedWithNext","invert":false},
 {"type":"Metaspace","replacement":"_","prepend_scheme":"first","split":true},{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true}]},
"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"[UNK]","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],
 "pair":[{"Sequence":{"id":"A","type_id":0}},{"Sequence":{"id":"B","type_id":1}}],"special_tokens":{"[UNK]":{"id":"[UNK]","ids":[0],"tokens":["[UNK]"]}}},
"decoder":{"type":"Sequence","decoders":[{"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":1}]},
"model":)" +
         model + "}";
}

void use(const text::Tokenizer& tokenizer) {
  for (const char* text : {"ab a9b \xC3\xA9[UNK] \xFFo_x", "", "\n\t "}) {
    try {
      tokenizer.decode(tokenizer.encode(text, true));
      tokenizer.encoding(text, "abba c");
      tokenizer.sample(text, 1);
    } catch (const base::ConfigError&) {  // a text that the vocabulary cannot express
    }
  }
}

void run_tokenizer_json(std::string_view bytes, const std::string& folder) {
  write(folder + "/tokenizer.json", bytes);
  use(*text::Tokenizer::load(folder + "/tokenizer.json"));
}

std::vector<std::string> tokenizer_seeds(const std::string&) {
  return {
      tokenizer_json(
          R"({"type":"BPE","dropout":0.1,"unk_token":"[UNK]","fuse_unk":true,"byte_fallback":true,"vocab":{"[UNK]":0,"a":1,"b":2,"ab":3,"<0xC3>":4},"merges":[["a","b"]]})"),
      tokenizer_json(
          R"({"type":"WordPiece","unk_token":"[UNK]","continuing_subword_prefix":"##","max_input_chars_per_word":9,"vocab":{"[UNK]":0,"a":1,"##b":2}})"),
      tokenizer_json(R"({"type":"WordLevel","vocab":{"[UNK]":0,"ab":1},"unk_token":"[UNK]"})"),
      tokenizer_json(
          R"({"type":"Unigram","unk_id":0,"byte_fallback":true,"vocab":[["[UNK]",0.0],["a",-1.5],["b",-2.25],["ab",-2.5],["<0x62>",-9.0]]})")};
}

void run_sentencepiece(std::string_view bytes, const std::string& folder) {
  write(folder + "/tokenizer.model", bytes);
  use(*text::Tokenizer::load(folder + "/tokenizer.model"));
}

/// A field of bytes of a protocol buffer.
std::string field(int number, std::string_view bytes) {
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(bytes.size())} +
         std::string(bytes);
}

std::vector<std::string> sentencepiece_seeds(const std::string&) {
  std::vector<std::string> seeds;
  for (char model_type : {1, 2}) {  // unigram, BPE
    std::string model;
    float score = 0;
    int kind = 2;  // unknown, then control, then normal pieces
    for (const char* piece : {"<unk>", "<s>", "</s>", "\u2581a", "b", "ab", "a", "\u2581"}) {
      const std::string bits(reinterpret_cast<const char*>(&score), 4);
      model += field(1, field(1, piece) + std::string("\x15") + bits + std::string("\x18") +
                            static_cast<char>(kind));
      score -= 1;
      kind = score == -1 || score == -2 ? 3 : 1;
    }
    model += field(2, std::string("\x18") + model_type);
    model += field(3, field(1, "identity") + std::string("\x18\x01\x20\x01\x28\x01"));
    seeds.push_back(model);
  }
  return seeds;
}

void run_index(std::string_view bytes, const std::string& folder) {
  write(folder + "/d.idx", bytes);
  write(folder + "/d.bin", std::string(20, '\1'));
  for (data::Access access : {data::Access::mmap, data::Access::lazy}) {
    const data::IndexedDataset dataset(folder + "/d", access);
    std::vector<int64_t> ids(dataset.tokens());
    dataset.read(0, dataset.tokens(), ids.data());
    for (int64_t d = 0; d < dataset.documents(); ++d) dataset.document_begin(d + 1);
    dataset.fingerprint();
  }
}

std::vector<std::string> index_seeds(const std::string& folder) {
  std::vector<std::string> seeds;
  for (data::IndexFormat format : {data::IndexFormat::megatron, data::IndexFormat::torchnet}) {
    data::IndexedWriter writer(folder + "/d", base::DType::u16, format);
    for (int64_t length : {3, 0, 5, 2}) {
      writer.add_sequence(std::vector<int64_t>(length, 257));
      writer.end_document();
    }
    writer.finish();
    seeds.push_back(base::read_file(folder + "/d.idx"));
  }
  return seeds;
}

void run_safetensors(std::string_view bytes, const std::string& folder) {
  write(folder + "/x.safetensors", bytes);
  const formats::SafetensorsFile file(folder + "/x.safetensors");
  for (const auto& [name, tensor] : file.tensors()) file.at(name);
}

std::vector<std::string> safetensors_seeds(const std::string&) {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"b":{"dtype":"BF16","shape":[3],"data_offsets":[16,22]},"c":{"dtype":"I64","shape":[],"data_offsets":[22,30]}})";
  uint64_t size = header.size();
  return {std::string(reinterpret_cast<const char*>(&size), 8) + header + std::string(30, '\2')};
}

const text::Tokenizer& letters(const std::string& folder) {
  static const std::unique_ptr<text::Tokenizer> tokenizer = [&] {
    write(folder + "/vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n##c\n");
    return text::Tokenizer::load(folder + "/vocab.txt");
  }();
  return *tokenizer;
}

void run_json_lines(std::string_view bytes, const std::string& folder) {
  const data::DocumentEncoder encoder(
      letters(folder),
      {.keys = {"text", "title"}, .end = 3, .split_sentences = true, .hash = true});
  data::Piece piece{.path = "x.jsonl", .owner = nullptr, .text = bytes, .json_lines = true};
  encoder(piece);
  piece.json_lines = false;
  data::DocumentEncoder(
      letters(folder),
      {.keys = {"text"}, .end = {}, .split_sentences = true, .hash = false})(piece);
}

std::vector<std::string> json_lines_seeds(const std::string&) {
  return {
      "{\"text\": \"a b. Bc? \\u00e9\\ud83d\\ude00\", \"title\": [\"a\", \"b\"]}\n\n{\"text\": "
      "\"\", \"title\": \"\"}\r\n{\"text\": 1}\n[]\nnull"};
}

void run_table(std::string_view bytes, const std::string& folder) {
  for (const char* ending : {"csv", "tsv", "jsonl"}) {
    write(folder + "/t." + ending, bytes);
    try {
      const data::Table table(folder + "/t." + ending);
      for (int64_t row = 0; row < std::min<int64_t>(table.rows(), 50); ++row)
        table.cells(row, {"a", "b"});
    } catch (const base::FormatError&) {
    }
  }
}

std::vector<std::string> table_seeds(const std::string&) {
  return {"a,b\n1,\"x \"\"y\"\"\nz\"\n2,\n", "a\tb\n1\tx\n2\ty\n",
          "{\"a\": 1, \"b\": \"x\"}\n{\"a\": null, \"b\": [1]}\n"};
}

void run_images(std::string_view bytes, const std::string& folder) {
  const auto attempt = [&](const std::string& name, auto&& open) {
    write(folder + "/" + name, bytes);
    try {
      open(folder + "/" + name);
    } catch (const base::FormatError&) {
    } catch (const base::ConfigError&) {
    }
  };
  attempt("x.npy", [](const std::string& path) { data::Npy(path).shape(); });
  attempt("x.bin", [](const std::string& path) { data::ImageFiles::open(path, "")->image(0); });
  attempt("t-images-idx3-ubyte", [&](const std::string& path) {
    write(folder + "/t-labels-idx1-ubyte", std::string("\0\0\x08\x01\0\0\0\1\3", 9));
    data::ImageFiles::open(path, "")->image(0);
  });
  attempt("x.png", [](const std::string& path) { data::read_image(path); });
}

std::vector<std::string> image_seeds(const std::string&) {
  const auto hex = [](std::string_view text) {
    std::string bytes;
    for (size_t i = 0; i < text.size(); i += 2)
      bytes += static_cast<char>(std::stoi(std::string(text.substr(i, 2)), nullptr, 16));
    return bytes;
  };
  std::string npy("\x93NUMPY\x01\x00\x76\x00", 10);
  npy += "{'descr': '|u1', 'fortran_order': False, 'shape': (1, 2, 2), }";
  npy += std::string(128 - npy.size() - 1, ' ') + "\nabcd";
  // A grey PNG of 2 x 2.
  const std::string png =
      hex("89504e470d0a1a0a0000000d4948445200000002000000020800000000"
          "57dd52f8"
          "0000000e49444154"
          "789c636060686060f80f0003060180"
          "00000000"
          "0000000049454e44ae426082");
  return {npy, std::string("\0\0\x08\x03\0\0\0\1\0\0\0\2\0\0\0\2abcd", 20), std::string(3073, '\5'),
          png,
          hex("ffd8ffe000104a46494600010100000100010000ffdb004300") + std::string(64, '\1') +
              hex("ffc0000b080002000201011100ffda0008010100003f00ffd9")};
}

}  // namespace

const std::vector<Target>& targets() {
  static const std::vector<Target> all{{"tokenizer_json", run_tokenizer_json, tokenizer_seeds},
                                       {"sentencepiece", run_sentencepiece, sentencepiece_seeds},
                                       {"index", run_index, index_seeds},
                                       {"safetensors", run_safetensors, safetensors_seeds},
                                       {"json_lines", run_json_lines, json_lines_seeds},
                                       {"table", run_table, table_seeds},
                                       {"images", run_images, image_seeds}};
  return all;
}

}  // namespace trireme::fuzz
