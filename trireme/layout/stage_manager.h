#pragma once
// StageManager: which pipeline stage (and chunk, or virtual stage) a rank is, who its neighbours are, which
// layers it holds. Pure. Chunk c of stage s has the global chunk index c * num_stages + s (V-shaped
// schedules bring their own map in Schedule::rank_of_chunk).

#include <optional>
#include <vector>

#include "trireme/layout/mesh.h"
#include "trireme/layout/sbp.h"

namespace trireme::layout {

/// Layers per part, in order: an even split with the remainder on the middle parts (the first and the last
/// hold the embedding and the head). ConfigError when there are fewer layers than parts.
std::vector<int> distribute_layers(int layers, int parts);
/// Explicit counts: checked against `layers` and `parts`.
std::vector<int> distribute_layers(int layers, int parts, const std::vector<int>& counts);
/// By cost: minimises the largest part; `first` and `last` are the costs of embedding and head.
std::vector<int> distribute_layers_by_cost(const std::vector<double>& costs, int parts, double first, double last);
/// Accumulated offsets: {2, 3, 1} -> {0, 2, 5, 6}.
std::vector<int> accumulate_layers(const std::vector<int>& layers_per_part);

class StageManager {
 public:
  /// `layers_per_chunk`: one entry per global chunk, in chain order.
  StageManager(const Mesh& mesh, int rank, std::vector<int> layers_per_chunk, int chunks_per_stage = 1);

  int num_stages() const { return mesh_.size(Axis::pp); }
  int stage() const { return coord_.pp; }
  int chunks() const { return chunks_; }
  int global_chunk(int chunk) const { return chunk * num_stages() + stage(); }
  /// The start and the end of the whole chain: stage 0's chunk 0, the last stage's last chunk.
  bool is_first_stage(int chunk = 0) const { return global_chunk(chunk) == 0; }
  bool is_last_stage(std::optional<int> chunk = {}) const;
  /// World ranks of the neighbouring stages, around the ring as virtual stages need it.
  int prev_rank() const;
  int next_rank() const;
  /// World ranks of the given stages with this rank's dp and tp coordinates: a group over any subset of stages.
  std::vector<int> ranks_of(const std::vector<int>& stages) const;
  /// Indices of the chain's layers that a chunk of this stage holds.
  Range layers(int chunk) const;
  int stage_of_layer(int layer) const;
  /// Stages that hold any of the given layers, ascending: the holders of a tie.
  std::vector<int> holders(const std::vector<int>& layers) const;

 private:
  Mesh mesh_;
  Coord coord_;
  int chunks_;
  std::vector<int> offsets_;
};

}  // namespace trireme::layout
