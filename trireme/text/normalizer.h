#pragma once
// Normalizer: the first stage of a tokenizer.json, a list of steps that change a text before it is
// cut. A value: it is read from the file once and applied to any number of texts.
//
//   Normalizer normalizer(document.at("normalizer"));
//   NormalizedText text(original, 0, original.size());
//   normalizer.apply(text);

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "trireme/text/charsmap.h"
#include "trireme/text/normalized_text.h"
#include "trireme/text/pattern.h"

namespace trireme::text {

class Node;

enum class UnicodeForm { nfc, nfd, nfkc, nfkd };

void normalize_unicode(NormalizedText& text, UnicodeForm form);

class Normalizer {
 public:
  /// Does nothing.
  Normalizer() = default;
  /// FormatError names a step that is wrong or not supported.
  explicit Normalizer(const Node& node);

  /// `beginning`: whether the text is the beginning of what is normalized; a later part of it has
  /// nothing put before it.
  void apply(NormalizedText& text, bool beginning = true) const;
  bool empty() const { return steps_.empty(); }
  /// Whether a text may be cut before a single space between two printable ASCII characters and
  /// its parts normalized on their own.
  bool local() const;
  /// Whether whitespace stays whitespace and nothing else becomes or joins it.
  bool keeps_whitespace() const;
  /// Whether some step treats the beginning of a text in its own way.
  bool marks_beginning() const;
  /// The character that stands for a space after all steps where that is always the same.
  std::string space() const;

 private:
  struct Bert {
    bool clean_text, chinese, strip_accents, lowercase;
  };
  struct Strip {
    bool left, right;
  };
  struct Replace {
    Pattern pattern;
    std::string content;
  };
  struct Prepend {
    std::string text;
  };
  struct LowercaseStep {};
  struct StripAccents {};
  struct Nmt {};
  struct ByteLevel {};
  using Precompiled = std::shared_ptr<const Charsmap>;
  using Step = std::variant<Bert, UnicodeForm, Strip, Replace, Prepend, LowercaseStep, StripAccents,
                            Nmt, ByteLevel, Precompiled>;

  void add(const Node& node, int depth);
  static void run(const Bert& step, NormalizedText& text);
  static void run(UnicodeForm step, NormalizedText& text) { normalize_unicode(text, step); }
  static void run(const Strip& step, NormalizedText& text) { text.strip(step.left, step.right); }
  static void run(const Replace& step, NormalizedText& text);
  static void run(const Prepend& step, NormalizedText& text) { text.prepend(step.text); }
  static void run(LowercaseStep, NormalizedText& text);
  static void run(StripAccents, NormalizedText& text);
  static void run(Nmt, NormalizedText& text);
  static void run(ByteLevel, NormalizedText& text);
  static void run(const Precompiled& step, NormalizedText& text) { step->apply(text); }

  std::vector<Step> steps_;
};

/// Writes each byte as its character of the byte alphabet.
void to_byte_alphabet(NormalizedText& text);
/// Ranges of `text` that equal `literal`, from left to right.
std::vector<NormalizedText::Range> find_literal(std::string_view text, std::string_view literal);

}  // namespace trireme::text
