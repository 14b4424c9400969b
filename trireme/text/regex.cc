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

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  std::string run() {
    while (at_ < in_.size()) step();
    return std::move(out_);
  }

 private:
  [[noreturn]] void unsupported(const std::string& what) const {
    throw FormatError(fmt::format("regular expression {}: {} is not supported", in_, what));
  }
  bool next_is(std::string_view text) const { return in_.substr(at_).starts_with(text); }
  char take() {
    if (at_ >= in_.size()) throw FormatError(fmt::format("regular expression {}: it ends early", in_));
    return in_[at_++];
  }

  void step() {
    const char c = in_[at_];
    switch (c) {
      case '\\':
        atom_ = out_.size();
        ++at_;
        escape(false);
        break;
      case '[':
        atom_ = out_.size();
        ++at_;
        bracket();
        break;
      case '(':
        open_group();
        break;
      case ')':
        if (groups_.empty()) {
          throw FormatError(fmt::format("regular expression {}: ')' closes nothing", in_));
        }
        atom_ = groups_.back();
        groups_.pop_back();
        out_ += take();
        break;
      case '{':
        interval();
        break;
      case '*':
      case '+':
      case '?':
      case '|':
      case '^':
      case '$':
        out_ += take();
        break;
      default:
        atom_ = out_.size();
        out_ += take();
        while (at_ < in_.size() && (static_cast<uint8_t>(in_[at_]) & 0xC0) == 0x80) out_ += take();
    }
  }

  // Oniguruma reads x{2,3}+ as (x{2,3})+, PCRE2 as possessive.
  void interval() {
    const size_t close = in_.find('}', at_);
    if (close == std::string_view::npos ||
        in_.substr(at_ + 1, close - at_ - 1).find_first_not_of("0123456789,") !=
            std::string_view::npos) {
      atom_ = out_.size();
      out_ += '\\';
      out_ += take();
      return;
    }
    out_ += in_.substr(at_, close + 1 - at_);
    at_ = close + 1;
    if (next_is("+")) {
      out_.insert(atom_, "(?:");
      out_ += ")";
    }
  }

  void open_group() {
    groups_.push_back(out_.size());
    out_ += take();
    if (!next_is("?")) return;
    out_ += take();
    if (next_is(":") || next_is("=") || next_is("!") || next_is(">") || next_is("<=") ||
        next_is("<!")) {
      return;
    }
    if (next_is("<")) return;  // a named group
    if (next_is("#")) {
      while (take() != ')') continue;
      out_.resize(groups_.back());
      groups_.pop_back();
      return;
    }
    // Options: Oniguruma's m lets the dot match line ends, which PCRE2 calls s.
    while (true) {
      const char option = take();
      if (option == ':' || option == ')') {
        out_ += option;
        if (option == ')') groups_.pop_back();
        return;
      }
      if (option == 'm') {
        out_ += 's';
      } else if (option == 'i' || option == '-') {
        out_ += option;
      } else {
        unsupported(fmt::format("option '{}'", option));
      }
    }
  }

  // The name of \p{...}; a caret inside negates.
  std::string property(bool& negated) {
    std::string name;
    if (next_is("{")) {
      ++at_;
      if (next_is("^")) {
        negated = !negated;
        ++at_;
      }
      for (char c = take(); c != '}'; c = take()) name += c;
    } else {
      name = take();
    }
    return name;
  }

  void named_class(std::string_view name, bool negated, bool inside) {
    const auto ranges = regex_class(name);
    if (ranges.empty()) unsupported(fmt::format("the class \"{}\"", name));
    if (!inside) out_ += negated ? "[^" : "[";
    char32_t next = 0;
    for (const CodeRange& range : ranges) {
      if (!inside || !negated) {
        add_range(range.first, range.last);
      } else {
        if (range.first > next) add_range(next, range.first - 1);
        next = range.last + 1;
      }
    }
    if (inside && negated && next < kInvalidByte) add_range(next, kInvalidByte - 1);
    if (!inside) out_ += ']';
  }

  void add_range(char32_t first, char32_t last) {
    // Surrogates are no characters to PCRE2.
    if (first < 0xD800 && last >= 0xE000) {
      add_range(first, 0xD7FF);
      first = 0xE000;
    }
    if (first >= 0xD800 && first < 0xE000) first = 0xE000;
    if (last >= 0xD800 && last < 0xE000) last = 0xD7FF;
    if (first > last) return;
    out_ += fmt::format("\\x{{{:X}}}", static_cast<uint32_t>(first));
    if (last > first) out_ += fmt::format("-\\x{{{:X}}}", static_cast<uint32_t>(last));
  }

  // After the backslash.
  void escape(bool inside) {
    const char c = take();
    bool negated = c >= 'A' && c <= 'Z';
    switch (c) {
      case 'p':
      case 'P': {
        const std::string name = property(negated);
        return named_class(name, negated, inside);
      }
      case 's':
      case 'S':
        return named_class("space", negated, inside);
      case 'w':
      case 'W':
        return named_class("word", negated, inside);
      case 'd':
      case 'D':
        return named_class("Nd", negated, inside);
      case 'h':
      case 'H':
        if (!inside) {
          out_ += negated ? "[^0-9A-Fa-f]" : "[0-9A-Fa-f]";
        } else if (negated) {
          unsupported("\\H inside a class");
        } else {
          out_ += "0-9A-Fa-f";
        }
        return;
      case 'u': {
        std::string digits;
        for (int i = 0; i < 4; ++i) digits += take();
        out_ += "\\x{" + digits + "}";
        return;
      }
      case 'b':
      case 'B':
        if (!inside) unsupported(std::string("\\") + c);
        [[fallthrough]];
      default:
        if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
          constexpr std::string_view kSame = "tnrfvaexAzZGKRX";
          if (kSame.find(c) == std::string_view::npos && !(inside && c == 'b')) {
            unsupported(std::string("\\") + c);
          }
        }
        out_ += '\\';
        out_ += c;
        while (at_ < in_.size() && (static_cast<uint8_t>(in_[at_]) & 0xC0) == 0x80) out_ += take();
    }
  }

  // After the opening bracket.
  void bracket() {
    out_ += '[';
    if (next_is("^")) out_ += take();
    bool first = true;
    while (true) {
      if (next_is("[:")) {
        const size_t close = in_.find(":]", at_);
        if (close == std::string_view::npos) unsupported("'[' inside a class");
        std::string_view name = in_.substr(at_ + 2, close - at_ - 2);
        at_ = close + 2;
        const bool negated = name.starts_with('^');
        if (negated) name.remove_prefix(1);
        named_class(name == "digit" ? "Nd" : name, negated, true);
      } else if (next_is("[")) {
        unsupported("a class inside a class");
      } else if (next_is("&&")) {
        unsupported("&&");
      } else if (next_is("\\")) {
        ++at_;
        escape(true);
      } else {
        const char c = take();
        out_ += c;
        if (c == ']' && !first) return;
      }
      first = false;
    }
  }

  std::string_view in_;
  size_t at_ = 0;
  std::string out_;
  size_t atom_ = 0;  // where the latest atom begins in out_
  std::vector<size_t> groups_;
};

std::string message_of(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

std::string translate_regex(std::string_view pattern) {
  return Translator(pattern).run();
}

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
