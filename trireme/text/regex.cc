#define PCRE2_CODE_UNIT_WIDTH 8
#include "trireme/text/regex.h"

#include <pcre2.h>

#include <vector>

#include "trireme/base/error.h"
#include "trireme/text/unicode.h"

namespace trireme::text {
namespace {

using base::ConfigError;
using base::FormatError;

std::string message_of(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

struct Regex::Compiled {
  std::string pattern;
  pcre2_code* code = nullptr;
  ~Compiled() { pcre2_code_free(code); }
};

Regex::Regex(std::string_view pattern) : compiled_(std::make_unique<Compiled>()) {
  compiled_->pattern = pattern;
  if (!is_utf8(pattern)) throw FormatError("a regular expression that is not UTF-8");
  const std::string translated = translate_regex(pattern);
  int error = 0;
  PCRE2_SIZE offset = 0;
  compiled_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()),
                                  translated.size(), PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE |
                                                         PCRE2_NEVER_BACKSLASH_C,
                                  &error, &offset, nullptr);
  if (!compiled_->code) {
    throw FormatError(fmt::format("regular expression {}: {}", pattern, message_of(error)));
  }
  pcre2_jit_compile(compiled_->code, PCRE2_JIT_COMPLETE);  // without it matching is only slower
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

Regex::Search::Search(const Regex& regex, std::string_view text)
    : compiled_(*regex.compiled_), text_(text) {
  if (!is_utf8(text)) {
    // An invalid byte is matched as a control character of one byte is.
    repaired_ = text;
    char *p = repaired_.data(), *stop = p + repaired_.size();
    while (p < stop) {
      const CodePoint c = decode_utf8(p, stop);
      if (c.value >= kInvalidByte) *p = '\x1A';
      p += c.length;
    }
    text_ = repaired_;
  }
  match_ = pcre2_match_data_create(1, nullptr);
}

Regex::Search::~Search() {
  pcre2_match_data_free(static_cast<pcre2_match_data*>(match_));
}

bool Regex::Search::next() {
  auto* match = static_cast<pcre2_match_data*>(match_);
  while (from_ <= text_.size()) {
    uint32_t options = PCRE2_NO_UTF_CHECK;
    auto run = [&] {
      return pcre2_match(compiled_.code, reinterpret_cast<PCRE2_SPTR>(text_.data()), text_.size(),
                         from_, options, match, nullptr);
    };
    int count = run();
    if (count == PCRE2_ERROR_JIT_STACKLIMIT) {
      options |= PCRE2_NO_JIT;
      count = run();
    }
    if (count == PCRE2_ERROR_NOMATCH) return false;
    if (count < 0) {
      throw ConfigError(fmt::format("regular expression {} on a text of {} bytes: {}",
                                    compiled_.pattern, text_.size(), message_of(count)));
    }
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(match);
    begin = ends[0];
    end = ends[1];
    if (begin == end && end == last_end_) {
      if (from_ >= text_.size()) return false;
      from_ += decode_utf8(text_.data() + from_, text_.data() + text_.size()).length;
      continue;
    }
    from_ = last_end_ = end;
    return true;
  }
  return false;
}

}  // namespace trireme::text
