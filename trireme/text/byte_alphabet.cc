#include "trireme/text/byte_alphabet.h"

#include <array>

#include "trireme/text/unicode.h"

namespace trireme::text {
namespace {

// Printable Latin-1 stands for itself; the other bytes take the code points from 256 on, in order.
constexpr bool stands_for_itself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Alphabet {
  std::array<char32_t, 256> chars{};
  std::array<int16_t, 512> bytes{};
  constexpr Alphabet() {
    bytes.fill(-1);
    char32_t next = 256;
    for (int b = 0; b < 256; ++b) {
      chars[b] = stands_for_itself(b) ? static_cast<char32_t>(b) : next++;
      bytes[chars[b]] = static_cast<int16_t>(b);
    }
  }
};
constexpr Alphabet kAlphabet;

}  // namespace

char32_t alphabet_char(uint8_t byte) {
  return kAlphabet.chars[byte];
}

std::string to_alphabet(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size() * 2);
  for (char c : bytes) append_utf8(text, alphabet_char(static_cast<uint8_t>(c)));
  return text;
}

std::optional<std::string> from_alphabet(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  for (const char *p = text.data(), *end = p + text.size(); p < end;) {
    CodePoint c = decode_utf8(p, end);
    if (c.value >= kAlphabet.bytes.size() || kAlphabet.bytes[c.value] < 0) return std::nullopt;
    bytes += static_cast<char>(kAlphabet.bytes[c.value]);
    p += c.length;
  }
  return bytes;
}

}  // namespace trireme::text
