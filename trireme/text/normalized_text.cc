#include "trireme/text/normalized_text.h"

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme::text {

NormalizedText::NormalizedText(std::string_view original, size_t begin, size_t end)
    : text_(original.substr(begin, end - begin)), begin_(static_cast<uint32_t>(begin)) {
  if (end > UINT32_MAX) {
    throw base::ConfigError(fmt::format(
        "a text of {} bytes has no offsets; encode at most 4 GiB at once", original.size()));
  }
  origins_.reserve(text_.size());
  const char *data = text_.data(), *stop = data + text_.size();
  for (const char* p = data; p < stop;) {
    const int length = decode_utf8(p, stop).length;
    const auto at = static_cast<uint32_t>(begin + static_cast<size_t>(p - data));
    origins_.insert(origins_.end(), length, Range{at, at + static_cast<uint32_t>(length)});
    p += length;
  }
}

NormalizedText::NormalizedText(const NormalizedText& from, size_t begin, size_t end)
    : text_(from.text_.substr(begin, end - begin)),
      origins_(from.origins_.begin() + static_cast<int64_t>(begin),
               from.origins_.begin() + static_cast<int64_t>(end)),
      begin_(origins_.empty() ? from.begin_ : origins_.front().begin) {}

NormalizedText::Rewriter::Rewriter(NormalizedText& text, int64_t dropped) : old_(text) {
  // What was inserted before everything has an empty origin; a later rewrite of the whole text
  // leaves it where it is (so does Hugging Face's library).
  while (kept_ < old_.size() && old_.origins_[kept_].begin == old_.origins_[kept_].end) ++kept_;
  at_ = kept_;
  text_.reserve(old_.size() + 16);
  origins_.reserve(old_.size() + 16);
  text_.assign(old_.text_, 0, kept_);
  origins_.assign(old_.origins_.begin(), old_.origins_.begin() + static_cast<int64_t>(kept_));
  for (; dropped > 0; --dropped) advance();
}

void NormalizedText::Rewriter::put(char32_t value, int64_t change) {
  Range origin{old_.begin_, old_.begin_};
  if (change > 0) {
    if (at_ > 0) origin = old_.origins_[std::min(at_, old_.size()) - 1];
  } else {
    if (!old_.origins_.empty()) origin = old_.origins_[std::min(at_, old_.size() - 1)];
    for (int64_t i = change; i <= 0; ++i) advance();
  }
  const size_t before = text_.size();
  append_utf8(text_, value);
  origins_.insert(origins_.end(), text_.size() - before, origin);
}

void NormalizedText::Rewriter::copy_until(size_t end) {
  text_.append(old_.text_, at_, end - at_);
  origins_.insert(origins_.end(), old_.origins_.begin() + static_cast<int64_t>(at_),
                  old_.origins_.begin() + static_cast<int64_t>(end));
  at_ = end;
}

void NormalizedText::Rewriter::finish() {
  old_.text_ = std::move(text_);
  old_.origins_ = std::move(origins_);
}

void NormalizedText::prepend(std::string_view prefix) {
  if (text_.empty()) return;
  // The prefix takes the place of the first character, which follows as an insertion.
  const Range first = origins_.front();
  const int length = decode_utf8(text_.data(), text_.data() + text_.size()).length;
  const Range shared = origins_[length - 1];
  const char *p = prefix.data(), *end = p + prefix.size();
  if (p == end) return;
  const int head = decode_utf8(p, end).length;
  std::vector<Range> origins(head, first);
  origins.insert(origins.end(), prefix.size() - head + length, shared);
  origins_.erase(origins_.begin(), origins_.begin() + length);
  origins_.insert(origins_.begin(), origins.begin(), origins.end());
  text_.insert(0, prefix);
}

void NormalizedText::replace(const std::vector<Range>& ranges, std::string_view content) {
  if (ranges.empty()) return;
  std::u32string characters;
  for (const char *p = content.data(), *end = p + content.size(); p < end;) {
    const CodePoint c = decode_utf8(p, end);
    characters += c.value;
    p += c.length;
  }
  std::string text;
  std::vector<Range> origins;
  text.reserve(text_.size());
  origins.reserve(text_.size());
  size_t at = 0;
  auto copy_until = [&](size_t end) {
    text.append(text_, at, end - at);
    origins.insert(origins.end(), origins_.begin() + static_cast<int64_t>(at),
                   origins_.begin() + static_cast<int64_t>(end));
    at = end;
  };
  for (const Range& range : ranges) {
    copy_until(range.begin);
    at = range.end;
    // An insertion where the old text may end in something that was inserted just now.
    const Range origin = range.end > range.begin ? origins_[range.end - 1]
                         : !origins.empty()      ? origins.back()
                                                 : Range{begin_, begin_};
    text += content;
    origins.insert(origins.end(), content.size(), origin);
  }
  copy_until(text_.size());
  text_ = std::move(text);
  origins_ = std::move(origins);
}

void NormalizedText::strip(bool left, bool right) {
  const char *data = text_.data(), *end = data + text_.size();
  int64_t leading = 0, trailing = 0, characters = 0, spaces = 0;
  for (const char* p = data; p < end; ++characters) {
    const CodePoint c = decode_utf8(p, end);
    spaces = is_space(c.value) ? spaces + 1 : 0;
    if (spaces == characters + 1) leading = spaces;
    p += c.length;
  }
  trailing = right ? spaces : 0;
  if (!left) leading = 0;
  if (leading == 0 && trailing == 0) return;
  Rewriter out(*this, leading);
  const std::string old = text_;
  int64_t i = 0;
  for (const char *p = old.data(), *stop = p + old.size(); p < stop; ++i) {
    const CodePoint c = decode_utf8(p, stop);
    p += c.length;
    if (i < leading || i >= characters - trailing) continue;
    out.put(c.value, i == characters - trailing - 1 ? -trailing : 0);
  }
  out.finish();
}

}  // namespace trireme::text
