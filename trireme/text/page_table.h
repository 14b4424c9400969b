#pragma once
// PageTable: a value for every code point, in two stages; pages of 256 code points that are alike
// are stored once. Code points that nothing was said about have the value T{}.

#include <array>
#include <cstdint>
#include <map>
#include <vector>

namespace trireme::text {

template <class T>
class PageTable {
 public:
  /// `fill(set)` calls `set(first, last, change)`, which applies `change(T&)` to a range.
  template <class Fill>
  explicit PageTable(const Fill& fill) {
    std::vector<T> flat(size_t{kPages} << kPageBits, T{});
    fill([&](char32_t first, char32_t last, const auto& change) {
      for (char32_t c = first; c <= last; ++c) change(flat[c]);
    });
    std::map<Page, uint16_t> known;
    for (int i = 0; i < kPages; ++i) {
      Page page;
      std::copy_n(flat.begin() + (i << kPageBits), page.size(), page.begin());
      auto [at, is_new] = known.emplace(page, static_cast<uint16_t>(pages_.size()));
      if (is_new) pages_.push_back(page);
      index_[i] = at->second;
    }
  }
  T at(char32_t c) const { return pages_[index_[c >> kPageBits]][c & 0xFF]; }

 private:
  static constexpr int kPageBits = 8;
  static constexpr int kPages = (0x110000 >> kPageBits) + 1;  // one more for invalid bytes
  using Page = std::array<T, 1 << kPageBits>;
  std::array<uint16_t, kPages> index_{};
  std::vector<Page> pages_;
};

}  // namespace trireme::text
