#pragma once
// Encoding: a text (or a pair of texts) as a model takes it: ids and what belongs to each of them.
// All lists have one entry a token.
//
// Truncation cuts off what is too much and keeps it as overflowing windows; padding fills up.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trireme::text {

class Node;

struct Encoding {
  struct Offsets {
    int64_t begin = 0, end = 0;  // in characters of the text that the token is from
    bool operator==(const Offsets&) const = default;
  };
  std::vector<int32_t> ids;
  std::vector<int32_t> type_ids;
  std::vector<std::string> tokens;
  std::vector<int32_t> words;  // which piece of its text a token is from; -1: none
  std::vector<Offsets> offsets;
  std::vector<uint8_t> special_tokens_mask;
  std::vector<uint8_t> attention_mask;
  std::vector<int32_t> sequences;  // which text a token is from; -1: none
  std::vector<Encoding> overflowing;

  size_t size() const { return ids.size(); }
  /// The tokens [begin, end) without what overflowed.
  Encoding slice(size_t begin, size_t end) const;
  /// Appends another encoding; what overflowed in either is combined with all of the other.
  void append(const Encoding& other);
  /// Appends one token.
  void add(int32_t id, int32_t type, std::string token, int32_t word, Offsets at, bool special);
};

struct Truncation {
  enum class Strategy { longest_first, only_first, only_second };
  int64_t max_length = 0;  // special tokens included
  int64_t stride = 0;      // tokens that neighbouring windows share
  Strategy strategy = Strategy::longest_first;
  bool from_left = false;

  /// FormatError for a member that is wrong.
  static Truncation read(const Node& node);
  /// Cuts one encoding to at most `length` tokens; the rest goes to `overflowing`.
  void cut(Encoding& encoding, int64_t length) const;
  /// Cuts a text and its pair (null where there is none) so that `added` special tokens fit too.
  /// ConfigError where the strategy cannot do it.
  void apply(Encoding& first, Encoding* second, int64_t added) const;
};

struct Padding {
  std::optional<int64_t> length;  // nothing: the longest of a batch
  int64_t multiple_of = 0;
  bool on_left = false;
  int32_t id = 0, type = 0;
  std::string token = "[PAD]";

  static Padding read(const Node& node);
  /// Pads all encodings of a batch, and what overflowed from them, to one length.
  void apply(std::vector<Encoding>& batch) const;
};

}  // namespace trireme::text
