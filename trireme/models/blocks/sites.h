#pragma once
// Site: the places of a layer that draw random numbers; with the layer's index they key streams of their own.

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
