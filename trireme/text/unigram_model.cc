#include <algorithm>
#include <limits>

#include "trireme/base/error.h"
#include "trireme/text/model.h"
#include "trireme/text/prefix_trie.h"
#include "trireme/text/unicode.h"

namespace trireme::text {
namespace {

constexpr double kUnknownPenalty = 10.0;  // below the least likely token

// Kudo, "Subword Regularization" (2018): of all ways to cut a text into tokens the one with the
// highest sum of scores, by Viterbi's algorithm.
class Unigram final : public Model {
 public:
  explicit Unigram(const UnigramSpec& spec)
      : Model(spec.vocabulary), scores_(spec.scores), unk_(spec.unk), trie_(keys(vocabulary_)) {
    double least = std::numeric_limits<double>::infinity();
    for (double score : scores_) least = std::min(least, score);
    unknown_score_ = least - kUnknownPenalty;
    byte_fallback_ = spec.byte_fallback;
    for (int b = 0; b < 256 && byte_fallback_; ++b) {
      fallback_[b] = vocabulary_.find(fallback_token(static_cast<uint8_t>(b)));
    }
  }

  void encode(std::string_view piece, std::vector<Token>& tokens) const override {
    struct Node {
      double score = 0;
      uint32_t from = 0;
      int32_t id = kUnreached;
    };
    base::check(piece.size() < UINT32_MAX, "a piece of {} bytes", piece.size());
    std::vector<Node> nodes(piece.size() + 1);
    const char *begin = piece.data(), *end = begin + piece.size();
    for (size_t at = 0; at < piece.size();) {
      const double score_here = nodes[at].score;
      const auto character = static_cast<size_t>(decode_utf8(begin + at, end).length);
      bool single = false;
      auto reach = [&](size_t length, int32_t id, double score) {
        Node& node = nodes[at + length];
        if (node.id == kUnreached || score > node.score) {
          node = {score, static_cast<uint32_t>(at), id};
        }
      };
      trie_.for_each_prefix(piece.substr(at), [&](size_t length, int32_t id) {
        reach(length, id, scores_[id] + score_here);
        single |= length == character;
      });
      if (!single) reach(character, kUnknown, unknown_score_ + score_here);
      at += character;
    }
    path(piece, nodes, tokens);
  }

 private:
  static constexpr int32_t kUnreached = -2, kUnknown = -1;

  static std::vector<std::pair<std::string_view, int32_t>> keys(const Vocabulary& vocabulary) {
    std::vector<std::pair<std::string_view, int32_t>> keys;
    for (int32_t id = 0; id < vocabulary.size(); ++id) keys.emplace_back(vocabulary.token(id), id);
    return keys;
  }

  template <class Nodes>
  void path(std::string_view piece, const Nodes& nodes, std::vector<Token>& tokens) const {
    const size_t before = tokens.size();
    bool after_unknown = false;  // the token found last is unknown
    for (size_t at = piece.size(); at > 0;) {
      const auto& node = nodes[at];
      const bool unknown = node.id == kUnknown || (unk_ && node.id == *unk_);
      if (unknown && after_unknown) {
        tokens.back().begin = node.from;
      } else {
        tokens.push_back({node.id, node.from, static_cast<uint32_t>(at)});
      }
      after_unknown = unknown;
      at = node.from;
    }
    std::reverse(tokens.begin() + static_cast<int64_t>(before), tokens.end());
    finish_unknown(piece, before, tokens);
  }

  // Unknown stretches become bytes where the vocabulary has them all.
  void finish_unknown(std::string_view piece, size_t before, std::vector<Token>& tokens) const {
    auto is_unknown = [&](const Token& t) { return t.id == kUnknown || (unk_ && t.id == *unk_); };
    if (std::none_of(tokens.begin() + static_cast<int64_t>(before), tokens.end(), is_unknown)) {
      return;
    }
    std::vector<Token> found(tokens.begin() + static_cast<int64_t>(before), tokens.end());
    tokens.resize(before);
    for (Token token : found) {
      if (!is_unknown(token)) {
        tokens.push_back(token);
        continue;
      }
      const std::string_view text = piece.substr(token.begin, token.end - token.begin);
      if (const int32_t id = vocabulary_.find(text); id >= 0) {
        token.id = id;
      } else if (byte_fallback_ && std::all_of(text.begin(), text.end(), [&](char c) {
                   return fallback_[static_cast<uint8_t>(c)] >= 0;
                 })) {
        for (char c : text) {
          tokens.push_back({fallback_[static_cast<uint8_t>(c)], token.begin, token.end});
        }
        continue;
      } else if (unk_) {
        token.id = *unk_;
        token.verbatim = true;
      } else {
        throw base::ConfigError(fmt::format(
            "the text holds \"{}\", which this tokenizer's vocabulary lacks, and it has no token "
            "for unknown text",
            text));
      }
      tokens.push_back(token);
    }
  }

  std::vector<double> scores_;
  std::optional<int32_t> unk_;
  PrefixTrie trie_;
  double unknown_score_ = 0;
  bool byte_fallback_ = false;
  int32_t fallback_[256] = {};
};

}  // namespace

std::unique_ptr<Model> make_model(const UnigramSpec& spec) {
  return std::make_unique<Unigram>(spec);
}

}  // namespace trireme::text
