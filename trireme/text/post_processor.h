#pragma once
// PostProcessor: the stage of a tokenizer.json after the model: it puts special tokens around a
// text or a pair of texts, and trims spaces off the offsets of byte-level tokens.
//
// All kinds of files come down to one template for a text, one for a pair, and how to trim.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/text/encoding.h"

namespace trireme::text {

class Node;

class PostProcessor {
 public:
  /// Adds nothing; a pair's second text has type 1.
  PostProcessor() = default;
  /// `vocab_size` bounds the ids. FormatError names what is wrong or not supported.
  PostProcessor(const Node& node, int64_t vocab_size);

  /// How many special tokens are added.
  int64_t added(bool pair) const;
  /// The final encoding of a text (and its pair, or null). Takes them apart.
  Encoding apply(Encoding& first, Encoding* second, bool add_special) const;
  /// The ids before and after a single text.
  std::vector<int32_t> before() const { return around(true); }
  std::vector<int32_t> after() const { return around(false); }

 private:
  struct Part {
    int sequence = -1;  // 0, 1: the text or its pair; -1: special tokens
    std::optional<int32_t> type;
    std::vector<int32_t> ids;
    std::vector<std::string> tokens;
  };
  struct Trim {
    bool keeps_prefix;  // a space at the beginning of the text stays
  };

  void read(const Node& node, int64_t vocab_size, int depth);
  void read_template(const Node& node, int64_t vocab_size);
  void surround(const Node& node, int64_t vocab_size, bool roberta);
  std::vector<int32_t> around(bool before) const;

  bool has_template_ = false, zero_types_ = false;
  std::vector<Part> single_ = {{.sequence = 0, .type = {}, .ids = {}, .tokens = {}}};
  std::vector<Part> pair_ = {{.sequence = 0, .type = {}, .ids = {}, .tokens = {}},
                             {.sequence = 1, .type = {}, .ids = {}, .tokens = {}}};
  std::vector<Trim> trims_;
};

}  // namespace trireme::text
