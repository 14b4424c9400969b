#include "trireme/text/decoder.h"

#include <algorithm>
#include <utility>

#include "trireme/text/byte_alphabet.h"
#include "trireme/text/json_node.h"
#include "trireme/text/unicode.h"

namespace trireme::text {
namespace {

// Undoes the spaces that tokenization puts around English punctuation.
void clean_up(std::string& text) {
  constexpr std::pair<std::string_view, std::string_view> kReplacements[] = {
      {" .", "."},     {" ?", "?"},     {" !", "!"},            {" ,", ","},
      {" ' ", "'"},    {" n't", "n't"}, {" 'm", "'m"},          {" do not", " don't"},
      {" 's", "'s"},   {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kReplacements) replace_all(text, from, to);
}

// The byte that a token such as <0x0A> stands for, or -1.
int fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int byte = 0;
  for (char c : token.substr(3, 2)) {
    const bool digit = c >= '0' && c <= '9', lower = c >= 'a' && c <= 'f';
    if (!digit && !lower && !(c >= 'A' && c <= 'F')) return -1;
    byte = byte * 16 + (digit ? c - '0' : (c | 0x20) - 'a' + 10);
  }
  return byte;
}

}  // namespace

Decoder::Decoder(const Node& node) : given_(true) {
  add(node, 0);
}

void Decoder::add(const Node& node, int depth) {
  node.check_depth(depth);
  const std::string_view type = node.type();
  auto text = [&](const char* key) { return std::string(node.at(key).text()); };
  if (type == "Sequence") {
    for (const Node& step : node.at("decoders").items()) add(step, depth + 1);
  } else if (type == "ByteLevel") {
    steps_.push_back(ByteLevel{});
  } else if (type == "ByteFallback") {
    steps_.push_back(ByteFallback{});
  } else if (type == "WordPiece") {
    steps_.push_back(WordPiece{text("prefix"), node.at("cleanup").boolean()});
  } else if (type == "Metaspace") {
    bool drops = node.flag("add_prefix_space", true);
    if (auto scheme = node.find("prepend_scheme")) drops = scheme->text() != "never";
    steps_.push_back(Metaspace{text("replacement"), drops});
  } else if (type == "BPEDecoder") {
    steps_.push_back(Bpe{text("suffix")});
  } else if (type == "CTC") {
    steps_.push_back(
        Ctc{text("pad_token"), text("word_delimiter_token"), node.at("cleanup").boolean()});
  } else if (type == "Fuse") {
    steps_.push_back(Fuse{});
  } else if (type == "Strip") {
    steps_.push_back(Strip{text("content"), node.at("start").integer(0, INT32_MAX),
                           node.at("stop").integer(0, INT32_MAX)});
  } else if (type == "Replace") {
    steps_.push_back(Replace{read_pattern(node.at("pattern")), text("content")});
  } else {
    node.unsupported(fmt::format("decoder \"{}\"", type));
  }
}

std::string Decoder::decode(std::vector<std::string> tokens) const {
  for (const Step& step : steps_) {
    std::visit([&](const auto& s) { run(s, tokens); }, step);
  }
  std::string text;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0 && !given_) text += ' ';
    text += tokens[i];
  }
  return text;
}

void Decoder::run(ByteLevel, Tokens& tokens) {
  std::string bytes;
  for (const std::string& token : tokens) bytes += from_alphabet(token).value_or(token);
  tokens = {replace_invalid_utf8(bytes)};
}

void Decoder::run(ByteFallback, Tokens& tokens) {
  Tokens out;
  std::string bytes;
  auto flush = [&] {
    if (bytes.empty()) return;
    if (is_utf8(bytes)) {
      out.push_back(bytes);
    } else {
      out.insert(out.end(), bytes.size(), "\xEF\xBF\xBD");
    }
    bytes.clear();
  };
  for (std::string& token : tokens) {
    const int byte = fallback_byte(token);
    if (byte >= 0) {
      bytes += static_cast<char>(byte);
    } else {
      flush();
      out.push_back(std::move(token));
    }
  }
  flush();
  tokens = std::move(out);
}

void Decoder::run(const WordPiece& step, Tokens& tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    std::string& token = tokens[i];
    if (i > 0) {
      if (token.starts_with(step.prefix)) {
        token.erase(0, step.prefix.size());
      } else {
        token.insert(0, 1, ' ');
      }
    }
    if (step.cleanup) clean_up(token);
  }
}

void Decoder::run(const Metaspace& step, Tokens& tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    replace_all(tokens[i], step.replacement, i == 0 && step.drops_first ? "" : " ");
  }
}

void Decoder::run(const Bpe& step, Tokens& tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    replace_all(tokens[i], step.suffix, i + 1 == tokens.size() ? "" : " ");
  }
}

void Decoder::run(const Ctc& step, Tokens& tokens) {
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  Tokens out;
  for (std::string& token : tokens) {
    replace_all(token, step.pad, "");
    if (step.cleanup) {
      clean_up(token);
      replace_all(token, step.delimiter, " ");
    }
    if (!token.empty()) out.push_back(std::move(token));
  }
  tokens = std::move(out);
}

void Decoder::run(Fuse, Tokens& tokens) {
  std::string all;
  for (const std::string& token : tokens) all += token;
  tokens = {std::move(all)};
}

void Decoder::run(const Strip& step, Tokens& tokens) {
  for (std::string& token : tokens) {
    const size_t size = step.content.size();
    if (size == 0) continue;
    for (int64_t i = 0; i < step.start && token.starts_with(step.content); ++i) token.erase(0, size);
    for (int64_t i = 0; i < step.stop && token.ends_with(step.content); ++i) {
      token.resize(token.size() - size);
    }
  }
}

void Decoder::run(const Replace& step, Tokens& tokens) {
  for (std::string& token : tokens) {
    if (!step.pattern.regex) {
      if (!step.pattern.literal.empty()) replace_all(token, step.pattern.literal, step.content);
      continue;
    }
    std::string out;
    size_t at = 0;
    step.pattern.regex->for_each_match(token, [&](size_t begin, size_t end) {
      out.append(token, at, begin - at).append(step.content);
      at = end;
    });
    out.append(token, at);
    token = std::move(out);
  }
}

}  // namespace trireme::text
