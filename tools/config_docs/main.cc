// Prints docs/config.md.

#include <cstdio>

#include "trireme/config/load.h"

int main() {
  std::fputs(trireme::config::reference().c_str(), stdout);
}
