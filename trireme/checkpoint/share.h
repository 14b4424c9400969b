#pragma once
// Who writes what: the parts of a model's tensors, as the ranks hold them, shared out so that each
// element is written by exactly one rank. Pure.
//
// Ranks often hold the same: replicas over dp, what tp does not split, both ends of a tie. All that
// one set of ranks holds is laid end to end and cut into as many pieces of equal bytes as there are
// holders, so no rank writes what others could. Of what ranks hold in part alike, the later of two
// that overlap writes what the former leaves. A rank's file holds at most one part of a tensor.
//
//   two data ranks, a [1000, 8] and b [8]: rank 0 writes a's first 4000 elements, rank 1 the others
//   and b

#include <string>
#include <vector>

#include "trireme/checkpoint/index.h"

namespace trireme::checkpoint {

/// What a rank holds of a tensor.
struct HeldPart {
  int rank = 0;
  std::string name;
  layout::Shape shape;  // of the whole tensor
  layout::Slice slice;
  layout::Range flat;  // of the slice's elements
  base::DType dtype = base::DType::f32;
  bool optimizer = false;  // else a parameter
};

/// A rank's parts as text, and back.
std::string to_text(const std::vector<HeldPart>& parts);
std::vector<HeldPart> held_from_text(const std::string& text, int rank);

/// "model_rank_00003.safetensors"
std::string rank_file(bool optimizer, int rank);

/// The files of a split checkpoint. The same on every rank, given the same parts in rank order.
/// InternalError when ranks disagree about a tensor or nobody holds some of it.
Index share_out(const std::vector<HeldPart>& held);

}  // namespace trireme::checkpoint
