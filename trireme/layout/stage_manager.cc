#include "trireme/layout/stage_manager.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include "trireme/base/error.h"

namespace trireme::layout {

namespace {

void check_parts(int layers, int parts) {
  if (parts < 1 || layers < parts)
    throw base::ConfigError(fmt::format(
        "{} layers cannot be distributed over {} pipeline parts: each part needs at least one "
        "layer; use at most {} (stages x chunks)",
        layers, parts, std::max(layers, 1)));
}

/// The best contiguous partition of `costs` into `parts` non-empty parts, where `score` is the
/// price of a part and prices combine by `join`.
template <class Score, class Join>
std::vector<int> partition(int layers, int parts, Score score, Join join) {
  const double inf = std::numeric_limits<double>::infinity();
  // best[p][n]: price of the first n layers in p parts; cut[p][n]: where the last of them begins.
  std::vector best(parts + 1, std::vector<double>(layers + 1, inf));
  std::vector cut(parts + 1, std::vector<int>(layers + 1, 0));
  best[0][0] = 0;
  for (int p = 1; p <= parts; ++p)
    for (int n = p; n <= layers; ++n)
      for (int k = p - 1; k < n; ++k) {
        const double price = join(best[p - 1][k], score(p - 1, k, n));
        if (price < best[p][n]) best[p][n] = price, cut[p][n] = k;
      }
  std::vector<int> counts(parts);
  for (int p = parts, n = layers; p > 0; n = cut[p][n], --p) counts[p - 1] = n - cut[p][n];
  return counts;
}

}  // namespace

std::vector<int> distribute_layers(int layers, int parts) {
  check_parts(layers, parts);
  std::vector<int> counts(parts, layers / parts);
  const int rest = layers % parts, start = parts / 2 - rest / 2;
  for (int i = start; i < start + rest; ++i) ++counts[i];
  return counts;
}

std::vector<int> distribute_layers(int layers, int parts, const std::vector<int>& counts) {
  check_parts(layers, parts);
  const bool positive = std::ranges::all_of(counts, [](int count) { return count > 0; });
  if (static_cast<int>(counts.size()) != parts || !positive ||
      std::accumulate(counts.begin(), counts.end(), 0) != layers)
    throw base::ConfigError(fmt::format(
        "layers per stage [{}]: expected {} positive counts (stages x chunks) that add up to {}",
        fmt::join(counts, ", "), parts, layers));
  return counts;
}

std::vector<int> distribute_layers_by_cost(const std::vector<double>& costs, int parts,
                                           double first, double last) {
  const int layers = static_cast<int>(costs.size());
  check_parts(layers, parts);
  std::vector<double> sums(layers + 1, 0);
  std::partial_sum(costs.begin(), costs.end(), sums.begin() + 1);
  auto cost = [&](int part, int begin, int end) {
    return sums[end] - sums[begin] + (part == 0 ? first : 0) + (part == parts - 1 ? last : 0);
  };
  // First the smallest possible largest part, then, within that bound, the most even partition.
  std::vector<int> counts =
      partition(layers, parts, cost, [](double a, double b) { return std::max(a, b); });
  double bound = 0;
  for (int p = 0, begin = 0; p < parts; begin += counts[p++])
    bound = std::max(bound, cost(p, begin, begin + counts[p]));
  bound *= 1 + 1e-12;
  auto square = [&](int part, int begin, int end) {
    const double c = cost(part, begin, end);
    return c <= bound ? c * c : std::numeric_limits<double>::infinity();
  };
  return partition(layers, parts, square, std::plus<>());
}

std::vector<int> accumulate_layers(const std::vector<int>& layers_per_part) {
  std::vector<int> offsets(layers_per_part.size() + 1, 0);
  std::partial_sum(layers_per_part.begin(), layers_per_part.end(), offsets.begin() + 1);
  return offsets;
}

EncoderDecoderLayers distribute_encoder_decoder(int encoder_layers, int decoder_layers, int parts) {
  if (decoder_layers == 0) return {distribute_layers(encoder_layers, parts), parts};
  int best = 0;
  double least = std::numeric_limits<double>::infinity();
  for (int e = 1; e < parts; ++e) {
    if (encoder_layers < e || decoder_layers < parts - e) continue;
    const double difference = std::abs(static_cast<double>(encoder_layers) / e -
                                       static_cast<double>(decoder_layers) / (parts - e));
    if (difference < least) least = difference, best = e;
  }
  if (best == 0)
    throw base::ConfigError(fmt::format(
        "{} encoder and {} decoder layers cannot be distributed over {} pipeline parts: each half "
        "needs a part of "
        "its own, and each part a layer; use 2 to {} (stages x chunks)",
        encoder_layers, decoder_layers, parts, std::max(encoder_layers + decoder_layers, 2)));
  std::vector<int> counts = distribute_layers(encoder_layers, best);
  std::ranges::copy(distribute_layers(decoder_layers, parts - best), std::back_inserter(counts));
  return {counts, best};
}

StageManager::StageManager(const Mesh& mesh, int rank, const std::vector<int>& layers_per_chunk,
                           std::vector<int> stage_of_chunk)
    : mesh_(mesh),
      coord_(mesh.coord(rank)),
      stage_of_chunk_(std::move(stage_of_chunk)),
      offsets_(accumulate_layers(layers_per_chunk)) {
  for (size_t c = 0; c < stage_of_chunk_.size(); ++c)
    if (stage_of_chunk_[c] == stage()) chunks_.push_back(static_cast<int>(c));
  const bool inside =
      std::ranges::all_of(stage_of_chunk_, [&](int s) { return s >= 0 && s < num_stages(); });
  if (layers_per_chunk.size() != stage_of_chunk_.size() || !inside || chunks_.empty())
    throw base::ConfigError(fmt::format(
        "layers per chunk [{}] on stages [{}]: expected one entry for each chunk, and a chunk for "
        "each of {} stages",
        fmt::join(layers_per_chunk, ", "), fmt::join(stage_of_chunk_, ", "), num_stages()));
}

int StageManager::global_chunk(int chunk) const {
  base::check(chunk >= 0 && chunk < chunks(), "chunk {} of a stage with {} chunks", chunk,
              chunks());
  return chunks_[chunk];
}

bool StageManager::is_first_stage(std::optional<int> chunk) const {
  return global_chunk(chunk.value_or(0)) == 0;
}

bool StageManager::is_last_stage(std::optional<int> chunk) const {
  return global_chunk(chunk.value_or(chunks() - 1)) + 1 == std::ssize(stage_of_chunk_);
}

int StageManager::prev_rank() const {
  Coord at = coord_;
  at.pp = (at.pp + num_stages() - 1) % num_stages();
  return mesh_.rank(at);
}

int StageManager::next_rank() const {
  Coord at = coord_;
  at.pp = (at.pp + 1) % num_stages();
  return mesh_.rank(at);
}

std::vector<int> StageManager::ranks_of(const std::vector<int>& stages) const {
  std::vector<int> ranks;
  for (int stage : stages) ranks.push_back(mesh_.rank({stage, coord_.dp, coord_.tp}));
  return ranks;
}

Range StageManager::layers(int chunk) const {
  return {offsets_[global_chunk(chunk)], offsets_[global_chunk(chunk) + 1]};
}

int StageManager::stage_of_layer(int layer) const {
  base::check(layer >= 0 && layer < offsets_.back(), "layer {} of a chain of {}", layer,
              offsets_.back());
  auto next = std::ranges::upper_bound(offsets_, layer);
  return stage_of_chunk_[next - offsets_.begin() - 1];
}

std::vector<int> StageManager::holders(const std::vector<int>& layers) const {
  std::set<int> stages;
  for (int layer : layers) stages.insert(stage_of_layer(layer));
  return {stages.begin(), stages.end()};
}

}  // namespace trireme::layout
