// From a launcher's variables to ranks that communicate; what is wrong with them is named.
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

namespace trireme::dist {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kVariables[] = {
    "RANK",         "WORLD_SIZE",   "MASTER_ADDR",          "MASTER_PORT",          "TRIREME_STORE",
    "SLURM_PROCID", "SLURM_NTASKS", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK",
    "PMI_SIZE"};

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

TEST(Rendezvous, RanksMeetThroughTorchrunsVariables) {
  const int port = free_port();
  std::vector<pid_t> children;
  for (int rank = 0; rank < 3; ++rank) {
    pid_t child = ::fork();
    if (child == 0) {
      set_environment({{"RANK", std::to_string(rank)},
                       {"WORLD_SIZE", "3"},
                       {"MASTER_ADDR", "127.0.0.1"},
                       {"MASTER_PORT", std::to_string(port)}});
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

TEST(Rendezvous, LaunchersAreRecognised) {
  struct Case {
    std::map<std::string, std::string> variables;
    int rank, size;
    const char* source;
  };
  for (const Case& c :
       {Case{{}, 0, 1, ""},
        Case{{{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}},
             3,
             4,
             "torchrun"},
        Case{{{"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "8"}}, 5, 8, "Slurm"},
        Case{{{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}}, 1, 2, "Open MPI"},
        Case{{{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}, 1, 2, "PMI"}}) {
    set_environment(c.variables);
    LaunchedRank launched = launched_rank();
    EXPECT_EQ(launched.rank, c.rank);
    EXPECT_EQ(launched.size, c.size);
    EXPECT_EQ(launched.source, c.source);
  }
  set_environment({});
  EXPECT_EQ(rendezvous_from_env(1s)->size(), 1);
}

TEST(Rendezvous, WrongVariablesAreRefused) {
  for (const std::map<std::string, std::string>& variables :
       {std::map<std::string, std::string>{{"RANK", "0"}},
        {{"WORLD_SIZE", "2"}},
        {{"RANK", "two"}, {"WORLD_SIZE", "2"}},
        {{"RANK", "-1"}, {"WORLD_SIZE", "2"}},
        {{"RANK", "2"}, {"WORLD_SIZE", "2"}}}) {
    set_environment(variables);
    EXPECT_THROW(launched_rank(), base::ConfigError);
  }
  set_environment({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}});
  EXPECT_THROW(rendezvous_from_env(1s),
               base::ConfigError);  // several hosts, perhaps, and no MASTER_ADDR
  set_environment({});
}

}  // namespace
}  // namespace trireme::dist
