#include "trireme/kernels/attention_block.h"

#include <algorithm>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "trireme/kernels/attention_block.cc"
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"
#include "trireme/kernels/philox-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace trireme::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Columns [begin, end) of a row that its query may see, but for hidden ones.
template <class T>
HWY_INLINE void visible_columns(const ScoreBlock<T>& b, int64_t row, int64_t& begin, int64_t& end) {
  begin = 0;
  end = b.columns;
  if (!b.causal || b.is_blind(row)) return;
  const int64_t own = b.place + row - b.first_key;
  end = std::clamp<int64_t>(own + 1, 0, b.columns);
  if (b.window > 0) begin = std::clamp<int64_t>(own + 1 - b.window, 0, end);
}

// A vector of an array of which `count` values are left.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> load_some(D d, const T* from, int64_t count) {
  if (count >= static_cast<int64_t>(hn::Lanes(d))) return hn::LoadU(d, from);
  alignas(64) T copy[HWY_MAX_BYTES / sizeof(T)] = {};
  std::copy_n(from, count, copy);
  return hn::Load(d, copy);
}

template <class D, class T = hn::TFromD<D>>
HWY_INLINE void add_some(D d, hn::Vec<D> v, T* to, int64_t count) {
  if (count >= static_cast<int64_t>(hn::Lanes(d))) return hn::StoreU(hn::Add(hn::LoadU(d, to), v), d, to);
  alignas(64) T copy[HWY_MAX_BYTES / sizeof(T)];
  hn::Store(v, d, copy);
  for (int64_t i = 0; i < count; ++i) to[i] += copy[i];
}

// Capped, biased and hidden; `bent` becomes tanh(score / cap).
template <class T, class D>
HWY_INLINE hn::Vec<D> finish_scores(D d, const ScoreBlock<T>& b, int64_t row, int64_t column, int64_t count,
                                    hn::Vec<D> s, hn::Vec<D>& bent) {
  if (b.cap > 0) {
    bent = hn::Tanh(d, hn::Mul(s, hn::Set(d, 1 / b.cap)));
    s = hn::Mul(bent, hn::Set(d, b.cap));
  }
  if (b.bias != nullptr) s = hn::Add(s, load_some(d, b.bias + row * b.bias_stride + column, count));
  if (b.hidden != nullptr) {
    const auto hidden = hn::Ne(load_some(d, b.hidden + column, count), hn::Zero(d));
    s = hn::IfThenElse(hidden, hn::Set(d, std::numeric_limits<T>::lowest()), s);
  }
  return s;
}

// Which of a vector of weights are kept.
template <class D>
HWY_INLINE hn::Mask<D> kept(D d, const uint32_t* words, uint32_t threshold) {
  const hn::RebindToUnsigned<D> du;
  if constexpr (sizeof(hn::TFromD<D>) == 4) {
    return hn::RebindMask(d, hn::Not(hn::Lt(hn::LoadU(du, words), hn::Set(du, threshold))));
  } else {
    const hn::Rebind<uint32_t, D> half;
    const auto wide = hn::PromoteTo(du, hn::LoadU(half, words));
    return hn::RebindMask(d, hn::Not(hn::Lt(wide, hn::Set(du, threshold))));
  }
}

// Words of a row's weights [begin, end), at their columns.
template <class T>
HWY_INLINE void row_words(const ScoreBlock<T>& b, int64_t row, int64_t begin, int64_t end, uint32_t* words) {
  Line line = *b.line;
  line.c1 += static_cast<uint32_t>(row);
  begin = begin / 4 * 4;
  make_words(line, static_cast<uint64_t>((b.first_key + begin) / 4), end - begin, words + begin);
}

// Room for the words of a block's row and a round of vectors more.
constexpr int64_t kWordRoom = kKeys + 4 * HWY_MAX_BYTES;

template <class T>
void forward_block(const ScoreBlock<T>& b) {
  constexpr T kLowest = std::numeric_limits<T>::lowest();
  const hn::ScalableTag<T> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  alignas(64) uint32_t words[kWordRoom];
  for (int64_t row = 0; row < b.rows; ++row) {
    T* HWY_RESTRICT s = b.scores + row * kStride;
    T& peak = b.terms[2 * row];
    T& sum = b.terms[2 * row + 1];
    int64_t begin, end;
    visible_columns(b, row, begin, end);
    const bool blind = b.is_blind(row);
    if (blind) std::fill(s, s + b.columns, T{0});

    auto largest = hn::Set(d, kLowest);
    auto nan = hn::IsNaN(largest);
    for (int64_t i = begin; i < end; i += lanes) {
      auto bent = hn::Zero(d), v = hn::LoadU(d, s + i);
      if (!blind) v = finish_scores(d, b, row, i, end - i, v, bent);
      if (end - i < lanes)
        v = hn::IfThenElse(hn::FirstN(d, static_cast<size_t>(end - i)), v, hn::Set(d, kLowest));
      nan = hn::Or(nan, hn::IsNaN(v));
      largest = hn::Max(largest, v);
      hn::StoreU(v, d, s + i);
    }
    const bool lost = !hn::AllFalse(d, nan);  // neither a maximum nor exp need pass a NaN on
    const T found = hn::GetLane(hn::MaxOfLanes(d, largest));
    if (found == kLowest && !lost) {
      std::fill(s, s + b.columns, T{0});
      continue;
    }
    const T before = peak;
    peak = std::max(before, found);
    const T shrink = before == kLowest ? T{0} : std::exp(before - peak);
    if (b.line != nullptr) row_words(b, row, begin, end, words);
    auto total = hn::Zero(d);
    const auto subtract = hn::Set(d, peak);
    for (int64_t i = begin; i < end; i += lanes) {
      auto p = hn::Exp(d, hn::Sub(hn::LoadU(d, s + i), subtract));
      total = hn::Add(total, p);
      if (b.line != nullptr) p = hn::IfThenElseZero(kept(d, words + i, b.line->threshold), p);
      hn::StoreU(p, d, s + i);
    }
    sum = sum * shrink + hn::GetLane(hn::SumOfLanes(d, total));
    if (lost || peak == std::numeric_limits<T>::infinity()) sum = std::numeric_limits<T>::quiet_NaN();
    std::fill(s, s + begin, T{0});
    std::fill(s + end, s + b.columns, T{0});
    if (b.out == nullptr || shrink == 1) continue;
    T* HWY_RESTRICT out = b.out + row * b.out_stride;
    const auto factor = hn::Set(d, shrink);
    int64_t i = 0;
    for (; i + lanes <= b.out_columns; i += lanes) hn::StoreU(hn::Mul(factor, hn::LoadU(d, out + i)), d, out + i);
    for (; i < b.out_columns; ++i) out[i] *= shrink;
  }
}

template <class T>
void backward_block(const ScoreBlock<T>& b) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  alignas(64) uint32_t words[kWordRoom];
  const auto scale = hn::Set(d, static_cast<T>(b.line != nullptr ? b.line->scale : 1));
  const auto one = hn::Set(d, T{1});
  for (int64_t row = 0; row < b.rows; ++row) {
    T* HWY_RESTRICT s = b.scores + row * kStride;
    T* HWY_RESTRICT g = b.gradients + row * kStride;
    int64_t begin, end;
    visible_columns(b, row, begin, end);
    const bool blind = b.is_blind(row);
    if (blind) std::fill(s, s + b.columns, T{0});
    if (b.line != nullptr) row_words(b, row, begin, end, words);
    const auto peak = hn::Set(d, b.terms[2 * row]), share = hn::Set(d, 1 / b.terms[2 * row + 1]);
    const auto product = hn::Set(d, b.products[row]);
    for (int64_t i = begin; i < end; i += lanes) {
      auto bent = hn::Zero(d), v = hn::LoadU(d, s + i);
      if (!blind) v = finish_scores(d, b, row, i, end - i, v, bent);
      auto p = hn::Mul(hn::Exp(d, hn::Sub(v, peak)), share), of_weight = hn::LoadU(d, g + i);
      if (end - i < lanes) p = hn::IfThenElseZero(hn::FirstN(d, static_cast<size_t>(end - i)), p);
      auto dropped = p;
      if (b.line != nullptr) {
        const auto keeps = kept(d, words + i, b.line->threshold);
        dropped = hn::IfThenElseZero(keeps, hn::Mul(p, scale));
        of_weight = hn::IfThenElseZero(keeps, hn::Mul(of_weight, scale));
      }
      auto of_score = hn::Mul(p, hn::Sub(of_weight, product));
      if (end - i < lanes)
        of_score = hn::IfThenElseZero(hn::FirstN(d, static_cast<size_t>(end - i)), of_score);
      if (blind) of_score = hn::Zero(d);
      if (b.bias_gradient != nullptr)
        add_some(d, of_score, b.bias_gradient + row * b.bias_gradient_stride + i, end - i);
      if (b.cap > 0) of_score = hn::Mul(of_score, hn::NegMulAdd(bent, bent, one));
      hn::StoreU(dropped, d, s + i);
      hn::StoreU(of_score, d, g + i);
    }
    for (T* values : {s, g}) {
      std::fill(values, values + begin, T{0});
      std::fill(values + end, values + b.columns, T{0});
    }
  }
}

void forward_f32(const ScoreBlock<float>& block) { forward_block(block); }
void forward_f64(const ScoreBlock<double>& block) { forward_block(block); }
void backward_f32(const ScoreBlock<float>& block) { backward_block(block); }
void backward_f64(const ScoreBlock<double>& block) { backward_block(block); }

}  // namespace trireme::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::kernels {

HWY_EXPORT(forward_f32);
HWY_EXPORT(forward_f64);
HWY_EXPORT(backward_f32);
HWY_EXPORT(backward_f64);

void forward_rows(const ScoreBlock<float>& block) { HWY_DYNAMIC_DISPATCH(forward_f32)(block); }
void forward_rows(const ScoreBlock<double>& block) { HWY_DYNAMIC_DISPATCH(forward_f64)(block); }
void backward_rows(const ScoreBlock<float>& block) { HWY_DYNAMIC_DISPATCH(backward_f32)(block); }
void backward_rows(const ScoreBlock<double>& block) { HWY_DYNAMIC_DISPATCH(backward_f64)(block); }

}  // namespace trireme::kernels
#endif
