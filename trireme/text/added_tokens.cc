#include "trireme/text/added_tokens.h"

#include <algorithm>

#include "trireme/text/unicode.h"

namespace trireme::text {

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    (tokens_[i].normalized ? normalized_ : raw_).add(tokens_[i].content, static_cast<int32_t>(i));
  }
}

void AddedTokens::Pass::add(std::string_view content, int32_t token) {
  if (content.empty()) return;
  starts[static_cast<uint8_t>(content[0])] = true;
  int32_t node = 0;
  for (char c : content) {
    auto& next = nodes[node].next;
    auto found = std::find_if(next.begin(), next.end(), [c](const auto& edge) {
      return edge.first == static_cast<uint8_t>(c);
    });
    if (found != next.end()) {
      node = found->second;
    } else {
      next.emplace_back(static_cast<uint8_t>(c), static_cast<int32_t>(nodes.size()));
      node = static_cast<int32_t>(nodes.size());
      nodes.emplace_back();
    }
  }
  nodes[node].token = token;
}

int32_t AddedTokens::Pass::longest_at(std::string_view text, size_t at) const {
  int32_t longest = -1, node = 0;
  for (; at < text.size(); ++at) {
    const auto& next = nodes[node].next;
    auto found = std::find_if(next.begin(), next.end(), [&](const auto& edge) {
      return edge.first == static_cast<uint8_t>(text[at]);
    });
    if (found == next.end()) break;
    node = found->second;
    if (nodes[node].token >= 0) longest = nodes[node].token;
  }
  return longest;
}

void AddedTokens::find(const Pass& pass, std::string_view all, size_t begin, size_t end,
                       std::vector<Span>& spans) const {
  const std::string_view text = all.substr(begin, end - begin);
  size_t done = 0;  // the text before is in spans
  // Tokens are found as if none swallowed whitespace; one that begins with such whitespace takes it
  // once more.
  for (size_t at = 0; !pass.empty() && at < text.size();) {
    int32_t found = -1;
    if (pass.starts[static_cast<uint8_t>(text[at])]) found = pass.longest_at(text, at);
    if (found < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[found];
    size_t first = at, last = at + token.content.size();
    at = last;
    const char *start = text.data(), *stop = start + text.size();
    if (token.single_word &&
        ((first > 0 && is_word_character(decode_utf8_before(start, start + first).value)) ||
         (last < text.size() && is_word_character(decode_utf8(start + last, stop).value)))) {
      continue;
    }
    if (token.lstrip && last <= done) continue;  // nothing is left of it
    if (token.lstrip) first = std::max(first, done);
    while (token.lstrip && first > done) {
      CodePoint c = decode_utf8_before(start, start + first);
      if (char_class(c.value) != CharClass::space) break;
      first -= c.length;
    }
    while (token.rstrip && last < text.size()) {
      CodePoint c = decode_utf8(start + last, stop);
      if (char_class(c.value) != CharClass::space) break;
      last += c.length;
    }
    if (done < first) spans.push_back({begin + done, begin + first, -1});
    spans.push_back({begin + first, begin + last, token.id});
    done = last;
  }
  if (done < text.size()) spans.push_back({begin + done, end, -1});
}

void AddedTokens::split(std::string_view text, std::vector<Span>& spans) const {
  spans.clear();
  if (normalized_.empty()) return find(raw_, text, 0, text.size(), spans);
  std::vector<Span> first;
  find(raw_, text, 0, text.size(), first);
  for (const Span& span : first) {
    if (span.id >= 0) {
      spans.push_back(span);
    } else {
      find(normalized_, text, span.begin, span.end, spans);
    }
  }
}

}  // namespace trireme::text
