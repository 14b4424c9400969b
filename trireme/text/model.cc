#include "trireme/text/model.h"

#include "trireme/base/error.h"
#include "trireme/text/prefix_trie.h"
#include "trireme/text/unicode.h"

namespace trireme::text {
namespace {

using base::ConfigError;

std::string shown(std::string_view piece) {
  constexpr size_t kLongest = 60;
  return piece.size() <= kLongest ? std::string(piece)
                                  : std::string(piece.substr(0, kLongest)) + "...";
}

class WordLevel final : public Model {
 public:
  explicit WordLevel(const WordLevelSpec& spec)
      : Model(spec.vocabulary), unk_token_(spec.unk_token), unk_(vocabulary_.find(unk_token_)) {}

  void encode(std::string_view piece, std::vector<Token>& tokens) const override {
    int32_t id = vocabulary_.find(piece);
    if (id < 0) id = unk_;
    if (id < 0) {
      throw ConfigError(fmt::format(
          "\"{}\" is not in the vocabulary, nor is the token \"{}\" for unknown words", shown(piece),
          unk_token_));
    }
    tokens.push_back({id, 0, static_cast<uint32_t>(piece.size())});
  }

 private:
  std::string unk_token_;
  int32_t unk_;
};

class WordPiece final : public Model {
 public:
  explicit WordPiece(const WordPieceSpec& spec)
      : Model(spec.vocabulary),
        unk_token_(spec.unk_token),
        unk_(vocabulary_.find(spec.unk_token)),
        max_characters_(spec.max_characters),
        first_(keys(vocabulary_, "")),
        inner_(keys(vocabulary_, spec.continuing_prefix)) {}

  void encode(std::string_view piece, std::vector<Token>& tokens) const override {
    const size_t before = tokens.size();
    size_t at = 0;
    if (static_cast<int64_t>(piece.size()) <= max_characters_ ||
        count_characters(piece) <= max_characters_) {
      while (at < piece.size()) {
        const auto [length, id] = (at == 0 ? first_ : inner_).longest(piece.substr(at));
        if (length == 0) break;
        tokens.push_back(
            {id, static_cast<uint32_t>(at), static_cast<uint32_t>(at + length)});
        at += length;
      }
    }
    if (at == piece.size()) return;
    tokens.resize(before);
    if (unk_ < 0) {
      throw ConfigError(
          fmt::format("the vocabulary cannot write \"{}\", and lacks the token \"{}\" for unknown "
                      "words",
                      shown(piece), unk_token_));
    }
    tokens.push_back({unk_, 0, static_cast<uint32_t>(piece.size())});
  }

 private:
  static std::vector<std::pair<std::string_view, int32_t>> keys(const Vocabulary& vocabulary,
                                                                std::string_view prefix) {
    std::vector<std::pair<std::string_view, int32_t>> found;
    for (int32_t id = 0; id < vocabulary.size(); ++id) {
      const std::string_view token = vocabulary.token(id);
      if (token.starts_with(prefix)) found.emplace_back(token.substr(prefix.size()), id);
    }
    return found;
  }

  std::string unk_token_;
  int32_t unk_;
  int64_t max_characters_;
  PrefixTrie first_, inner_;
};

}  // namespace

const char* model_type(const ModelSpec& spec) {
  constexpr const char* kNames[] = {"BPE", "WordPiece", "WordLevel", "Unigram"};
  return kNames[spec.index()];
}

const std::vector<std::string>& model_vocabulary(const ModelSpec& spec) {
  return std::visit([](const auto& s) -> const auto& { return s.vocabulary; }, spec);
}

std::string fallback_token(uint8_t byte) {
  return fmt::format("<0x{:02X}>", byte);
}

std::unique_ptr<Model> make_model(const ModelSpec& spec) {
  if (const auto* s = std::get_if<WordPieceSpec>(&spec)) return std::make_unique<WordPiece>(*s);
  if (const auto* s = std::get_if<WordLevelSpec>(&spec)) return std::make_unique<WordLevel>(*s);
  if (const auto* s = std::get_if<UnigramSpec>(&spec)) return make_model(*s);
  return make_model(std::get<BpeSpec>(spec));
}

}  // namespace trireme::text
