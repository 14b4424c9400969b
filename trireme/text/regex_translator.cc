// Oniguruma's syntax (that of Ruby) in PCRE2's. Differences that are spelled out: classes hold our
// tables' code points and may be nested and intersected; letters without case also stand for each
// other where one is several ("ss" and U+00DF); options inside a group hold up to its end; x{2,3}+
// and x{2}? repeat the whole once more.

#include <cctype>
#include <optional>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/text/code_set.h"
#include "trireme/text/regex.h"

namespace trireme::text {
namespace {

using base::FormatError;

std::string spelled(char32_t code) {
  return fmt::format("\\x{{{:X}}}", static_cast<uint32_t>(code));
}

std::string spelled(std::span<const CodeRange> set, bool negated) {
  std::string out = negated ? "[^" : "[";
  auto add = [&](char32_t first, char32_t last) {
    if (first > last) return;
    out += spelled(first);
    if (last > first) out += fmt::format("-{}", spelled(last));
  };
  for (const CodeRange& range : set) {  // surrogates are no characters to PCRE2
    add(range.first, std::min<char32_t>(range.last, 0xD7FF));
    add(std::max<char32_t>(range.first, 0xE000), range.last);
  }
  if (out.back() == '[') return "(?!)";
  if (out.back() == '^') return "(?s:.)";
  return out + "]";
}

char32_t folded(char32_t code) {
  const auto folds = case_folds();
  const auto found = std::lower_bound(folds.begin(), folds.end(), code,
                                      [](const CaseFold& f, char32_t c) { return f.code < c; });
  return found != folds.end() && found->code == code ? found->folded : code;
}

/// The code points that are the same without case, and those that are several of them in one.
CodeSet variants(char32_t code) {
  const char32_t same = folded(code);
  CodeSet all = {{same, same}};
  for (const CaseFold& fold : case_folds()) {
    if (fold.folded == same) all.push_back({fold.code, fold.code});
  }
  return united(std::move(all));
}

CodeSet ligatures(std::u32string_view folded_text) {
  CodeSet all;
  for (const FullCaseFold& fold : full_case_folds()) {
    if (fold.folded == folded_text) all.push_back({fold.code, fold.code});
  }
  return united(std::move(all));
}

// A code point, or the text of several, without case.
std::string without_case(char32_t code) {
  const CodeSet all = variants(code);
  const bool alone = all.size() == 1 && all[0].first == all[0].last;
  return alone ? spelled(code) : spelled(all, false);
}
std::string without_case(std::u32string_view text) {
  std::string out;
  for (char32_t code : text) out += without_case(code);
  return out;
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  std::string run() {
    while (at_ < in_.size()) step();
    write_letters();
    out_.append(closings_, ')');
    return std::move(out_);
  }

 private:
  struct Group {
    size_t begin;
    bool ignore_case;
    int closings;
  };

  [[noreturn]] void wrong(const std::string& what) const {
    throw FormatError(fmt::format("regular expression {}: {}", in_, what));
  }
  [[noreturn]] void unsupported(const std::string& what) const {
    wrong(what + " is not supported");
  }
  bool next_is(std::string_view text) const { return in_.substr(at_).starts_with(text); }
  bool skip(std::string_view text) {
    if (!next_is(text)) return false;
    at_ += text.size();
    return true;
  }
  char take() {
    if (at_ >= in_.size()) wrong("it ends early");
    return in_[at_++];
  }
  char32_t take_code() {
    if (at_ >= in_.size()) wrong("it ends early");
    const CodePoint code = decode_utf8(in_.data() + at_, in_.data() + in_.size());
    at_ += code.length;
    return code.value;
  }

  void step() {
    switch (in_[at_]) {
      case '\\':
        ++at_;
        return escape();
      case '[':
        ++at_;
        return bracket();
      case '(':
        if (!skip("(?#")) return open_group();
        while (take() != ')') continue;
        return;
      case ')':
        return close_group();
      case '{':
        return interval();
      case '*':
      case '+':
      case '?':
        end_letters();
        out_ += take();
        return;
      case '|':
      case '^':
      case '$':
      case '.':
        write_letters();
        atom_ = out_.size();
        out_ += take();
        return;
      default:
        letter(take_code());
    }
  }

  // Letters in a row are kept back while case does not matter: some of them may be one character.
  void letter(char32_t code) {
    if (ignore_case_) {
      letters_ += code;
    } else {
      atom(spelled(code));
    }
  }
  void atom(const std::string& text) {
    write_letters();
    atom_ = out_.size();
    out_ += text;
  }
  void write_letters() {
    for (size_t i = 0, length; i < letters_.size(); i += length) {
      atom_ = out_.size();
      length = write_letter(std::u32string_view(letters_).substr(i));
    }
    letters_.clear();
  }
  // Returns how many of the letters are written.
  size_t write_letter(std::u32string_view rest) {
    for (size_t length : {3, 2}) {
      if (rest.size() < length) continue;
      std::u32string text;
      for (char32_t code : rest.substr(0, length)) text += folded(code);
      const CodeSet single = ligatures(text);
      if (single.empty()) continue;
      out_ += "(?:" + without_case(text) + "|" + spelled(single, false) + ")";
      return length;
    }
    for (const FullCaseFold& fold : full_case_folds()) {
      if (fold.code != rest[0]) continue;
      CodeSet same = variants(fold.code);
      for (const CodeRange& range : ligatures(fold.folded)) same.push_back(range);
      out_ += "(?:" + spelled(united(same), false) + "|" + without_case(fold.folded) + ")";
      return 1;
    }
    out_ += without_case(rest[0]);
    return 1;
  }
  // Before what repeats: the last letter stands alone.
  void end_letters() {
    if (letters_.empty()) return;
    const char32_t last = letters_.back();
    letters_.pop_back();
    write_letters();
    letters_ = last;
    write_letters();
  }

  void interval() {
    const size_t close = in_.find('}', at_);
    const std::string_view inside =
        close == std::string_view::npos ? "" : in_.substr(at_ + 1, close - at_ - 1);
    if (inside.find_first_of("0123456789") == std::string_view::npos ||
        inside.find_first_not_of("0123456789,") != std::string_view::npos) {
      return letter(take());
    }
    end_letters();
    at_ = close + 1;
    out_ += inside[0] == ',' ? fmt::format("{{0{}}}", inside) : fmt::format("{{{}}}", inside);
    if (next_is("+") || (next_is("?") && inside.find(',') == std::string_view::npos)) {
      out_.insert(atom_, "(?:");
      out_ += ")";
    }
  }

  void open_group() {
    write_letters();
    groups_.push_back({out_.size(), ignore_case_, closings_});
    closings_ = 0;
    out_ += take();
    if (!skip("?")) return;
    out_ += '?';
    for (std::string_view kind : {":", "=", "!", ">", "<=", "<!"}) {
      if (skip(kind)) {
        out_ += kind;
        return;
      }
    }
    if (next_is("<")) {  // a name
      for (char c = 0; c != '>'; out_ += c) c = take();
      return;
    }
    options();
  }

  // Oniguruma's m lets the dot match line ends, which PCRE2 calls s. Without a colon they hold up
  // to the end of the group around, alternatives included.
  void options() {
    bool on = true;
    while (true) {
      const char option = take();
      if (option == ':' || option == ')') {
        out_ += ':';
        if (option == ')') {
          closings_ = groups_.back().closings + 1;
          groups_.pop_back();
        }
        return;
      }
      if (option == 'm') {
        out_ += 's';
      } else if (option == 'i') {
        ignore_case_ = on;
        out_ += 'i';
      } else if (option == '-') {
        on = false;
        out_ += '-';
      } else {
        unsupported(fmt::format("option '{}'", option));
      }
    }
  }

  void close_group() {
    write_letters();
    if (groups_.empty()) wrong("')' closes nothing");
    ++at_;
    out_.append(closings_ + 1, ')');
    atom_ = groups_.back().begin;
    ignore_case_ = groups_.back().ignore_case;
    closings_ = groups_.back().closings;
    groups_.pop_back();
  }

  // The set that \p, \s, \w, \d, \h and their opposites stand for; `c` follows the backslash.
  std::optional<CodeSet> named_set(char c, bool inside) {
    bool negated = c >= 'A' && c <= 'Z';
    std::string name;
    switch (c) {
      case 'p':
      case 'P':
        if (!skip("{")) unsupported("\\p without braces");
        if (skip("^")) negated = !negated;
        for (char n = take(); n != '}'; n = take()) name += n;
        break;
      case 's':
      case 'S':
        name = "space";
        break;
      case 'w':
      case 'W':
        name = inside ? "word in a class" : "word";
        break;
      case 'd':
      case 'D':
        name = "Nd";
        break;
      case 'h':
      case 'H':
        name = "xdigit";
        break;
      default:
        return std::nullopt;
    }
    CodeSet set = named(name);
    return negated ? complement(set) : set;
  }
  CodeSet named(const std::string& name) const {
    if (name == "xdigit") return {{'0', '9'}, {'A', 'F'}, {'a', 'f'}};
    const auto ranges = regex_class(name);
    if (ranges.empty()) unsupported(fmt::format("the class \"{}\"", name));
    return {ranges.begin(), ranges.end()};
  }

  char32_t hexadecimal(size_t least, size_t most) {
    const size_t begin = at_;
    while (at_ < in_.size() && at_ < begin + most &&
           std::isxdigit(static_cast<uint8_t>(in_[at_]))) {
      ++at_;
    }
    if (at_ < begin + least) wrong("hexadecimal digits expected");
    const auto code =
        static_cast<char32_t>(std::stoul(std::string(in_.substr(begin, at_ - begin)), nullptr, 16));
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) wrong("there is no such character");
    return code;
  }

  // The one character that an escape stands for, if it is such a one.
  std::optional<char32_t> single(char c, bool inside) {
    constexpr std::string_view kNames = "tnrfvae", kValues = "\t\n\r\f\v\a\x1B";
    if (const size_t k = kNames.find(c); k != std::string_view::npos) return kValues[k];
    if (c == 'b' && inside) return U'\b';
    if (c == 'u') return hexadecimal(4, 4);
    if (c == 'x') {
      if (skip("{")) {
        const char32_t code = hexadecimal(1, 8);
        if (!skip("}")) wrong("'}' expected");
        return code;
      }
      const char32_t code = hexadecimal(1, 2);
      if (code > 0x7F) unsupported("a byte that is no character");
      return code;
    }
    if (c == '0' && !(at_ < in_.size() && in_[at_] >= '0' && in_[at_] <= '7')) return U'\0';
    if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
      return std::nullopt;
    }
    --at_;
    return take_code();
  }

  void escape() {
    const char c = take();
    if (const auto set = named_set(c, false)) {
      const bool small = c >= 'a' && c <= 'z';
      // Classes by name keep their case. The shorter spelling is the one of the positive class.
      const std::string text = small ? spelled(*set, false) : spelled(complement(*set), true);
      return atom(ignore_case_ ? "(?-i:" + text + ")" : text);
    }
    if (const auto code = single(c, false)) return letter(*code);
    constexpr std::string_view kSame = "AzZGKRX123456789";
    const bool several_digits = c <= '9' && at_ < in_.size() && in_[at_] >= '0' && in_[at_] <= '9';
    if (kSame.find(c) == std::string_view::npos || several_digits) {
      unsupported(std::string("\\") + c);
    }
    if (ignore_case_ && c <= '9') unsupported("a reference to a group where case does not matter");
    atom(std::string("\\") + c);
  }

  void bracket() {
    bool negated = false;
    const CodeSet set = class_members(negated);
    std::string text = spelled(set, negated);
    if (!ignore_case_) return atom(text);
    text = fmt::format("(?-i:{})", text);
    std::string several;
    if (!negated) {
      for (const FullCaseFold& fold : full_case_folds()) {
        const std::string form = fmt::format("|{}", without_case(fold.folded));
        if (contains(set, fold.code) && several.find(form) == std::string::npos) several += form;
      }
    }
    atom(several.empty() ? text : fmt::format("(?:{}{})", text, several));
  }

  // After the opening bracket, up to the closing one. Case is taken care of.
  CodeSet class_members(bool& negated) {
    negated = skip("^");
    CodeSet members;
    CodeSet left;  // of &&
    bool met = false;
    auto meet = [&] {
      const CodeSet set = united(std::exchange(members, {}));
      left = std::exchange(met, true) ? intersection(left, set) : set;
    };
    for (bool first = true;; first = false) {
      if (next_is("]") && !first) break;
      if (skip("[:")) {
        add(members, posix());
      } else if (skip("[")) {
        bool inner = false;
        const CodeSet set = class_members(inner);
        add(members, inner ? complement(set) : set);
      } else if (skip("&&")) {
        if (next_is("^")) unsupported("'^' after &&");
        meet();
      } else {
        range(members);
      }
    }
    ++at_;
    meet();
    return ignore_case_ ? with_all_cases(left) : left;
  }
  static void add(CodeSet& to, const CodeSet& set) { to.insert(to.end(), set.begin(), set.end()); }

  static CodeSet with_all_cases(CodeSet set) {
    CodeSet all = set;
    for (const CaseFold& fold : case_folds()) {
      if (!contains(set, fold.code) && !contains(set, fold.folded)) continue;
      for (const CodeRange& range : variants(fold.folded)) all.push_back(range);
    }
    return united(std::move(all));
  }

  CodeSet posix() {
    const size_t close = in_.find(":]", at_);
    if (close == std::string_view::npos) unsupported("'[:' without ':]'");
    std::string name(in_.substr(at_, close - at_));
    at_ = close + 2;
    const bool negated = name.starts_with('^');
    if (negated) name.erase(0, 1);
    CodeSet set;
    if (name == "alnum") {
      set = named("alpha");
      add(set, named("Nd"));
    } else if (name == "blank") {
      set = named("Zs");
      set.push_back({'\t', '\t'});
    } else if (name == "digit" || name == "cntrl") {
      set = named(name == "digit" ? "Nd" : "Cc");
    } else if (name == "word") {
      set = named("word in a class");
    } else if (name == "alpha" || name == "punct" || name == "space" || name == "xdigit") {
      set = named(name);
    } else {
      unsupported(fmt::format("[:{}:]", name));
    }
    set = united(std::move(set));
    return negated ? complement(set) : set;
  }

  // One character, a range of them, or a class by name.
  void range(CodeSet& members) {
    auto end_of_range = [&]() -> std::optional<char32_t> {
      if (!skip("\\")) return take_code();
      const char c = take();
      if (auto set = named_set(c, true)) {
        add(members, *set);
        return std::nullopt;
      }
      const auto code = single(c, true);
      if (!code) unsupported(fmt::format("\\{} inside a class", c));
      return code;
    };
    const auto first = end_of_range();
    const bool goes_on = next_is("-") && at_ + 1 < in_.size() && in_[at_ + 1] != ']';
    if (!first) {
      if (goes_on) unsupported("a range that begins with a class");
      return;
    }
    if (!goes_on) return members.push_back({*first, *first});
    ++at_;
    if (next_is("[")) unsupported("a range that ends with a class");
    const auto last = end_of_range();
    if (!last) wrong("a range ends with a class");
    if (*last < *first) wrong("a range is empty");
    members.push_back({*first, *last});
    if (next_is("-") && skip("-")) members.push_back({'-', '-'});  // a-c-e: no range
  }

  std::string_view in_;
  size_t at_ = 0;
  std::string out_;
  size_t atom_ = 0;  // where the latest atom begins in out_
  std::u32string letters_;
  bool ignore_case_ = false;
  int closings_ = 0;  // what options opened in this group
  std::vector<Group> groups_;
};

}  // namespace

std::string translate_regex(std::string_view pattern) {
  return Translator(pattern).run();
}

}  // namespace trireme::text
