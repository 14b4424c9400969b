#pragma once
// Decoder: the last stage of a tokenizer.json, a list of steps that turn tokens back into text.
//
//   Decoder decoder(document.at("decoder"));
//   std::string text = decoder.decode({"un", "##able"});

#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "trireme/text/pattern.h"

namespace trireme::text {

class Node;

class Decoder {
 public:
  /// Joins the tokens with spaces.
  Decoder() = default;
  /// FormatError names a step that is wrong or not supported.
  explicit Decoder(const Node& node);

  std::string decode(std::vector<std::string> tokens) const;
  /// Whether it only reads the byte alphabet.
  bool byte_level() const {
    return steps_.size() == 1 && std::holds_alternative<ByteLevel>(steps_[0]);
  }

 private:
  using Tokens = std::vector<std::string>;
  struct ByteLevel {};
  struct ByteFallback {};
  struct WordPiece {
    std::string prefix;
    bool cleanup;
  };
  struct Metaspace {
    std::string replacement;
    bool drops_first;
  };
  struct Bpe {
    std::string suffix;
  };
  struct Ctc {
    std::string pad, delimiter;
    bool cleanup;
  };
  struct Fuse {};
  struct Strip {
    std::string content;
    int64_t start, stop;
  };
  struct Replace {
    Pattern pattern;
    std::string content;
  };
  using Step = std::variant<ByteLevel, ByteFallback, WordPiece, Metaspace, Bpe, Ctc, Fuse, Strip,
                            Replace>;

  void add(const Node& node, int depth);
  static void run(ByteLevel, Tokens& tokens);
  static void run(ByteFallback, Tokens& tokens);
  static void run(const WordPiece& step, Tokens& tokens);
  static void run(const Metaspace& step, Tokens& tokens);
  static void run(const Bpe& step, Tokens& tokens);
  static void run(const Ctc& step, Tokens& tokens);
  static void run(Fuse, Tokens& tokens);
  static void run(const Strip& step, Tokens& tokens);
  static void run(const Replace& step, Tokens& tokens);

  bool given_ = false;
  std::vector<Step> steps_;
};

}  // namespace trireme::text
