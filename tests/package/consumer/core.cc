#include <cstdio>

#include "trireme/base/error.h"
#include "trireme/layout/mesh.h"

int main() {
  trireme::layout::Mesh mesh{{.pp = 2, .dp = 2, .tp = 2}};
  try {
    trireme::layout::Mesh bad{{.pp = 0, .dp = 2, .tp = 2}};
  } catch (const trireme::base::ConfigError&) {
    std::printf("rank %d of %d\n", mesh.rank({.pp = 1, .dp = 0, .tp = 1}), mesh.size());
    return mesh.rank({.pp = 1, .dp = 0, .tp = 1}) == 5 ? 0 : 1;
  }
  return 1;
}
