// Every collective, for all types, sizes and numbers of ranks, against values computed by each rank
// alone.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "tests/ranks/comm_support.h"
#include "trireme/base/hash.h"

namespace trireme::comm {
namespace {

// Small integers, exact in every type whatever the order of additions.
int value(int rank, int64_t i) {
  return static_cast<int>((rank * 7 + i * 3 + i / 5) % 9);
}

uint16_t bf16_of(int x) {
  float f = static_cast<float>(x);
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  return static_cast<uint16_t>(bits >> 16);
}
uint16_t f16_of(int x) {
  if (x == 0) return 0;
  int exponent = 31 - __builtin_clz(x);
  return static_cast<uint16_t>((exponent + 15) << 10 | ((x << 10 >> exponent) & 0x3ff));
}

void put(std::byte* at, DType dtype, int x) {
  auto store = [&](auto v) { std::memcpy(at, &v, sizeof v); };
  switch (dtype) {
    case DType::f64:
      return store(static_cast<double>(x));
    case DType::f32:
      return store(static_cast<float>(x));
    case DType::bf16:
      return store(bf16_of(x));
    case DType::f16:
      return store(f16_of(x));
    case DType::i64:
      return store(static_cast<int64_t>(x));
    case DType::i32:
      return store(static_cast<int32_t>(x));
    case DType::boolean:
      return store(static_cast<uint8_t>(x != 0));
    default:
      return store(static_cast<uint8_t>(x));
  }
}

using Bytes = std::vector<std::byte>;
Bytes filled(int64_t count, DType dtype, const std::function<int(int64_t)>& value_at) {
  int64_t size = base::size_of(dtype);
  Bytes bytes(count * size);
  for (int64_t i = 0; i < count; ++i) put(bytes.data() + i * size, dtype, value_at(i));
  return bytes;
}
int total(int ranks, int64_t i) {
  int sum = 0;
  for (int r = 0; r < ranks; ++r) sum += value(r, i);
  return sum;
}

void check(const Comm& comm, DType dtype, int64_t count, bool shared) {
  int n = comm.size(), me = comm.rank();
  int64_t size = base::size_of(dtype);
  std::string where = fmt::format("{} x {} on {} ranks", count, base::name_of(dtype), n);
  // A buffer in shared memory or a plain one, filled.
  std::vector<SharedBuffer> kept;
  Bytes plain[8];
  int used = 0;
  auto buffer = [&](const Bytes& content) -> std::byte* {
    if (!shared) return (plain[used++] = content).data();
    kept.push_back(comm.alloc(content.size()));
    std::memcpy(kept.back().data(), content.data(), content.size());
    return kept.back().data();
  };
  auto same = [&](const std::byte* got, const Bytes& want, const char* op) {
    require(std::memcmp(got, want.data(), want.size()) == 0, op + (": " + where));
  };
  auto mine = [&](int64_t i) { return value(me, i); };

  std::byte* sum = buffer(filled(count, dtype, mine));
  comm.all_reduce(sum, count, dtype).wait();
  same(sum, filled(count, dtype, [&](int64_t i) { return total(n, i); }), "all_reduce");

  std::byte* most = buffer(filled(count, dtype, mine));
  comm.all_reduce(most, count, dtype, Reduce::max).wait();
  auto greatest = [&](int64_t i) {
    int best = 0;
    for (int r = 0; r < n; ++r) best = std::max(best, value(r, i));
    return best;
  };
  same(most, filled(count, dtype, greatest), "all_reduce max");

  // Uneven parts: the last ranks may have none.
  std::vector<int64_t> parts(n), begins(n);
  int64_t left = count;
  for (int r = 0; r < n; ++r) {
    parts[r] = r + 1 == n ? left : std::min(left, count / n + r % 3);
    begins[r] = count - left;
    left -= parts[r];
  }
  std::byte* scattered = buffer(Bytes(parts[me] * size));
  std::byte* in = buffer(filled(count, dtype, mine));
  comm.reduce_scatter(in, scattered, parts, dtype).wait();
  Bytes part = filled(parts[me], dtype, [&](int64_t i) { return total(n, begins[me] + i); });
  same(scattered, part, "reduce_scatter");
  comm.reduce_scatter(in, in + begins[me] * size, parts, dtype).wait();
  same(in + begins[me] * size, part, "reduce_scatter in place");

  std::byte* gathered = buffer(Bytes(count * size));
  Bytes own = filled(parts[me], dtype, [&](int64_t i) { return value(me, begins[me] + i); });
  Bytes everything = filled(count, dtype, [&](int64_t i) {
    int r = n - 1;
    while (begins[r] > i) --r;
    while (i >= begins[r] + parts[r]) ++r;
    return value(r, i);
  });
  comm.all_gather(buffer(own), gathered, parts, dtype).wait();
  same(gathered, everything, "all_gather");
  std::memset(gathered, 1, count * size);
  if (!own.empty()) std::memcpy(gathered + begins[me] * size, own.data(), own.size());
  comm.all_gather(gathered + begins[me] * size, gathered, parts, dtype).wait();
  same(gathered, everything, "all_gather in place");

  for (int root : {0, n - 1}) {
    std::byte* data = gathered;
    Bytes content = filled(count, dtype, [&](int64_t i) { return value(root, i); });
    if (me == root)
      std::memcpy(data, content.data(), content.size());
    else
      std::memset(data, 1, content.size());
    comm.broadcast(data, count, dtype, root).wait();
    same(data, content, "broadcast");
  }

  // Rank a sends count / n + (a + 2 b) % 3 elements to rank b.
  auto sent = [&](int a, int b) { return count == 0 ? 0 : count / n + (a + 2 * b) % 3; };
  std::vector<int64_t> sends(n), receives(n);
  for (int r = 0; r < n; ++r) sends[r] = sent(me, r), receives[r] = sent(r, me);
  Bytes outgoing, incoming;
  for (int r = 0; r < n; ++r) {
    Bytes to = filled(sends[r], dtype, [&](int64_t i) { return value(me + r, i); });
    Bytes from = filled(receives[r], dtype, [&](int64_t i) { return value(r + me, i); });
    outgoing.insert(outgoing.end(), to.begin(), to.end());
    incoming.insert(incoming.end(), from.begin(), from.end());
  }
  std::byte* exchanged = buffer(Bytes(incoming.size()));
  comm.all_to_all(buffer(outgoing), sends, exchanged, receives, dtype).wait();
  same(exchanged, incoming, "all_to_all");
  comm.barrier();
}

constexpr DType kTypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16,
                            DType::i64, DType::i32, DType::u8,   DType::boolean};

TEST_P(CommTest, EveryCollectiveTypeAndSize) {
  for (int ranks : {1, 2, 3, kThreadSanitizer ? 4 : 8}) {
    if (!fits(ranks)) continue;
    expect_clean(run(ranks, [](Backend& backend) {
      Comm comm = world(backend);
      for (DType dtype : kTypes)
        for (int64_t count : {0, 1, 17, 5000}) {
          check(comm, dtype, count, false);
          check(comm, dtype, count, true);
        }
    }));
  }
}

// Larger than a piece and than the whole staging ring, in plain and in shared memory and mixed.
TEST_P(CommTest, LargeBuffers) {
  for (int ranks : {2, 5}) {
    if (!fits(ranks)) ranks = 4;
    expect_clean(run(ranks, [](Backend& backend) {
      Comm comm = world(backend);
      for (int64_t count : {70001, kThreadSanitizer ? 70002 : 300001}) {
        check(comm, DType::f32, count, false);
        check(comm, DType::f32, count, true);
        check(comm, DType::bf16, count, comm.rank() % 2 == 0);
      }
    }));
  }
}

TEST_P(CommTest, SixtyFiveMebibytes) {
  expect_clean(run(2, [](Backend& backend) {
    Comm comm = world(backend);
    int64_t count = (kThreadSanitizer ? 3 : 65) << 18;
    std::vector<float> plain(count, 1.0f + comm.rank());
    SharedBuffer shared = comm.alloc(count * 4);
    std::memcpy(shared.data(), plain.data(), shared.size());
    comm.all_reduce(plain.data(), count, DType::f32).wait();
    comm.all_reduce(shared.data(), count, DType::f32).wait();
    require(std::memcmp(plain.data(), shared.data(), shared.size()) == 0,
            "plain and shared differ");
    require(plain.front() == 3 && plain.back() == 3, "sum of 1 and 2");
  }));
}

// Sums whose last bits depend on the order of additions: the same from run to run and on all
// backends.
TEST(Comm, ResultsAreTheSameBitForBit) {
  auto digest = [](Kind kind, bool shared) {
    auto body = [&](Backend& backend) {
      Comm comm = world(backend);
      uint64_t hash = 0;
      for (DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16})
        for (int64_t count : {1000, 300001}) {
          int64_t bytes = count * base::size_of(dtype);
          SharedBuffer memory = comm.alloc(bytes);
          Bytes plain(bytes);
          std::byte* data = shared ? memory.data() : plain.data();
          for (int64_t i = 0; i < count; ++i) {
            double x = 1e-3 * static_cast<double>(base::hash_combine(comm.rank(), i) % 100003);
            auto store = [&](auto v) { std::memcpy(data + i * sizeof v, &v, sizeof v); };
            if (dtype == DType::f64) store(x);
            if (dtype == DType::f32) store(static_cast<float>(x));
            if (dtype == DType::bf16)
              store(static_cast<uint16_t>(0x3f00 + static_cast<int>(x) % 251));
            if (dtype == DType::f16)
              store(static_cast<uint16_t>(0x3000 + static_cast<int>(x * 10) % 2003));
          }
          comm.all_reduce(data, count, dtype).wait();
          hash = base::hash_bytes(data, bytes, hash);
        }
      // Ranks agree, and rank 0 tells.
      std::vector<uint64_t> all(comm.size());
      std::vector<int64_t> ones(comm.size(), 1);
      comm.all_gather(&hash, all.data(), ones, DType::i64).wait();
      for (uint64_t other : all) require(other == hash, "ranks differ");
      if (comm.rank() == 0) throw std::runtime_error(std::to_string(hash));
    };
    return run_ranks(kind, 4, body)[0];
  };
  std::string first = digest(Kind::threads, false);
  EXPECT_EQ(digest(Kind::threads, true), first);
  EXPECT_EQ(digest(Kind::thread_hosts, false), first);
  if (under_mpirun()) {
    EXPECT_EQ(digest(Kind::mpi, false), first);
  }
  if (kThreadSanitizer || under_mpirun()) return;
  EXPECT_EQ(digest(Kind::processes, false), first);
  EXPECT_EQ(digest(Kind::processes, true), first);
  EXPECT_EQ(digest(Kind::process_hosts, true), first);
}

TEST(Comm, SixteenBitFloatsAccumulateInFp32AndRoundOnce) {
  expect_clean(run_ranks(Kind::threads, 3, [](Backend& backend) {
    Comm comm = world(backend);
    // 256 + 1 + 1 = 258: bf16 (8 bits) would lose each 1 on its own.
    uint16_t x = bf16_of(comm.rank() == 0 ? 256 : 1);
    comm.all_reduce(&x, 1, DType::bf16).wait();
    require(x == bf16_of(258), "bf16 sum");
    uint16_t y = f16_of(comm.rank() == 0 ? 2048 : 1);  // 2048 + 1 + 1 = 2050
    comm.all_reduce(&y, 1, DType::f16).wait();
    require(y == f16_of(2050), "f16 sum");
    // 65504 * 3 overflows to infinity; denormals stay exact.
    uint16_t big = 0x7bff, tiny = 3, nan = comm.rank() == 1 ? 0x7e00 : 0x3c00;
    comm.all_reduce(&big, 1, DType::f16).wait();
    comm.all_reduce(&tiny, 1, DType::f16).wait();
    comm.all_reduce(&nan, 1, DType::f16, Reduce::max).wait();
    require(big == 0x7c00, "overflow");
    require(tiny == 9, "denormals");
    require((nan & 0x7c00) == 0x7c00 && (nan & 0x3ff) != 0, "not-a-number wins");
  }));
}

}  // namespace
}  // namespace trireme::comm
