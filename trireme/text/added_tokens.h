#pragma once
// AddedTokens: finds tokens that are matched in the text itself, before it is cut into words.
//
// Two passes as in Hugging Face's library: tokens with `normalized` false over the whole text, the
// others in what is left; each pass leftmost, then longest. A token that begins with whitespace is
// found even where the token before swallowed it; spans overlap then.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::text {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;             // only where no word character touches it
  bool lstrip = false, rstrip = false;  // swallow the whitespace before, after
  bool normalized = false;
  bool special = false;
};

class AddedTokens {
 public:
  explicit AddedTokens(std::vector<AddedToken> tokens);
  const std::vector<AddedToken>& all() const { return tokens_; }

  /// A stretch of the text in bytes; `id` is the added token there, or -1 for plain text.
  struct Span {
    size_t begin, end;
    int32_t id;
  };
  /// The text as spans, in order; none for an empty text.
  void split(std::string_view text, std::vector<Span>& spans) const;

 private:
  // A trie over bytes; node 0 is the root.
  struct Node {
    int32_t token = -1;  // index in tokens_
    std::vector<std::pair<uint8_t, int32_t>> next;
  };
  struct Pass {
    std::vector<Node> nodes{1};
    bool starts[256] = {};
    bool empty() const { return nodes.size() == 1; }
    void add(std::string_view content, int32_t token);
    /// Index of the longest token at `at`, or -1.
    int32_t longest_at(std::string_view text, size_t at) const;
  };
  void find(const Pass& pass, std::string_view text, size_t begin, size_t end,
            std::vector<Span>& spans) const;

  std::vector<AddedToken> tokens_;
  Pass raw_, normalized_;
};

}  // namespace trireme::text
