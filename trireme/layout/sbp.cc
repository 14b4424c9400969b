#include "trireme/layout/sbp.h"

#include <algorithm>

#include <charconv>

#include "trireme/base/error.h"

namespace trireme::layout {

std::string to_string(const Sbp& sbp) {
  if (sbp.is_split()) return fmt::format("split({})", sbp.dim);
  if (sbp == Sbp::invariant()) return "invariant";
  if (sbp == Sbp::replicated()) return "replicated";
  if (sbp == Sbp::partial()) return "partial";
  constexpr char kLetters[] = {'B', 'S', 'P'};
  return fmt::format("({},{})", kLetters[static_cast<int>(sbp.value)],
                     kLetters[static_cast<int>(sbp.grad)]);
}

Sbp sbp_from_string(const std::string& text) {
  for (const Sbp& sbp : {Sbp::invariant(), Sbp::replicated(), Sbp::partial()})
    if (text == to_string(sbp)) return sbp;
  if (text.starts_with("split(") && text.ends_with(")")) {
    const char* begin = text.data() + 6;
    const char* end = text.data() + text.size() - 1;
    int dim = 0;
    auto [stop, error] = std::from_chars(begin, end, dim);
    if (error == std::errc() && stop == end) return Sbp::split(dim);
  }
  throw base::FormatError(fmt::format(
      "'{}' is no placement; expected invariant, replicated, partial or split(DIM)", text));
}

Range intersect(Range a, Range b) {
  const int64_t begin = std::clamp(b.begin, a.begin, a.end);
  return {begin, std::clamp(b.end, begin, a.end)};
}

Range split_range(int64_t size, int parts, int index) {
  base::check(size >= 0 && parts >= 1 && index >= 0 && index < parts,
              "cannot take part {} of {} of a size of {}", index, parts, size);
  int64_t share = size / parts, rest = size % parts;
  int64_t begin = index * share + std::min<int64_t>(index, rest);
  return {begin, begin + share + (index < rest ? 1 : 0)};
}

std::vector<int64_t> split_sizes(int64_t size, int parts) {
  std::vector<int64_t> sizes;
  for (int i = 0; i < parts; ++i) sizes.push_back(split_range(size, parts, i).size());
  return sizes;
}

}  // namespace trireme::layout
