#include "trireme/base/wording.h"

#include <fmt/format.h>

namespace trireme::base {

namespace {

/// Bytes of the UTF-8 character that `text` starts with; 0 where it starts with none, or with a
/// control character.
size_t character(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  const size_t size = first >= 0xf5   ? 0
                      : first >= 0xf0 ? 4
                      : first >= 0xe0 ? 3
                      : first >= 0xc2 ? 2
                                      : 0;
  if (size == 0 || text.size() < size) return 0;
  for (size_t i = 1; i < size; ++i)
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) return 0;
  // U+0080 to U+009F are control characters too.
  return first == 0xc2 && static_cast<unsigned char>(text[1]) < 0xa0 ? 0 : size;
}

}  // namespace

std::string counted(int64_t number, std::string_view noun) {
  const bool hisses = noun.ends_with("s") || noun.ends_with("ch") || noun.ends_with("x");
  return fmt::format("{} {}{}", number, noun, number == 1 ? "" : hisses ? "es" : "s");
}

std::string printable(std::string_view text) {
  constexpr size_t kMost = 60;
  std::string out;
  for (size_t i = 0; i < text.size();) {
    if (i >= kMost) return out + "...";
    const size_t size = character(text.substr(i));
    if (size > 0)
      out += text.substr(i, size);
    else
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[i]));
    i += size > 0 ? size : 1;
  }
  return out;
}

}  // namespace trireme::base
