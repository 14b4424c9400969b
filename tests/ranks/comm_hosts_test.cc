// Ranks on several hosts: placements, bit-identical sums, dead hosts, strangers.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <thread>

#include "tests/ranks/comm_support.h"
#include "trireme/base/error.h"
#include "trireme/base/hash.h"
#include "trireme/comm/backends/tcp.h"
#include "trireme/comm/host.h"

namespace trireme::comm {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

/// The hash of what all collectives leave, from values whose sums depend on their order.
std::string digest(const Outcomes& outcomes) {
  for (const std::string& outcome : outcomes) EXPECT_EQ(outcome, outcomes[0]);
  return outcomes[0];
}

void all_collectives(Backend& backend) {
  std::vector<int> ranks = all_ranks(backend);
  std::swap(ranks.front(), ranks.back());  // the order of a group is not that of its numbers
  Comm comm = backend.make(ranks, "swapped");
  const int n = comm.size();
  uint64_t hash = 0;
  for (DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16})
    for (int64_t count : {1, 3, 5000, 300001}) {
      const int64_t size = base::size_of(dtype);
      std::vector<std::byte> data(count * size), out(count * size);
      auto fill = [&] {
        for (int64_t i = 0; i < count; ++i) {
          uint64_t random = base::hash_combine(comm.rank(), i);
          double x = 1e-3 * static_cast<double>(random % 100003);
          auto store = [&](auto v) { std::memcpy(data.data() + i * sizeof v, &v, sizeof v); };
          if (dtype == DType::f64) store(x);
          if (dtype == DType::f32) store(static_cast<float>(x));
          if (dtype == DType::bf16) store(static_cast<uint16_t>(0x3f00 + random % 251));
          if (dtype == DType::f16) store(static_cast<uint16_t>(0x3000 + random % 2003));
        }
      };
      fill();
      comm.all_reduce(data.data(), count, dtype).wait();
      hash = base::hash_bytes(data.data(), data.size(), hash);
      fill();
      std::vector<int64_t> parts(n, count / n);
      parts[n / 2] += count % n;
      comm.reduce_scatter(data.data(), out.data(), parts, dtype).wait();
      comm.all_gather(out.data(), data.data(), parts, dtype).wait();
      hash = base::hash_bytes(data.data(), data.size(), hash);
      fill();
      comm.broadcast(data.data(), count, dtype, n - 1).wait();
      hash = base::hash_bytes(data.data(), data.size(), hash);
    }
  throw std::runtime_error(std::to_string(hash));
}

TEST(Hosts, SumsAreThoseOfOneHostWhereverTheRanksAre) {
  if (under_mpirun()) GTEST_SKIP() << "does not use MPI";
  const std::vector<std::vector<int>> placements{
      {0, 0, 0, 1, 1}, {0, 1, 2, 3, 4}, {0, 1, 0, 1, 0}, {0, 0, 1, 2, 2}, {1, 0, 0, 0, 0}};
  std::string one = digest(run_ranks(Kind::threads, 5, all_collectives));
  for (const auto& hosts : placements)
    EXPECT_EQ(digest(run_on_hosts(Kind::thread_hosts, hosts, all_collectives)), one)
        << fmt::format("{}", fmt::join(hosts, " "));
}

TEST(Hosts, ABackendKnowsWhereRanksAre) {
  if (under_mpirun()) GTEST_SKIP() << "does not use MPI";
  expect_clean(run_on_hosts(Kind::thread_hosts, {0, 1, 1}, [](Backend& backend) {
    require(backend.host(0) == 0 && backend.host(1) == 1 && backend.host(2) == 1, "hosts");
  }));
  std::vector<std::string> identities{"b", "a", "b", "c"};
  EXPECT_EQ(number_hosts(identities), (std::vector{0, 1, 0, 2}));
  ::setenv("TRIREME_HOST", "left", 1);
  EXPECT_EQ(host_identity(), "given left");
  ::unsetenv("TRIREME_HOST");
  EXPECT_NE(host_identity(), "");
}

TEST(Hosts, AKilledRankIsNamedByBothHosts) {
  if (kThreadSanitizer || under_mpirun()) GTEST_SKIP() << kNoFork;
  for (int victim : {0, 3}) {
    Outcomes outcomes = run_ranks(
        Kind::process_hosts, 4,
        [&](Backend& backend) {
          Comm comm = world(backend);
          comm.barrier();
          if (comm.rank() == victim)
            std::thread([] {
              std::this_thread::sleep_for(20ms);
              ::kill(::getpid(), SIGKILL);
            }).detach();
          Watch watch;
          try {
            std::vector<float> data(300'000);
            for (;;) {
              comm.all_reduce(data.data(), data.size(), DType::f32).wait();
              comm.isend(data.data(), 1 << 20, (comm.rank() + 1) % 4, 1);
              comm.irecv(data.data(), 1 << 20, (comm.rank() + 3) % 4, 1).wait();
            }
          } catch (const base::CommError&) {
            require(watch.seconds() < 2, "took too long");
            throw;
          }
        },
        600s);
    for (int r = 0; r < 4; ++r) {
      if (r == victim)
        EXPECT_EQ(outcomes[r], "signal 9");
      else
        EXPECT_THAT(outcomes[r], HasSubstr(fmt::format("rank {} died", victim)));
    }
  }
}

TEST(Hosts, MoreRanksThanWindowsAndSlowMembers) {
  if (under_mpirun()) GTEST_SKIP() << "does not use MPI";
  expect_clean(run_on_hosts(Kind::thread_hosts, {0, 0, 1, 1}, [](Backend& backend) {
    Comm comm = world(backend);
    const int64_t count = (kThreadSanitizer ? 1 : 5) << 20;  // many pieces
    std::vector<int64_t> counts(4, count), none(4, 0);
    std::vector<float> in(count, 1.0f + comm.rank()), out(4 * count), back(4 * count);
    if (comm.rank() == 2) std::this_thread::sleep_for(100ms);
    comm.all_gather(in.data(), out.data(), counts, DType::f32).wait();
    for (int r = 0; r < 4; ++r) require(out[r * count + count / 2] == 1.0f + r, "all_gather");
    comm.all_to_all(out.data(), counts, back.data(), counts, DType::f32).wait();
    require(back[3 * count] == 1.0f + comm.rank() && back.back() == 1.0f + comm.rank(),
            "all_to_all");
    none[3] = 4 * count;
    comm.reduce_scatter(out.data(), back.data(), none, DType::f32).wait();
    require(comm.rank() != 3 || (back.front() == 4 && back.back() == 16), "reduce_scatter");
    comm.broadcast(out.data(), 4 * count, DType::f32, 1).wait();
  }));
}

TEST(Hosts, ARankThatNeverConnectsIsNamed) {
  MemoryStore store;
  try {
    make_tcp_wire(0, {0, 1, 1}, store, "127.0.0.1", 200ms);
    FAIL();
  } catch (const base::CommError& error) {
    EXPECT_THAT(error.what(), HasSubstr("for ranks 1 2 to connect at 127.0.0.1"));
  }
}

// Who does not know the job's secret is turned away; nobody waits for him.
TEST(Hosts, StrangersDoNotDisturb) {
  if (under_mpirun()) GTEST_SKIP() << "does not use MPI";
  MemoryStore store;
  std::shared_ptr<Wire> first, second;
  std::thread rank0([&] { first = make_tcp_wire(0, {0, 1}, store, "127.0.0.1", 10s); });
  std::string place = store.get("tcp/1/0", 10s);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = ::inet_addr("127.0.0.1");
  address.sin_port = htons(static_cast<uint16_t>(std::stoi(place.substr(place.find(' ')))));
  int stranger = ::socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(::connect(stranger, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  std::string noise(200, 'x');
  EXPECT_GT(::send(stranger, noise.data(), noise.size(), 0), 0);
  second = make_tcp_wire(1, {0, 1}, store, "127.0.0.1", 10s);
  rank0.join();
  EXPECT_NE(first, nullptr);
  EXPECT_NE(second, nullptr);
  ::close(stranger);
}

TEST(Hosts, TheOwnAddressCanBeGiven) {
  ::setenv("TRIREME_ADDRESS", "10.1.2.3", 1);
  EXPECT_EQ(own_address("example.invalid"), "10.1.2.3");
  ::unsetenv("TRIREME_ADDRESS");
  EXPECT_NE(own_address("127.0.0.1"), "");
  EXPECT_THROW(own_address("no-such-host.invalid"), base::CommError);
}

}  // namespace
}  // namespace trireme::comm
