#pragma once
// Generators: named pipelines. Each returns compute actions only; `with_communication` adds the transfers.
//
//   generate("zb-v", {.ranks = 4, .micro_batches = 8, .costs = measured, .memory = {3}})
//
// Chunks lie round after round (chunk c on rank c % ranks), but for the V schedules: there a rank holds chunks r and
// 2 * ranks - 1 - r, so the way through the model goes down the ranks and back up.

#include <optional>
#include <string_view>
#include <vector>

#include "trireme/schedule/refine.h"

namespace trireme::schedule {

struct Request {
  int ranks = 1, micro_batches = 1;
  std::optional<int> chunks_per_rank = {};  // default: the schedule's own number
  // For the zero-bubble schedules:
  Costs costs = {};                     // what they are planned with
  /// Activations of whole stages that a rank may hold: one number for all ranks or one for each; default: the
  /// schedule's own.
  std::vector<double> memory = {};
  std::optional<Goal> goal = {};        // default: makespan for zb-h1, else own_bubble
  int64_t search = 80'000'000;          // actions that the search for a better order may simulate; 0: no search
};

/// All forwards, then all backwards in reverse chunk order (Huang et al., GPipe, 2018).
Schedule gpipe(const Request& request);
/// One forward, one backward (Narayanan et al., PipeDream-Flush, 2021): warm-up of min(S - 1 - r, M).
Schedule one_f_one_b(const Request& request);
/// 1F1B over several chunks a rank (Narayanan et al., Megatron-LM, 2021): micro-batches go through a rank's chunks in
/// groups of as many as there are ranks; warm-up of min(2 (S - 1 - r) + (V - 1) S, MV). Where S does not divide M the
/// order is that of the next multiple without the micro-batches that are not there.
Schedule interleaved(const Request& request);
/// 1F1B with the weights' gradients apart (Qi et al., Zero Bubble Pipeline Parallelism, 2023), with the memory of 1F1B
/// (ZB-H1: S) or twice as much (ZB-2p: 2 S - 1). They differ in nothing but this default; `memory` may be any from 1.
Schedule zero_bubble(std::string_view name, const Request& request);
/// Two chunks a rank in a V, from building blocks (Qi et al., Pipeline Parallelism with Controllable Memory, 2024):
/// ZB-V holds S whole stages, V-Half S / 2 + 1, V-Min (S + 4) / 3; `memory` may be any from 1.
Schedule v_shape(std::string_view name, const Request& request);
/// Forwards only, for evaluation and generation: deeper chunks first. The second one runs on the model of any schedule,
/// whatever its chunks' places.
Schedule forward_only(const Request& request);
Schedule forward_only(const Schedule& placed, int micro_batches);

/// By name: gpipe, 1f1b, interleaved, zb-h1, zb-2p, zb-v, v-half, v-min, forward. ConfigError with the known names, or
/// with what the request must satisfy. Costs and search are ignored by the schedules that do not plan.
Schedule generate(std::string_view name, const Request& request);
/// In the order of a comparison.
std::vector<std::string_view> names();
/// Can the named schedule have that many chunks a rank?
bool takes_chunks(std::string_view name, int chunks_per_rank = 2);
/// Does the named schedule take a memory limit?
bool takes_memory(std::string_view name);
/// The limit where none is asked for, in activations of whole stages; ConfigError where it takes none.
double own_memory(std::string_view name, int ranks);

}  // namespace trireme::schedule
