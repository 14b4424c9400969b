#pragma once
// The byte alphabet of GPT-2: each of the 256 bytes has a printable character, so that any byte
// string can stand in a vocabulary file as text. "Ġ" is the space, "Ċ" the line feed.
//
//   to_alphabet(" a\n") == "ĠaĊ"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::text {

/// The character that stands for a byte.
char32_t alphabet_char(uint8_t byte);
/// Bytes written in the alphabet (UTF-8).
std::string to_alphabet(std::string_view bytes);
/// The bytes that a text of the alphabet stands for; nothing when a character lies outside the
/// alphabet.
std::optional<std::string> from_alphabet(std::string_view text);

}  // namespace trireme::text
