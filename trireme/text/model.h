#pragma once
// Model: the stage of a tokenizer that turns one piece of text into tokens. WordLevel looks the
// piece up, WordPiece takes the longest token again and again, BPE merges neighbours, Unigram takes
// the likeliest cut.
//
// A ModelSpec is what a file says about a model; make_model builds what encodes.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "trireme/text/bpe.h"
#include "trireme/text/vocabulary.h"

namespace trireme::text {

struct BpeSpec {
  std::vector<std::string> vocabulary;  // by id
  std::vector<MergeRule> merges;
  std::optional<std::string> unk_token;
  std::string continuing_prefix, word_suffix;  // of characters inside a word, of a word's last one
  bool fuse_unk = false;       // unknown characters side by side are one token
  bool byte_fallback = false;  // an unknown character becomes tokens such as <0x0A>
  bool ignore_merges = false;  // a piece that is a token is not merged at all
  double dropout = 0;          // share of the merges that `sample` leaves out
};

struct WordPieceSpec {
  std::vector<std::string> vocabulary;
  std::string unk_token = "[UNK]";
  std::string continuing_prefix = "##";
  int64_t max_characters = 100;  // a longer word is unknown
};

struct WordLevelSpec {
  std::vector<std::string> vocabulary;
  std::string unk_token;
};

struct UnigramSpec {
  std::vector<std::string> vocabulary;
  std::vector<double> scores;  // logarithms of probabilities, by id
  std::optional<int32_t> unk;
  bool byte_fallback = false;
};

using ModelSpec = std::variant<BpeSpec, WordPieceSpec, WordLevelSpec, UnigramSpec>;

/// "BPE", "WordPiece", "WordLevel" or "Unigram".
const char* model_type(const ModelSpec& spec);
const std::vector<std::string>& model_vocabulary(const ModelSpec& spec);

class Model {
 public:
  struct Token {
    int32_t id = 0;
    uint32_t begin = 0, end = 0;  // bytes of the piece
    bool verbatim = false;        // written as the piece has it, not as the vocabulary does
  };

  explicit Model(const std::vector<std::string>& vocabulary) : vocabulary_(vocabulary) {}
  virtual ~Model() = default;
  const Vocabulary& vocabulary() const { return vocabulary_; }

  /// Appends the tokens of a piece. ConfigError for what the vocabulary cannot express. Thread-safe.
  virtual void encode(std::string_view piece, std::vector<Token>& tokens) const = 0;
  /// The same, at random where the model has a dropout: `draw` gives numbers in [0, 1).
  virtual void sample(std::string_view piece, std::vector<Token>& tokens,
                      const std::function<double()>& /*draw*/) const {
    encode(piece, tokens);
  }
  /// Whether a text that is not cut at all may be cut before `space` where another character stands
  /// before it.
  virtual bool local(std::string_view /*space*/) const { return false; }

 protected:
  Vocabulary vocabulary_;
};

std::unique_ptr<Model> make_model(const ModelSpec& spec);
std::unique_ptr<Model> make_model(const BpeSpec& spec);
std::unique_ptr<Model> make_model(const UnigramSpec& spec);

/// "<0x0A>" for 10.
std::string fallback_token(uint8_t byte);

}  // namespace trireme::text
