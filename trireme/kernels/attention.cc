#include "trireme/kernels/attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/kernels/attention_block.h"
#include "trireme/kernels/parallel.h"
#include "trireme/layout/slices.h"

// The BLAS that LibTorch brings, most often MKL; matrices by columns.
extern "C" {
void sgemm_(const char* transpose_a, const char* transpose_b, const int* m, const int* n, const int* k,
            const float* alpha, const float* a, const int* lda, const float* b, const int* ldb, const float* beta,
            float* c, const int* ldc);
void dgemm_(const char* transpose_a, const char* transpose_b, const int* m, const int* n, const int* k,
            const double* alpha, const double* a, const int* lda, const double* b, const int* ldb, const double* beta,
            double* c, const int* ldc);
int MKL_Set_Num_Threads_Local(int threads) __attribute__((weak));
}

namespace trireme::kernels {
namespace {

// Products of this thread use no others while it lives: how MKL shares them out changes bits.
class OneThread {
 public:
  OneThread() : before_(MKL_Set_Num_Threads_Local ? MKL_Set_Num_Threads_Local(1) : 0) {}
  ~OneThread() {
    if (MKL_Set_Num_Threads_Local) MKL_Set_Num_Threads_Local(before_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

// Rows of values, one after the other at a stride.
template <class T>
struct Rows {
  T* data;
  int64_t stride;
};

// c [m, n] = alpha * a b + beta * c by rows; `a` [m, k], or [k, m] transposed; `b` [k, n], or [n, k] transposed.
template <class T>
void multiply(bool transposes_a, bool transposes_b, int64_t m, int64_t n, int64_t k, T alpha, Rows<const T> a,
              Rows<const T> b, T beta, Rows<T> c) {
  const int sizes[] = {static_cast<int>(n), static_cast<int>(m), static_cast<int>(k)};
  const int strides[] = {static_cast<int>(b.stride), static_cast<int>(a.stride), static_cast<int>(c.stride)};
  const char left = transposes_b ? 'T' : 'N', right = transposes_a ? 'T' : 'N';
  if constexpr (std::is_same_v<T, float>)
    sgemm_(&left, &right, &sizes[0], &sizes[1], &sizes[2], &alpha, b.data, &strides[0], a.data, &strides[1], &beta,
           c.data, &strides[2]);
  else
    dgemm_(&left, &right, &sizes[0], &sizes[1], &sizes[2], &alpha, b.data, &strides[0], a.data, &strides[1], &beta,
           c.data, &strides[2]);
}

// A tensor [batch, heads, places, features] whose features are neighbours.
template <class T>
struct Heads {
  T* data = nullptr;
  int64_t batch = 0, head = 0, place = 0;
  Heads() = default;
  explicit Heads(const at::Tensor& t)
      : data(static_cast<T*>(const_cast<void*>(t.const_data_ptr()))),
        batch(t.stride(0)),
        head(t.stride(1)),
        place(t.size(2) > 1 ? t.stride(2) : std::max(t.stride(2), t.size(3))) {}
  Rows<T> rows(int64_t b, int64_t h, int64_t first) const { return {data + b * batch + h * head + first * place, place}; }
};

at::Tensor with_neighbours(const at::Tensor& t) {
  return t.stride(-1) == 1 && (t.size(2) <= 1 || t.stride(2) >= t.size(3)) ? t : t.contiguous();
}

at::Tensor heads_within_places(int64_t batch, int64_t heads, int64_t places, int64_t features,
                               const at::TensorOptions& options, bool zero) {
  const std::vector<int64_t> shape{batch, places, heads, features};
  return (zero ? at::zeros(shape, options) : at::empty(shape, options)).transpose(1, 2);
}

// What forward and backward passes share: sizes, which keys a query sees, and blocks filled in but for their memory.
template <class T>
class Plan {
 public:
  Plan(const at::Tensor& q, const at::Tensor& k, const AttentionScores& scores)
      : queries(q.size(2)), keys(k.size(2)), groups(q.size(1) / k.size(1)), scores_(scores) {
    if (scores.bias.defined()) {
      at::Tensor wide = scores.bias.expand({q.size(0), q.size(1), queries, keys});
      base::check(keys == 1 || wide.stride(3) == 1, "a bias of scores is contiguous over the keys");
      bias_ = Heads<const T>(wide);
    }
    if (scores.keys.defined() || queries > keys) find_blind(q.size(0));
    if (scores.dropout > 0) {
      const int64_t* samples = scores.where.samples.template const_data_ptr<int64_t>();
      for (int64_t b = 0; b < q.size(0); ++b)
        base::check(samples[b] >= 0 && samples[b] >> 32 == 0, "sample index {} does not fit the mask's counter",
                    samples[b]);
    }
  }

  const int64_t queries, keys, groups;

  // The keys that any of the queries [first, + rows) sees, from a multiple of 4 on.
  layout::Range keys_of(int64_t b, int64_t first, int64_t rows) const {
    const int64_t place = keys - queries + first;
    if (!scores_.causal || place < 0) return {0, keys};
    if (!blind_.empty() && std::any_of(&blind_[b * queries + first], &blind_[b * queries + first] + rows,
                                       [](uint8_t blind) { return blind != 0; }))
      return {0, keys};
    const int64_t begin = scores_.window > 0 ? std::max<int64_t>(0, place + 1 - scores_.window) : 0;
    return {begin / 4 * 4, place + rows};
  }

  ScoreBlock<T> block(int64_t b, int64_t h, int64_t first_query, int64_t rows, int64_t first_key, int64_t columns,
                      Line& line) const {
    ScoreBlock<T> block{.first_query = first_query,
                        .rows = rows,
                        .first_key = first_key,
                        .columns = columns,
                        .place = keys - queries + first_query,
                        .causal = scores_.causal,
                        .window = scores_.window,
                        .cap = static_cast<T>(scores_.soft_cap)};
    if (bias_.data) {
      block.bias = bias_.rows(b, h, first_query).data + first_key;
      block.bias_stride = bias_.place;
    }
    if (!hidden_.empty()) block.hidden = &hidden_[b * keys + first_key];
    if (!blind_.empty()) block.blind = &blind_[b * queries + first_query];
    if (scores_.dropout > 0) {
      const MaskCoordinates& where = scores_.where;
      line = {.key = where.key,
              .c1 = static_cast<uint32_t>(where.origin_c + first_query),
              .c2 = static_cast<uint32_t>(where.origin_b + h),
              .c3 = static_cast<uint32_t>(where.samples.template const_data_ptr<int64_t>()[b]),
              .threshold = static_cast<uint32_t>(scores_.dropout * 0x1p32),
              .scale = 1 / (1 - scores_.dropout)};
      block.line = &line;
    }
    return block;
  }

 private:
  void find_blind(int64_t batch) {
    const bool* seen = scores_.keys.defined() ? scores_.keys.template const_data_ptr<bool>() : nullptr;
    blind_.resize(batch * queries);
    if (seen) hidden_.resize(batch * keys);
    std::vector<int64_t> before(keys + 1);  // visible keys before each
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t k = 0; k < keys; ++k) {
        const bool visible = !seen || seen[b * keys + k];
        if (seen) hidden_[b * keys + k] = visible ? 0 : 1;
        before[k + 1] = before[k] + visible;
      }
      for (int64_t i = 0; i < queries; ++i) {
        const int64_t end = scores_.causal ? std::clamp<int64_t>(keys - queries + i + 1, 0, keys) : keys;
        const int64_t begin = scores_.causal && scores_.window > 0 ? std::max<int64_t>(0, end - scores_.window) : 0;
        blind_[b * queries + i] = before[end] == before[begin];
      }
    }
  }

  const AttentionScores& scores_;
  Heads<const T> bias_;
  std::vector<T> hidden_;       // [batch, keys]
  std::vector<uint8_t> blind_;  // [batch, queries]
};

void check_operands(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionScores& scores) {
  const at::ScalarType type = q.scalar_type();
  base::check(type == at::kFloat || type == at::kDouble, "attention takes fp32 or fp64, given {}", c10::toString(type));
  base::check(q.dim() == 4 && k.dim() == 4 && v.dim() == 4 && k.scalar_type() == type && v.scalar_type() == type &&
                  q.size(0) == k.size(0) && q.size(3) == k.size(3) && k.size(0) == v.size(0) &&
                  k.size(1) == v.size(1) && k.size(2) == v.size(2) && k.size(1) > 0 && k.size(2) > 0 &&
                  q.size(1) % k.size(1) == 0,
              "attention: queries, keys and values do not go together");
  base::check(!scores.bias.defined() || (scores.bias.dim() == 4 && scores.bias.scalar_type() == type),
              "a bias of scores has four dimensions and their type");
  base::check(!scores.keys.defined() ||
                  (scores.keys.scalar_type() == at::kBool && scores.keys.is_contiguous() && scores.keys.dim() == 2 &&
                   scores.keys.size(0) == q.size(0) && scores.keys.size(1) == k.size(2)),
              "a mask of keys is bool [batch, keys]");
  base::check(scores.dropout >= 0 && scores.dropout < 1, "weights are dropped with probability {}", scores.dropout);
  base::check(scores.dropout == 0 || (scores.where.samples.numel() == q.size(0) && scores.where.origin_d == 0),
              "dropout needs the index of each of its {} samples", q.size(0));
}

template <class T>
AttentionResult forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionScores& scores) {
  const Plan<T> plan(q, k, scores);
  const int64_t batch = q.size(0), heads = q.size(1), size = q.size(3), width = v.size(3), queries = plan.queries;
  AttentionResult result{.out = heads_within_places(batch, heads, queries, width, q.options(), false),
                         .terms = at::empty({batch, heads, queries, 2}, q.options())};
  const Heads<const T> from_q(q), from_k(k), from_v(v);
  const Heads<T> to_out(result.out), to_terms(result.terms);
  const int64_t blocks = (queries + kQueries - 1) / kQueries;
  parallel_for(batch * heads * blocks, 1, [&](int64_t begin, int64_t end) {
    const OneThread alone;
    at::Tensor memory = at::empty({kQueries, kStride}, q.options());
    T* const weights = memory.mutable_data_ptr<T>();
    for (int64_t task = begin; task < end; ++task) {
      const int64_t b = task / blocks / heads, h = task / blocks % heads, first = task % blocks * kQueries;
      const int64_t rows = std::min(kQueries, queries - first), source = h / plan.groups;
      const Rows<T> out = to_out.rows(b, h, first);
      T* const terms = to_terms.rows(b, h, first).data;
      for (int64_t i = 0; i < rows; ++i) terms[2 * i] = std::numeric_limits<T>::lowest(), terms[2 * i + 1] = 0;
      const layout::Range seen = plan.keys_of(b, first, rows);
      for (int64_t key = seen.begin; key < seen.end; key += kKeys) {
        const int64_t columns = std::min(kKeys, seen.end - key);
        multiply<T>(false, true, rows, columns, size, static_cast<T>(scores.scale), from_q.rows(b, h, first),
                    from_k.rows(b, source, key), 0, {weights, kStride});
        Line line;
        ScoreBlock<T> block = plan.block(b, h, first, rows, key, columns, line);
        block.scores = weights;
        block.terms = terms;
        if (key > seen.begin) block.out = out.data, block.out_stride = out.stride, block.out_columns = width;
        forward_rows(block);
        multiply<T>(false, false, rows, width, columns, 1, {weights, kStride}, from_v.rows(b, source, key),
                    key > seen.begin ? 1 : 0, out);
      }
      for (int64_t i = 0; i < rows; ++i) {
        const T factor = static_cast<T>(1 / (1 - scores.dropout)) / terms[2 * i + 1];
        for (int64_t j = 0; j < width; ++j) out.data[i * out.stride + j] *= factor;
      }
    }
  });
  return result;
}

template <class T>
AttentionGradients backward(const at::Tensor& gradient, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const AttentionResult& result, const AttentionScores& scores, bool bias_gradient) {
  const Plan<T> plan(q, k, scores);
  const int64_t batch = q.size(0), heads = q.size(1), sources = k.size(1), size = q.size(3), width = v.size(3);
  const int64_t queries = plan.queries, keys = plan.keys;
  AttentionGradients made{.q = heads_within_places(batch, heads, queries, size, q.options(), false),
                          .k = heads_within_places(batch, sources, keys, size, q.options(), true),
                          .v = heads_within_places(batch, sources, keys, width, q.options(), true)};
  Heads<T> of_bias;
  bool over_batch = false, over_heads = false;  // are several samples' or heads' biases one?
  if (bias_gradient) {
    made.bias = at::zeros(scores.bias.sizes(), q.options());
    base::check(made.bias.size(2) == queries && made.bias.size(3) == keys,
                "the gradient of a bias that is broadcast over queries or keys");
    at::Tensor wide = made.bias.expand({batch, heads, queries, keys});
    of_bias = Heads<T>(wide);
    over_batch = made.bias.size(0) < batch;
    over_heads = made.bias.size(1) < heads;
  }
  const Heads<const T> from_q(q), from_k(k), from_v(v), from_out(result.out), from_terms(result.terms),
      from_gradient(gradient);
  const Heads<T> to_q(made.q), to_k(made.k), to_v(made.v);

  const auto run = [&](int64_t b, int64_t source, T* weights) {
    T* const gradients = weights + kQueries * kStride;
    T* const products = gradients + kQueries * kStride;
    for (int64_t h = source * plan.groups; h < (source + 1) * plan.groups; ++h) {
      for (int64_t first = 0; first < queries; first += kQueries) {
        const int64_t rows = std::min(kQueries, queries - first);
        const Rows<const T> own_q = from_q.rows(b, h, first), out = from_out.rows(b, h, first),
                            own = from_gradient.rows(b, h, first);
        for (int64_t i = 0; i < rows; ++i) {
          products[i] = 0;
          for (int64_t j = 0; j < width; ++j)
            products[i] += out.data[i * out.stride + j] * own.data[i * own.stride + j];
        }
        const layout::Range seen = plan.keys_of(b, first, rows);
        for (int64_t key = seen.begin; key < seen.end; key += kKeys) {
          const int64_t columns = std::min(kKeys, seen.end - key);
          const Rows<const T> own_k = from_k.rows(b, source, key);
          multiply<T>(false, true, rows, columns, size, static_cast<T>(scores.scale), own_q, own_k, 0,
                      {weights, kStride});
          multiply<T>(false, true, rows, columns, width, 1, own, from_v.rows(b, source, key), 0,
                      {gradients, kStride});
          Line line;
          ScoreBlock<T> block = plan.block(b, h, first, rows, key, columns, line);
          block.scores = weights;
          block.gradients = gradients;
          block.products = products;
          block.terms = const_cast<T*>(from_terms.rows(b, h, first).data);
          if (of_bias.data) {
            block.bias_gradient = of_bias.rows(b, h, first).data + key;
            block.bias_gradient_stride = of_bias.place;
          }
          backward_rows(block);
          multiply<T>(true, false, columns, width, rows, 1, {weights, kStride}, own, 1, to_v.rows(b, source, key));
          const T scale = static_cast<T>(scores.scale);
          multiply<T>(false, false, rows, size, columns, scale, {gradients, kStride}, own_k, key > seen.begin ? 1 : 0,
                      to_q.rows(b, h, first));
          multiply<T>(true, false, columns, size, rows, scale, {gradients, kStride}, own_q, 1,
                      to_k.rows(b, source, key));
        }
      }
    }
  };
  // Whoever adds to the same memory goes one after the other.
  const int64_t batches = over_batch ? 1 : batch, families = over_heads ? 1 : sources;
  parallel_for(batches * families, 1, [&](int64_t begin, int64_t end) {
    const OneThread alone;
    at::Tensor memory = at::empty({2 * kQueries * kStride + kQueries}, q.options());
    for (int64_t task = begin; task < end; ++task)
      for (int64_t b = over_batch ? 0 : task / families; b < (over_batch ? batch : task / families + 1); ++b)
        for (int64_t s = over_heads ? 0 : task % families; s < (over_heads ? sources : task % families + 1); ++s)
          run(b, s, memory.mutable_data_ptr<T>());
  });
  return made;
}

}  // namespace

AttentionResult attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionScores& scores) {
  check_operands(q, k, v, scores);
  const at::Tensor a = with_neighbours(q), b = with_neighbours(k), c = with_neighbours(v);
  return q.scalar_type() == at::kDouble ? forward<double>(a, b, c, scores) : forward<float>(a, b, c, scores);
}

AttentionGradients attention_backward(const at::Tensor& gradient, const at::Tensor& q, const at::Tensor& k,
                                      const at::Tensor& v, const AttentionResult& result, const AttentionScores& scores,
                                      bool bias_gradient) {
  check_operands(q, k, v, scores);
  base::check(gradient.sizes() == result.out.sizes() && gradient.scalar_type() == q.scalar_type(),
              "attention's gradient has its result's shape and type");
  const at::Tensor g = with_neighbours(gradient), a = with_neighbours(q), b = with_neighbours(k),
                   c = with_neighbours(v);
  const AttentionResult kept{.out = with_neighbours(result.out), .terms = result.terms};
  return q.scalar_type() == at::kDouble ? backward<double>(g, a, b, c, kept, scores, bias_gradient)
                                        : backward<float>(g, a, b, c, kept, scores, bias_gradient);
}

}  // namespace trireme::kernels
