#include "trireme/text/encoding.h"

#include <algorithm>

#include "trireme/text/json_node.h"

namespace trireme::text {
namespace {

template <class T>
void append_all(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

template <class T>
std::vector<T> part(const std::vector<T>& from, size_t begin, size_t end) {
  return {from.begin() + static_cast<int64_t>(begin), from.begin() + static_cast<int64_t>(end)};
}

template <class T>
void fill(std::vector<T>& list, size_t count, const T& value, bool on_left) {
  list.insert(on_left ? list.begin() : list.end(), count, value);
}

void pad(Encoding& encoding, size_t length, const Padding& padding) {
  for (Encoding& other : encoding.overflowing) pad(other, length, padding);
  if (encoding.size() >= length) return;
  const size_t count = length - encoding.size();
  const bool left = padding.on_left;
  fill(encoding.ids, count, padding.id, left);
  fill(encoding.type_ids, count, padding.type, left);
  fill(encoding.tokens, count, padding.token, left);
  fill(encoding.words, count, -1, left);
  fill(encoding.offsets, count, {}, left);
  fill<uint8_t>(encoding.special_tokens_mask, count, 1, left);
  fill<uint8_t>(encoding.attention_mask, count, 0, left);
  fill(encoding.sequences, count, -1, left);
}

}  // namespace

Encoding Encoding::slice(size_t begin, size_t end) const {
  return {.ids = part(ids, begin, end),
          .type_ids = part(type_ids, begin, end),
          .tokens = part(tokens, begin, end),
          .words = part(words, begin, end),
          .offsets = part(offsets, begin, end),
          .special_tokens_mask = part(special_tokens_mask, begin, end),
          .attention_mask = part(attention_mask, begin, end),
          .sequences = part(sequences, begin, end),
          .overflowing = {}};
}

void Encoding::append(const Encoding& other) {
  std::vector<Encoding> combined;
  auto combine = [&](const Encoding& first, const Encoding& second) {
    Encoding both = first.slice(0, first.size());
    both.append(second.slice(0, second.size()));
    combined.push_back(std::move(both));
  };
  for (const Encoding& window : overflowing) {
    combine(window, other);
    for (const Encoding& second : other.overflowing) combine(window, second);
  }
  for (const Encoding& second : other.overflowing) combine(*this, second);
  append_all(ids, other.ids);
  append_all(type_ids, other.type_ids);
  append_all(tokens, other.tokens);
  append_all(words, other.words);
  append_all(offsets, other.offsets);
  append_all(special_tokens_mask, other.special_tokens_mask);
  append_all(attention_mask, other.attention_mask);
  append_all(sequences, other.sequences);
  overflowing = std::move(combined);
}

void Encoding::add(int32_t id, int32_t type, std::string token, int32_t word, Offsets at,
                   bool special) {
  ids.push_back(id);
  type_ids.push_back(type);
  tokens.push_back(std::move(token));
  words.push_back(word);
  offsets.push_back(at);
  special_tokens_mask.push_back(special);
  attention_mask.push_back(1);
  sequences.push_back(-1);
}

Truncation Truncation::read(const Node& node) {
  Truncation truncation;
  truncation.max_length = node.at("max_length").integer(0, INT32_MAX);
  if (auto stride = node.find("stride")) truncation.stride = stride->integer(0, INT32_MAX);
  if (auto strategy = node.find("strategy")) {
    const std::string_view name = strategy->text();
    if (name == "OnlyFirst") {
      truncation.strategy = Strategy::only_first;
    } else if (name == "OnlySecond") {
      truncation.strategy = Strategy::only_second;
    } else if (name != "LongestFirst") {
      strategy->unsupported(fmt::format("strategy \"{}\"", name));
    }
  }
  if (auto direction = node.find("direction")) {
    if (direction->text() != "Left" && direction->text() != "Right") {
      direction->unsupported(fmt::format("direction \"{}\"", direction->text()));
    }
    truncation.from_left = direction->text() == "Left";
  }
  if (truncation.max_length > 0 && truncation.stride >= truncation.max_length) {
    node.fail(fmt::format("stride {} is not below max_length {}", truncation.stride,
                          truncation.max_length));
  }
  return truncation;
}

void Truncation::cut(Encoding& encoding, int64_t length) const {
  const auto size = static_cast<int64_t>(encoding.size());
  if (length >= size) return;
  if (length == 0) {
    Encoding empty;
    empty.overflowing.push_back(std::move(encoding));
    encoding = std::move(empty);
    return;
  }
  if (stride >= length) {
    throw base::ConfigError(fmt::format(
        "a stride of {} tokens needs windows of more than {}; lower the stride or raise max_length",
        stride, length));
  }
  std::vector<Encoding> windows;
  if (from_left) {
    for (int64_t end = size;; end -= length - stride) {
      const int64_t begin = std::max<int64_t>(0, end - length);
      windows.push_back(encoding.slice(begin, end));
      if (begin == 0) break;
    }
  } else {
    for (int64_t begin = 0;; begin += length - stride) {
      const int64_t end = std::min(size, begin + length);
      windows.push_back(encoding.slice(begin, end));
      if (end == size) break;
    }
  }
  encoding = std::move(windows.front());
  encoding.overflowing.assign(std::make_move_iterator(windows.begin() + 1),
                              std::make_move_iterator(windows.end()));
}

void Truncation::apply(Encoding& first, Encoding* second, int64_t added) const {
  const int64_t room = max_length - added;
  if (room < 0) {
    throw base::ConfigError(fmt::format(
        "truncation to {} tokens leaves no room for {} special tokens; raise max_length",
        max_length, added));
  }
  auto n1 = static_cast<int64_t>(first.size());
  int64_t n2 = second ? static_cast<int64_t>(second->size()) : 0;
  if (room == 0) {
    cut(first, 0);
    if (second) cut(*second, 0);
    return;
  }
  const int64_t excess = n1 + n2 - room;
  if (excess <= 0) return;
  if (strategy == Strategy::longest_first) {
    if (!second) return cut(first, room);
    const bool swapped = n1 > n2;
    if (swapped) std::swap(n1, n2);
    n2 = n1 > room ? n1 : std::max(n1, room - n1);
    if (n1 + n2 > room) {
      n1 = room / 2;
      n2 = n1 + room % 2;
    }
    if (swapped) std::swap(n1, n2);
    cut(first, n1);
    cut(*second, n2);
    return;
  }
  Encoding* target = strategy == Strategy::only_first ? &first : second;
  if (!target) {
    throw base::ConfigError(
        "truncation is to cut the second text only, but there is none; give a pair of texts or "
        "another strategy");
  }
  const auto size = static_cast<int64_t>(target->size());
  if (size <= excess) {
    throw base::ConfigError(fmt::format(
        "truncation to {} tokens is to take {} off a text of {}; use the strategy LongestFirst",
        max_length, excess, size));
  }
  cut(*target, size - excess);
}

Padding Padding::read(const Node& node) {
  Padding padding;
  const Node strategy = node.at("strategy");
  if (strategy.is_object()) {
    padding.length = strategy.at("Fixed").integer(0, INT32_MAX);
  } else if (strategy.text() != "BatchLongest") {
    strategy.unsupported(fmt::format("strategy \"{}\"", strategy.text()));
  }
  if (auto multiple = node.find("pad_to_multiple_of")) {
    padding.multiple_of = multiple->integer(0, INT32_MAX);
  }
  const std::string_view direction = node.at("direction").text();
  if (direction != "Left" && direction != "Right") {
    node.at("direction").unsupported(fmt::format("direction \"{}\"", direction));
  }
  padding.on_left = direction == "Left";
  padding.id = static_cast<int32_t>(node.at("pad_id").integer(0, INT32_MAX));
  padding.type = static_cast<int32_t>(node.at("pad_type_id").integer(0, INT32_MAX));
  padding.token = node.at("pad_token").text();
  return padding;
}

void Padding::apply(std::vector<Encoding>& batch) const {
  size_t size = 0;
  for (const Encoding& encoding : batch) size = std::max(size, encoding.size());
  if (length) size = *length;
  if (multiple_of > 0 && size % multiple_of > 0) size += multiple_of - size % multiple_of;
  for (Encoding& encoding : batch) pad(encoding, size, *this);
}

}  // namespace trireme::text
