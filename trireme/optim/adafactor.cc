#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "trireme/dist/device.h"
#include "trireme/optim/rules.h"

namespace trireme::optim {
namespace {

constexpr double kDecay = -0.8;     // exponent of the step: the new gradient's share of the moment
constexpr double kSmallest = 1e-3;  // least root mean square of a parameter that scales its steps
constexpr double kLargest = 1;      // root mean square from which on a step is clipped

// A parameter as matrices: of its last two dimensions, in a batch of the others.
struct Factors {
  int64_t rows, columns, count;  // rows of all matrices; their columns; rows of one matrix
  explicit Factors(const layout::Shape& shape)
      : columns(shape.back()), count(shape[shape.size() - 2]) {
    rows = columns > 0 ? layout::element_count(shape) / columns : 0;
  }
  int64_t column_means() const { return count > 0 ? rows / count * columns : 0; }
};

bool factored(const layout::ParamSpec& spec) {
  return spec.shape.size() > 1;
}

// Calls body(i, row, column mean) for the elements of a segment, i counting from its begin.
template <class Body>
void for_each_element(const Segment& segment, const Body& body) {
  const layout::ParamSpec& spec = segment.param->spec;
  const Factors factors(spec.shape);
  layout::for_each_run(segment.param->slice, spec.shape, [&](layout::Run run) {
    const int64_t begin = std::max(run.local, segment.flat.begin);
    const int64_t end = std::min(run.local + run.count, segment.flat.end);
    if (begin >= end) return;
    const int64_t global = run.global + begin - run.local;
    int64_t row = global / factors.columns, column = global % factors.columns;
    int64_t first = row / factors.count * factors.columns;
    for (int64_t local = begin; local < end; ++local) {
      body(local - segment.flat.begin, row, first + column);
      if (++column == factors.columns) column = 0, first = ++row / factors.count * factors.columns;
    }
  });
}

class Adafactor final : public Optimizer {
 public:
  explicit Adafactor(WholeTensors whole) : whole_(std::move(whole)) {}
  std::vector<State> states(const layout::ParamSpec& spec) const override {
    if (!factored(spec)) return {{"variance"}};
    layout::Shape row = spec.shape, column = spec.shape;
    row.back() = 1;
    column[column.size() - 2] = 1;
    return {{"row_var", row}, {"col_var", column}};
  }
  std::vector<std::string> state_names() const override {
    return {"row_var", "col_var", "variance"};
  }
  bool collective() const override { return true; }

  void step(std::span<const Segment> segments, double lr, int64_t step,
            double grad_scale) const override {
    if (segments.empty() && whole_.size() == 0) return;
    if (!whole_.device().is_cpu()) return step_on_host(segments, lr, step, grad_scale);
    step_here(segments, lr, step, grad_scale);
  }

 private:
  void step_here(std::span<const Segment> segments, double lr, int64_t step,
                 double grad_scale) const {
    const at::ScalarType type =
        segments.empty() ? nn::wide_type(whole_.param(0)->spec.dtype) : type_of(segments);
    type == at::kDouble ? step_as<double>(segments, lr, step, grad_scale)
                        : step_as<float>(segments, lr, step, grad_scale);
  }

  // The same on copies of what lies on a device; its rows and columns are walked by the host.
  void step_on_host(std::span<const Segment> segments, double lr, int64_t step,
                    double grad_scale) const {
    std::map<const void*, std::pair<at::Tensor, at::Tensor>> copies;  // segments may share a state
    const auto copy = [&](at::Tensor& tensor) {
      auto& [from, to] = copies[tensor.const_data_ptr()];
      if (!to.defined()) from = tensor, to = dist::to_host(tensor);
      tensor = to;
    };
    std::vector<Segment> own(segments.begin(), segments.end());
    for (Segment& segment : own) {
      segment.grad = dist::to_host(segment.grad);
      copy(segment.data);
      for (at::Tensor& state : segment.state) copy(state);
    }
    step_here(own, lr, step, grad_scale);
    for (auto& [address, pair] : copies) pair.first.copy_(pair.second);
  }
  // What is known of a parameter: the squares of its elements, then sums of squared gradients by
  // row and by column.
  template <class T>
  std::vector<std::vector<double>> sums(std::span<const Segment> segments, double grad_scale) const {
    std::vector<std::vector<double>> numbers(whole_.size());
    for (size_t i = 0; i < numbers.size(); ++i) {
      const layout::ParamSpec& spec = whole_.param(i)->spec;
      const Factors factors = factored(spec) ? Factors(spec.shape) : Factors({0, 0});
      numbers[i].assign(1 + static_cast<size_t>(factors.rows + factors.column_means()), 0);
    }
    for (const Segment& segment : segments) {
      std::vector<double>& own = numbers[whole_.index(segment.param)];
      own[0] += segment.data.square().sum(at::kDouble).item<double>();
      if (!factored(segment.param->spec)) continue;
      // Apart first, as if data ranks had shards: ZeRO stages add in one order.
      std::vector<double> part(own.size(), 0);
      double* rows = part.data() + 1;
      double* columns = rows + Factors(segment.param->spec.shape).rows;
      const T* grad = segment.grad.const_data_ptr<T>();
      for_each_element(segment, [&](int64_t i, int64_t row, int64_t column) {
        const double g = grad[i] * grad_scale;
        rows[row] += g * g;
        columns[column] += g * g;
      });
      std::ranges::transform(own, part, own.begin(), std::plus<>());
    }
    whole_.sum(numbers);
    return numbers;
  }

  // Moves the means of all matrices towards the new ones. Segments of a parameter share its states.
  template <class T>
  void move_means(std::span<const Segment> segments, const std::vector<std::vector<double>>& numbers,
                  double share) const {
    std::vector<bool> moved(whole_.size());
    for (const Segment& segment : segments) {
      const size_t index = whole_.index(segment.param);
      if (!factored(segment.param->spec) || moved[index]) continue;
      moved[index] = true;
      const Factors factors(segment.param->spec.shape);
      const double* sum = numbers[index].data() + 1;
      const auto move = [&](const at::Tensor& state, int64_t count, int64_t of) {
        T* mean = state.mutable_data_ptr<T>();
        for (int64_t i = 0; i < count; ++i)
          mean[i] += static_cast<T>(share * (*sum++ / static_cast<double>(of) - mean[i]));
      };
      move(segment.state[0], factors.rows, factors.columns);
      move(segment.state[1], factors.column_means(), factors.count);
    }
  }

  // The step before it is scaled: the gradient over the root of its second moment.
  template <class T>
  static at::Tensor update_of(const Segment& segment, double grad_scale, double share) {
    constexpr double kEps = std::numeric_limits<T>::epsilon();
    at::Tensor update = at::empty_like(segment.data);
    T* out = update.mutable_data_ptr<T>();
    const T* grad = segment.grad.const_data_ptr<T>();
    const auto root = [](double variance) { return std::sqrt(std::max(variance, kEps * kEps)); };
    if (!factored(segment.param->spec)) {
      T* variance = segment.state[0].mutable_data_ptr<T>();
      for (int64_t i = 0; i < segment.flat.size(); ++i) {
        const double g = grad[i] * grad_scale;
        variance[i] += static_cast<T>(share * (g * g - variance[i]));
        out[i] = static_cast<T>(g / root(variance[i]));
      }
      return update;
    }
    const Factors factors(segment.param->spec.shape);
    const T* rows = segment.state[0].const_data_ptr<T>();
    const T* columns = segment.state[1].const_data_ptr<T>();
    std::vector<double> means;  // of each matrix's rows
    for (int64_t row = 0; row < factors.rows; row += factors.count) {
      double sum = 0;
      for (int64_t i = 0; i < factors.count; ++i) sum += rows[row + i];
      means.push_back(std::max(sum / static_cast<double>(factors.count), kEps));
    }
    for_each_element(segment, [&](int64_t i, int64_t row, int64_t column) {
      const double variance = static_cast<double>(rows[row]) * columns[column] /
                              means[static_cast<size_t>(row / factors.count)];
      out[i] = static_cast<T>(grad[i] * grad_scale / root(variance));
    });
    return update;
  }

  template <class T>
  void step_as(std::span<const Segment> segments, double lr, int64_t step,
               double grad_scale) const {
    const double share = std::pow(static_cast<double>(step), kDecay);
    const auto numbers = sums<T>(segments, grad_scale);
    move_means<T>(segments, numbers, share);
    std::vector<at::Tensor> updates;
    std::vector<std::vector<double>> squares(whole_.size(), {0});
    for (const Segment& segment : segments) {
      updates.push_back(update_of<T>(segment, grad_scale, share));
      squares[whole_.index(segment.param)][0] +=
          updates.back().square().sum(at::kDouble).item<double>();
    }
    whole_.sum(squares);
    for (size_t i = 0; i < segments.size(); ++i) {
      const Segment& segment = segments[i];
      const size_t index = whole_.index(segment.param);
      const auto count = static_cast<double>(layout::element_count(segment.param->spec.shape));
      const double rate = lr * segment.lr_scale;
      const double scale = std::max(kSmallest, std::sqrt(numbers[index][0] / count)) *
                           std::min(rate, 1 / std::sqrt(static_cast<double>(step)));
      const double clip = std::max(1.0, std::sqrt(squares[index][0] / count) / kLargest);
      segment.data.mul_(1 - rate * segment.weight_decay).sub_(updates[i], scale / clip);
    }
  }

  WholeTensors whole_;
};

}  // namespace

std::unique_ptr<Optimizer> make_adafactor(const config::Optim&, WholeTensors whole) {
  return std::make_unique<Adafactor>(std::move(whole));
}

}  // namespace trireme::optim
