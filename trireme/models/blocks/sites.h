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
  kLeftOut,  // patches that the stream lacks; keyed as of layer 0, so that every link sees the same
};

}  // namespace trireme::models
