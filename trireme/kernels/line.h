#pragma once
// Line: one line of a mask by coordinates (dropout.h), elements that differ in the last coordinate only. Its words are made
// in philox-inl.h.

#include <cstdint>

namespace trireme::kernels {

struct Line {
  uint64_t key;
  uint32_t c1, c2, c3;  // the other words of the counter
  uint32_t threshold;   // a word below it drops its element
  double scale;
};

}  // namespace trireme::kernels
