#pragma once
// Site: the places of a layer that draw random numbers. Each has a stream of its own.

namespace trireme::models {

enum Site {
  kEmbedding,
  kAttentionWeights,
  kAttentionOutput,
  kMlpOutput,
  kCrossWeights,
  kCrossOutput,
  kInner,
  kNorm,
  kPath,  // a branch of a whole sample
  kMlpPath,
  kHeadFirst,
  kHead,
};

}  // namespace trireme::models
