#include <algorithm>
#include <array>

#include "trireme/base/error.h"
#include "trireme/text/model.h"
#include "trireme/text/unicode.h"

namespace trireme::text {
namespace {

using base::ConfigError;

constexpr std::array<int32_t, 256> kNoBytes = [] {
  std::array<int32_t, 256> ids{};
  ids.fill(-1);
  return ids;
}();

class BpeModel final : public Model {
 public:
  explicit BpeModel(const BpeSpec& spec)
      : Model(spec.vocabulary),
        bpe_(kNoBytes, spec.merges),
        unk_token_(spec.unk_token),
        prefix_(spec.continuing_prefix),
        suffix_(spec.word_suffix),
        fuse_unk_(spec.fuse_unk),
        byte_fallback_(spec.byte_fallback),
        ignore_merges_(spec.ignore_merges),
        dropout_(spec.dropout) {
    if (unk_token_) unk_ = vocabulary_.find(*unk_token_);
    for (int b = 0; b < 256; ++b) {
      fallback_[b] = byte_fallback_ ? vocabulary_.find(fallback_token(static_cast<uint8_t>(b))) : -1;
      const char character = static_cast<char>(b);
      ascii_[b] = b < 128 ? vocabulary_.find({&character, 1}) : -1;
    }
  }

  void encode(std::string_view piece, std::vector<Token>& tokens) const override {
    encode(piece, tokens, nullptr);
  }
  void sample(std::string_view piece, std::vector<Token>& tokens,
              const std::function<double()>& draw) const override {
    if (dropout_ == 0) return encode(piece, tokens);
    encode(piece, tokens, [&] { return draw() < dropout_; });
  }

  void encode(std::string_view piece, std::vector<Token>& tokens, const Bpe::Skip& skip) const {
    if (ignore_merges_ && !skip) {
      if (const int32_t id = vocabulary_.find(piece); id >= 0) {
        tokens.push_back({id, 0, static_cast<uint32_t>(piece.size())});
        return;
      }
    }
    std::vector<Bpe::Symbol> symbols;
    symbols.reserve(piece.size());
    add_symbols(piece, symbols);
    bpe_.merge(symbols, skip);
    uint32_t at = 0;
    for (const Bpe::Symbol& symbol : symbols) {
      tokens.push_back({symbol.id, at, at + symbol.length});
      at += symbol.length;
    }
  }

  bool local(std::string_view space) const override {
    if (ignore_merges_ || !prefix_.empty() || !suffix_.empty() || space.empty() ||
        vocabulary_.find(space) < 0) {
      return false;
    }
    for (const std::string& token : vocabulary_.tokens()) {
      // A space after anything but spaces could be merged with what stands before it.
      size_t at = 0;
      while (std::string_view(token).substr(at).starts_with(space)) at += space.size();
      if (token.find(space, at) != std::string::npos) return false;
    }
    return true;
  }

 private:
  void add_symbols(std::string_view piece, std::vector<Bpe::Symbol>& symbols) const {
    const char *begin = piece.data(), *end = begin + piece.size();
    Bpe::Symbol unk{-1, 0};  // seen but not written yet
    auto flush = [&] {
      if (unk.length > 0) symbols.push_back(unk);
      unk.length = 0;
    };
    std::string written;
    for (const char* p = begin; p < end;) {
      const CodePoint c = decode_utf8(p, end);
      const auto length = static_cast<uint32_t>(c.length);
      std::string_view symbol(p, length);
      const bool inside = p > begin, last = p + length == end;
      if ((inside && !prefix_.empty()) || (last && !suffix_.empty())) {
        written = (inside ? prefix_ : "") + std::string(symbol) + (last ? suffix_ : "");
        symbol = written;
      }
      p += length;
      const int32_t id =
          symbol.size() == 1 ? ascii_[static_cast<uint8_t>(symbol[0])] : vocabulary_.find(symbol);
      if (id >= 0) {
        flush();
        symbols.push_back({id, length});
        continue;
      }
      // Bytes do not wait for an unknown character before them, as in Hugging Face's library.
      if (byte_fallback_ && add_bytes(symbol, symbols)) continue;
      if (unk_ < 0) refuse(symbol);
      if (!fuse_unk_) flush();
      unk = {unk_, unk.length + length};
    }
    flush();
  }

  bool add_bytes(std::string_view symbol, std::vector<Bpe::Symbol>& symbols) const {
    for (char byte : symbol) {
      if (fallback_[static_cast<uint8_t>(byte)] < 0) return false;
    }
    for (char byte : symbol) symbols.push_back({fallback_[static_cast<uint8_t>(byte)], 1});
    return true;
  }

  [[noreturn]] void refuse(std::string_view symbol) const {
    if (unk_token_) {
      throw ConfigError(fmt::format(
          "\"{}\" is not in the vocabulary, nor is the token \"{}\" for unknown characters", symbol,
          *unk_token_));
    }
    throw ConfigError(fmt::format(
        "the text holds \"{}\", which this tokenizer's vocabulary lacks; use one whose vocabulary "
        "holds all characters or bytes, or a token for unknown ones",
        symbol));
  }

  Bpe bpe_;
  std::optional<std::string> unk_token_;
  int32_t unk_ = -1;
  std::string prefix_, suffix_;
  bool fuse_unk_, byte_fallback_, ignore_merges_;
  double dropout_;
  std::array<int32_t, 256> fallback_, ascii_;
};

}  // namespace

std::unique_ptr<Model> make_model(const BpeSpec& spec) {
  return std::make_unique<BpeModel>(spec);
}

}  // namespace trireme::text
