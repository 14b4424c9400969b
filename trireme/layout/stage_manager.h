#pragma once
// StageManager: which pipeline stage (and chunk, or virtual stage) a rank is, who its neighbours
// are, which layers it holds. Pure. A chain is cut into global chunks in chain order; which stage
// holds which chunk is the schedule's (Schedule::rank_of_chunk): around the ring for interleaved
// pipelines, there and back for V-shaped ones. A stage counts its own chunks from 0 in chain order.
//
//   StageManager stage(mesh, rank, {2, 3, 3, 2}, {0, 1, 1, 0});   // a V over two stages
//   stage.is_last_stage(1)   // on stage 0: the chain ends there

#include <optional>
#include <vector>

#include "trireme/layout/mesh.h"
#include "trireme/layout/sbp.h"

namespace trireme::layout {

/// Layers per part, in order: an even split with the remainder on the middle parts (the first and
/// the last hold the embedding and the head). ConfigError when there are fewer layers than parts.
std::vector<int> distribute_layers(int layers, int parts);
/// Explicit counts: checked against `layers` and `parts`.
std::vector<int> distribute_layers(int layers, int parts, const std::vector<int>& counts);
/// By cost: minimises the largest part; `first` and `last` are the costs of embedding and head.
std::vector<int> distribute_layers_by_cost(const std::vector<double>& costs, int parts,
                                           double first, double last);
/// An encoder's layers followed by a decoder's, so that no part holds both: of the ways to share
/// the parts, the one whose layers per part differ least. Without decoder layers all parts are the
/// encoder's. ConfigError where that cannot be; costs may say otherwise (distribute_layers_by_cost
/// on the whole chain).
struct EncoderDecoderLayers {
  std::vector<int> layers_per_part;  // in chain order
  int decoder_start = 0;             // the first part of the decoder
};
EncoderDecoderLayers distribute_encoder_decoder(int encoder_layers, int decoder_layers, int parts);
/// Accumulated offsets: {2, 3, 1} -> {0, 2, 5, 6}.
std::vector<int> accumulate_layers(const std::vector<int>& layers_per_part);

class StageManager {
 public:
  /// `layers_per_chunk`: one entry per global chunk, in chain order. Chunk c lies on stage
  /// stage_of_chunk[c].
  StageManager(const Mesh& mesh, int rank, const std::vector<int>& layers_per_chunk,
               std::vector<int> stage_of_chunk);

  int num_stages() const { return mesh_.size(Axis::pp); }
  int stage() const { return coord_.pp; }
  /// Virtual stages: how many chunks this stage holds, and what they are in the chain.
  int chunks() const { return static_cast<int>(chunks_.size()); }
  int global_chunk(int chunk) const;
  /// Does the whole chain begin (end) in this chunk? By default in any chunk of this stage.
  bool is_first_stage(std::optional<int> chunk = {}) const;
  bool is_last_stage(std::optional<int> chunk = {}) const;
  /// World ranks of the neighbouring stages, around the ring as virtual stages need it.
  int prev_rank() const;
  int next_rank() const;
  /// World ranks of the given stages with this rank's dp and tp coordinates: a group over any
  /// subset of stages.
  std::vector<int> ranks_of(const std::vector<int>& stages) const;
  /// Indices of the chain's layers that a chunk of this stage holds.
  Range layers(int chunk) const;
  int stage_of_layer(int layer) const;
  /// Stages that hold any of the given layers, ascending: the holders of a tie.
  std::vector<int> holders(const std::vector<int>& layers) const;

 private:
  Mesh mesh_;
  Coord coord_;
  std::vector<int> stage_of_chunk_;
  std::vector<int> chunks_;  // this stage's, as global chunks
  std::vector<int> offsets_;
};

}  // namespace trireme::layout
