// Time of one all-reduce of fp32 between processes of this host: all_reduce RANKS BYTES TIMES
// [shared] Prints microseconds: the median over the calls of rank 0. `shared`: in memory of
// Comm::alloc.

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "trireme/comm/backends/shm.h"

namespace {

using namespace trireme::comm;

/// As trireme's allocator gives it to tensors: in huge pages where the system grants them.
std::unique_ptr<float, decltype(&std::free)> plain_memory(int64_t bytes) {
  constexpr int64_t kHugePage = 2 << 20;
  const int64_t size = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  void* memory = std::aligned_alloc(kHugePage, size);
  ::madvise(memory, size, MADV_HUGEPAGE);  // only a hint
  return {static_cast<float*>(memory), &std::free};
}

void run_rank(int rank, int ranks, int64_t bytes, int times, bool shared,
              const std::string& address) {
  auto store = connect_store(address);
  auto backend = make_shm_backend(rank, ranks, *store, std::chrono::seconds(60));
  std::vector<int> all(ranks);
  for (int r = 0; r < ranks; ++r) all[r] = r;
  Comm comm = backend->make(all, "bench");
  const int64_t count = bytes / 4;
  SharedBuffer memory = comm.alloc(shared ? bytes : 0);
  auto plain = plain_memory(shared ? 0 : bytes);
  float* data = shared ? reinterpret_cast<float*>(memory.data()) : plain.get();
  std::fill_n(data, count, 0.0f);
  std::vector<double> seconds(times);
  for (int i = -times / 10 - 1; i < times; ++i) {
    auto start = std::chrono::steady_clock::now();
    comm.all_reduce(data, count, DType::f32).wait();
    if (i >= 0)
      seconds[i] = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  comm.barrier();
  std::nth_element(seconds.begin(), seconds.begin() + times / 2, seconds.end());
  if (rank == 0) std::printf("%.3f\n", seconds[times / 2] * 1e6);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: all_reduce RANKS BYTES TIMES [shared]\n");
    return 2;
  }
  const int ranks = std::atoi(argv[1]), times = std::max(1, std::atoi(argv[3]));
  StoreServer server;
  for (int r = 0; r < ranks; ++r)
    if (::fork() == 0) try {
        run_rank(r, ranks, std::atoll(argv[2]), times, argc > 4, server.address());
        std::fflush(stdout);
        ::_exit(0);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "all_reduce: %s\n", error.what());
        ::_exit(1);
      }
  server.serve();
  bool failed = false;
  for (int status; ::wait(&status) > 0;) failed |= status != 0;
  return failed;
}
