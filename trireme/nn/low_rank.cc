#include "trireme/nn/low_rank.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <regex>
#include <string_view>

#include "trireme/base/error.h"
#include "trireme/dist/device.h"
#include "trireme/nn/param_store.h"
#include "trireme/nn/tensor_part.h"

namespace trireme::nn {
namespace {

constexpr std::string_view kMagnitude = ".lora_magnitude_vector";

template <class T>
T of_module(const LowRank::Patterns<T>& patterns, const std::string& module, T otherwise) {
  for (const auto& [pattern, value] : patterns)
    if (matches_module(pattern, module)) return value;
  return otherwise;
}

/// Calls `visit(place in the part's data, index of the element in the whole tensor)`.
template <class Visit>
void for_each_element(const TensorPart& part, const Visit& visit) {
  layout::for_each_run(part.slice, part.global_shape, [&](layout::Run run) {
    const layout::Range here = layout::intersect({run.local, run.local + run.count}, part.flat);
    for (int64_t i = here.begin; i < here.end; ++i) visit(i - part.flat.begin, run.global + i - run.local);
  });
}

}  // namespace

bool names_module(const std::string& target, const std::string& module) {
  return module == target || module.ends_with("." + target);
}

bool matches_module(const std::string& pattern, const std::string& module) {
  try {
    return std::regex_match(module, std::regex("(.*\\.)?(" + pattern + ")"));
  } catch (const std::regex_error& error) {
    throw base::ConfigError(fmt::format("the pattern of modules \"{}\" is no regular expression: {}", pattern, error.what()));
  }
}

bool LowRank::adapts(const std::string& module) const {
  return rank > 0 && std::ranges::any_of(targets, [&](const std::string& target) { return names_module(target, module); });
}

int64_t LowRank::rank_of(const std::string& module) const { return of_module(ranks, module, rank); }

double LowRank::scale_of(const std::string& module) const {
  const auto own = static_cast<double>(rank_of(module));
  return of_module(alphas, module, alpha) / (root ? std::sqrt(own) : own);
}

bool is_low_rank(const std::string& parameter) {
  return parameter.ends_with(".lora_A.weight") || parameter.ends_with(".lora_B.weight") || parameter.ends_with(kMagnitude);
}

void begin_magnitudes(const ParamStore& store, const layout::Coord& coord, const std::vector<layout::ParamSpec>& specs,
                      const comm::Comm& world) {
  std::map<std::string, TensorPart> parts;
  for (TensorPart& part : parts_of(store, coord)) parts.emplace(part.name, std::move(part));
  std::vector<const layout::ParamSpec*> magnitudes;
  int64_t count = 0;
  for (const layout::ParamSpec& spec : specs) {
    if (spec.init.kind != layout::Init::Kind::lengths) continue;
    magnitudes.push_back(&spec);
    count += spec.shape[0];
  }
  if (count == 0) return;
  // Squares of each weight's elements, added by whoever holds them.
  std::vector<double> squares(static_cast<size_t>(count), 0);
  double* row = squares.data();
  for (const layout::ParamSpec* spec : magnitudes) {
    const auto held = parts.find(spec->name.substr(0, spec->name.size() - kMagnitude.size()) + ".weight");
    if (held != parts.end() && held->second.owner) {
      const TensorPart& part = held->second;
      const at::Tensor values = dist::to_host(part.data).to(at::kDouble).contiguous();
      const double* value = values.const_data_ptr<double>();
      const int64_t columns = part.global_shape[1];
      for_each_element(part, [&](int64_t i, int64_t whole) {
        row[spec->init.columns == 0 ? whole / columns : whole % columns] += value[i] * value[i];
      });
    }
    row += spec->shape[0];
  }
  world.all_reduce(squares.data(), count, base::DType::f64).wait();
  row = squares.data();
  for (const layout::ParamSpec* spec : magnitudes) {
    if (const auto own = parts.find(spec->name); own != parts.end()) {
      at::Tensor lengths = at::empty(own->second.data.sizes(), at::kDouble);
      double* length = lengths.mutable_data_ptr<double>();
      for_each_element(own->second, [&](int64_t i, int64_t whole) { length[i] = std::sqrt(row[whole]); });
      own->second.data.copy_(lengths);
    }
    row += spec->shape[0];
  }
}

}  // namespace trireme::nn
