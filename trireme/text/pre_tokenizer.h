#pragma once
// PreTokenizer: the second stage of a tokenizer.json, a list of steps that cut a normalized text
// into pieces; the model sees one piece at a time.
//
//   Pieces pieces;
//   pieces.add(std::move(text));
//   pre_tokenizer.apply(pieces);
//   for (const Piece& piece : pieces.list) use(piece.view());

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "trireme/text/normalized_text.h"
#include "trireme/text/pattern_scanner.h"
#include "trireme/text/pattern.h"

namespace trireme::text {

class Node;

/// A part of a normalized text.
struct Piece {
  const NormalizedText* text = nullptr;
  size_t begin = 0, end = 0;  // in bytes of the text
  int32_t added = -1;         // the added token that it is; no step touches it then

  std::string_view view() const { return text->view().substr(begin, end - begin); }
};

/// Pieces in order, and the texts that they are parts of.
struct Pieces {
  std::vector<Piece> list;
  std::deque<NormalizedText> texts;

  const NormalizedText* own(NormalizedText text) {
    texts.push_back(std::move(text));
    return &texts.back();
  }
  void clear() {
    list.clear();
    texts.clear();
  }
};

/// What becomes of the matches of a pattern that a text is split by.
enum class SplitBehavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

class PreTokenizer {
 public:
  /// Leaves every text in one piece.
  PreTokenizer() = default;
  /// FormatError names a step that is wrong or not supported.
  explicit PreTokenizer(const Node& node);

  void apply(Pieces& pieces) const;
  /// Whether a text is always cut before a single space between two printable ASCII characters, so
  /// that its parts can be cut on their own. `space` is how normalizers write a space.
  bool local(std::string_view space) const;
  /// Whether pieces end at every whitespace and hold none, where a space is written `space`.
  bool drops_spaces(std::string_view space) const;
  /// Whether no step cuts a text whose spaces are written `space`.
  bool splits_nothing(std::string_view space) const;
  /// Whether some step treats the beginning of a text in its own way.
  bool marks_beginning() const;

  struct ByteLevel {
    bool add_prefix_space, use_regex;
  };
  struct Split {
    std::optional<WordPattern> known;  // a regex that has a scanner of its own
    Pattern pattern;                   // where there is none
    SplitBehavior behavior;
    bool invert;
  };
  struct Metaspace {
    enum class Prepend { never, first, always };
    char32_t replacement;
    Prepend prepend;
    bool split;
  };
  struct Bert {};
  struct Whitespace {};
  struct WhitespaceSplit {};
  struct Punctuation {
    SplitBehavior behavior;
  };
  struct Digits {
    bool individual;
  };
  struct CharDelimiterSplit {
    char32_t delimiter;
  };
  struct UnicodeScripts {};
  struct FixedLength {
    int64_t length;
  };
  using Step = std::variant<ByteLevel, Split, Metaspace, Bert, Whitespace, WhitespaceSplit,
                            Punctuation, Digits, CharDelimiterSplit, UnicodeScripts, FixedLength>;
  const std::vector<Step>& steps() const { return steps_; }

 private:
  void add(const Node& node, int depth);
  std::vector<Step> steps_;
};

/// Where the stretch that begins at `p` ends which a local pipeline may treat on its own: before a
/// single space between two printable ASCII characters, or at `end`.
const char* plain_word_end(const char* p, const char* end);

}  // namespace trireme::text
