// From a launcher's variables to ranks that communicate.
#include "trireme/dist/rendezvous.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <map>

#include "trireme/base/error.h"
#include "trireme/dist/world.h"

namespace trireme::dist {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kVariables[] = {
    "RANK",         "WORLD_SIZE",   "MASTER_ADDR",       "MASTER_PORT", "TRIREME_STORE",
    "SLURM_PROCID", "SLURM_NTASKS", "TRIREME_TRANSPORT", "TRIREME_HOST"};

/// A world that is told where its ranks are, and does no more.
class Placed : public comm::Backend {
 public:
  explicit Placed(std::vector<int> hosts) : hosts_(std::move(hosts)) {}
  int rank() const override { return 0; }
  int size() const override { return static_cast<int>(hosts_.size()); }
  int host(int rank) const override { return hosts_[rank]; }
  comm::Comm make(std::vector<int>, const std::string&) override { return {}; }
  void abort(const std::string&) override {}

 private:
  std::vector<int> hosts_;
};

void set_environment(const std::map<std::string, std::string>& variables) {
  for (const char* name : kVariables) ::unsetenv(name);
  for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
}

int free_port() {
  int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(::bind(socket, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size), 0);
  ::close(socket);
  return ntohs(address.sin_port);
}

// On one host, and on what looks like two.
void meet(const std::vector<std::string>& hosts) {
  const int port = free_port();
  std::vector<pid_t> children;
  for (int rank = 0; rank < 3; ++rank) {
    pid_t child = ::fork();
    if (child == 0) {
      set_environment({{"RANK", std::to_string(rank)},
                       {"WORLD_SIZE", "3"},
                       {"MASTER_ADDR", "127.0.0.1"},
                       {"MASTER_PORT", std::to_string(port)},
                       {"TRIREME_HOST", hosts[rank]}});
      int right = 1;
      try {
        auto backend = rendezvous_from_env(60s);
        comm::Comm comm = backend->make({0, 1, 2}, "all");
        int64_t sum = rank + 1;
        comm.all_reduce(&sum, 1, base::DType::i64).wait();
        right = sum == 6 && backend->rank() == rank && backend->size() == 3 ? 0 : 1;
      } catch (const std::exception& error) {
        fmt::print(stderr, "{}\n", error.what());
      }
      ::_exit(right);
    }
    children.push_back(child);
  }
  for (pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
}

TEST(Rendezvous, RanksMeetThroughTorchrunsVariables) {
  meet({"", "", ""});
  meet({"left", "left", "right"});
}

TEST(Rendezvous, NoRankZeroIsACommErrorWithoutAStackTrace) {
  testing::internal::CaptureStderr();
  std::string message;
  try {
    connect_tcp_store("127.0.0.1", free_port(), false, 300ms);
  } catch (const base::CommError& error) {
    message = error.what();
  }
  EXPECT_THAT(message, HasSubstr("is rank 0 running"));
  EXPECT_THAT(message, Not(HasSubstr("\n")));
  auto store = connect_tcp_store("127.0.0.1", free_port(), true, 10s);
  store->set("a", "x");
  EXPECT_EQ(store->get("a", 1s), "x");
  EXPECT_EQ(store->add("n", 2), 2);
  EXPECT_THROW(store->get("missing", 100ms), base::CommError);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(Rendezvous, WithoutALauncherThereIsOneRank) {
  set_environment({});
  EXPECT_EQ(rendezvous_from_env(1s)->size(), 1);
}

TEST(Rendezvous, WhatCannotConnectIsRefused) {
  set_environment({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}});
  EXPECT_THROW(rendezvous_from_env(1s),
               base::ConfigError);  // several hosts, perhaps, and no MASTER_ADDR
  set_environment({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"TRIREME_TRANSPORT", "pigeons"}});
  EXPECT_THROW(rendezvous_from_env(1s), base::ConfigError);
  set_environment({});
}

TEST(Rendezvous, TensorParallelGroupsThatSpanHostsAreWarnedOf) {
  std::vector<int> hosts{0, 0, 1, 1};
  run_ranks(2, [&](World& world) {
    EXPECT_EQ(placement_warning(layout::Mesh({1, 1, 2}), world), "");
  });
  World world(std::make_unique<Placed>(hosts));
  EXPECT_EQ(placement_warning(layout::Mesh({1, 2, 2}), world), "");
  EXPECT_EQ(placement_warning(layout::Mesh({2, 2, 1}), world), "");
  EXPECT_THAT(placement_warning(layout::Mesh({1, 1, 4}), world),
              HasSubstr("the tensor-parallel ranks 0 1 2 3 are on several hosts (rank 2 is on"));
}

}  // namespace
}  // namespace trireme::dist
