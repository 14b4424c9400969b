#include "trireme/text/charsmap.h"

#include <cstring>

#include "trireme/base/error.h"

namespace trireme::text {
namespace {

constexpr size_t kLongCluster = 6;  // bytes from which on a cluster is looked up by characters
constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

// The units of the darts-clone double array.
bool has_leaf(uint32_t unit) {
  return (unit >> 8) & 1;
}
uint32_t value(uint32_t unit) {
  return unit & 0x7FFFFFFF;
}
uint32_t label(uint32_t unit) {
  return unit & 0x800000FF;
}
uint32_t offset(uint32_t unit) {
  return (unit >> 10) << ((unit & 0x200) >> 6);
}

}  // namespace

Charsmap::Charsmap(std::string_view blob) {
  uint32_t size = 0;
  if (blob.size() >= sizeof size) std::memcpy(&size, blob.data(), sizeof size);
  if (blob.size() < sizeof size || size % 4 != 0 || size > blob.size() - sizeof size) {
    throw base::FormatError(fmt::format(
        "a precompiled character map of {} bytes that says its trie has {}", blob.size(), size));
  }
  units_.resize(size / 4);
  if (size > 0) std::memcpy(units_.data(), blob.data() + sizeof size, size);
  replacements_ = blob.substr(sizeof size + size);
  if (units_.empty()) throw base::FormatError("a precompiled character map without a trie");
}

std::optional<std::string_view> Charsmap::find(std::string_view text) const {
  size_t node = 0;
  uint32_t unit = units_[0];
  node ^= offset(unit);
  for (char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte == 0) return std::nullopt;
    node ^= byte;
    if (node >= units_.size()) return std::nullopt;
    unit = units_[node];
    if (label(unit) != byte) return std::nullopt;
    node ^= offset(unit);
    if (has_leaf(unit)) {
      if (node >= units_.size()) return std::nullopt;
      const size_t at = value(units_[node]);
      if (at >= replacements_.size()) return std::nullopt;
      const size_t end = replacements_.find('\0', at);
      return std::string_view(replacements_).substr(at, end == std::string::npos ? end : end - at);
    }
  }
  return std::nullopt;
}

void Charsmap::apply(NormalizedText& text) const {
  const std::string old(text.view());
  std::vector<std::pair<char32_t, int64_t>> changes;
  changes.reserve(old.size());
  bool changed = false;
  const char *p = old.data(), *end = p + old.size();
  auto replace = [&](std::string_view part) {
    const auto found = find(part);
    if (!found) return false;
    changed = true;
    const int64_t before = count_characters(part), after = count_characters(*found);
    int64_t i = 0;
    for (const char *q = found->data(), *stop = q + found->size(); q < stop; ++i) {
      const CodePoint c = decode_utf8(q, stop);
      changes.emplace_back(c.value, i >= before ? 1 : 0);
      q += c.length;
    }
    // What is gone belongs to the character before it, if there is one.
    if (after < before && !changes.empty()) changes.back().second += after - before;
    return true;
  };
  while (p < end) {
    const char* next = grapheme_end(p, end);
    const std::string_view cluster(p, next - p);
    if (cluster.size() >= kLongCluster || !replace(cluster)) {
      for (const char* q = p; q < next;) {
        const CodePoint c = decode_utf8(q, next);
        if (!replace({q, static_cast<size_t>(c.length)})) changes.emplace_back(c.value, 0);
        q += c.length;
      }
    }
    p = next;
  }
  if (!changed) return;
  NormalizedText::Rewriter out(text);
  for (const auto& [value, change] : changes) out.put(value, change);
  out.finish();
}

std::string decode_base64(std::string_view text) {
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string bytes;
  bytes.reserve(text.size() * 3 / 4);
  uint32_t bits = 0;
  int count = 0;
  for (char c : text) {
    const size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos || c == '\0') {
      throw base::FormatError(fmt::format("'{}' is no base64 digit", c));
    }
    bits = bits << 6 | static_cast<uint32_t>(digit);
    count += 6;
    if (count >= 8) {
      count -= 8;
      bytes += static_cast<char>(bits >> count);
    }
  }
  return bytes;
}

std::string encode_base64(std::string_view bytes) {
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t n = std::min<size_t>(3, bytes.size() - i);
    uint32_t bits = 0;
    for (size_t k = 0; k < 3; ++k) {
      bits = bits << 8 | (k < n ? static_cast<uint8_t>(bytes[i + k]) : 0);
    }
    for (size_t k = 0; k < 4; ++k) {
      text += k <= n ? kDigits[bits >> (18 - 6 * k) & 63] : '=';
    }
  }
  return text;
}

}  // namespace trireme::text
