// The launcher: variables, output, first failures, signals, restarts, nothing left behind.
#include "trireme/comm/launch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"

namespace trireme::comm {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::Not;

struct Result {
  int status = 0;
  std::string out, err;
  double seconds = 0;
  int code() const { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }
};

std::string read_all(int fd) {
  std::string text;
  char part[4096];
  for (ssize_t n; (n = ::read(fd, part, sizeof part)) > 0;) text.append(part, n);
  ::close(fd);
  return text;
}

/// Runs the launcher in a process of its own; `meanwhile` gets its id.
Result launch(
    const LaunchOptions& options, const std::string& script,
    const std::function<void(pid_t)>& meanwhile = [](pid_t) {}) {
  int out[2], err[2];
  EXPECT_EQ(::pipe2(out, O_CLOEXEC), 0);
  EXPECT_EQ(::pipe2(err, O_CLOEXEC), 0);
  auto start = std::chrono::steady_clock::now();
  pid_t child = ::fork();
  if (child == 0) {
    ::dup2(out[1], 1);
    ::dup2(err[1], 2);
    int code = 99;
    try {
      code = launch_local(options, {"sh", "-c", script});
    } catch (const base::Error& error) {
      fmt::print(stderr, "{}\n", error.what());
      code = error.exit_code();
    }
    std::fflush(nullptr);
    ::_exit(code);
  }
  ::close(out[1]);
  ::close(err[1]);
  Result result;
  std::thread reader([&] { result.err = read_all(err[0]); });
  std::thread helper([&] { meanwhile(child); });
  result.out = read_all(out[0]);
  reader.join();
  helper.join();
  ::waitpid(child, &result.status, 0);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

std::string sorted_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return fmt::format("{}", fmt::join(lines, "\n"));
}

using Folder = test::TemporaryFolder;

void await_files(const Folder& folder, size_t count) {
  auto files = [&] {
    std::filesystem::directory_iterator entries(folder.path());
    return std::distance(begin(entries), end(entries));
  };
  for (int i = 0; i < 1000 && files() < static_cast<ptrdiff_t>(count); ++i)
    std::this_thread::sleep_for(10ms);
}

std::vector<pid_t> processes_in(const Folder& folder) {
  std::vector<pid_t> ids;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    pid_t id = 0;
    std::ifstream(entry.path()) >> id;
    ids.push_back(id);
  }
  return ids;
}

bool alive(pid_t id) {
  std::ifstream stat(fmt::format("/proc/{}/stat", id));
  std::string number, name, state;
  return static_cast<bool>(stat >> number >> name >> state) && state != "Z";
}

TEST(Launch, RanksGetTheirVariablesAndPrefixedOutput) {
  Result result =
      launch({.nproc = 3},
             "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE "
             "$MASTER_ADDR; printf 'to stderr' >&2; test -n \"$MASTER_PORT$TRIREME_STORE\"");
  EXPECT_EQ(result.code(), 0);
  EXPECT_EQ(sorted_lines(result.out),
            "[rank 0] 0/3 0/3 0/1 127.0.0.1\n[rank 1] 1/3 1/3 0/1 127.0.0.1\n"
            "[rank 2] 2/3 2/3 0/1 127.0.0.1");
  EXPECT_EQ(sorted_lines(result.err), "[rank 0] to stderr\n[rank 1] to stderr\n[rank 2] to stderr");
}

TEST(Launch, SeveralNodesNumberTheirRanksInOrder) {
  Result result = launch(
      {.nproc = 2,
       .nnodes = 3,
       .node_rank = 1,
       .master_addr = "head",
       .master_port = 1234,
       .prefix = false},
      "echo $RANK/$WORLD_SIZE $LOCAL_RANK $GROUP_RANK $MASTER_ADDR:$MASTER_PORT $TRIREME_STORE");
  EXPECT_EQ(sorted_lines(result.out), "2/6 0 1 head:1234\n3/6 1 1 head:1234");
  EXPECT_EQ(launch({.nproc = 2, .nnodes = 3}, "true").code(), 2);
}

TEST(Launch, TheFirstFailureEndsTheRestAndGivesTheExitCode) {
  Result result =
      launch({.nproc = 3, .settle = 100ms}, "if [ $RANK = 1 ]; then exit 7; fi; exec sleep 100");
  EXPECT_EQ(result.code(), 7);
  EXPECT_THAT(result.err, HasSubstr("rank 1 ended with exit code 7; 2 other ranks were stopped"));
  EXPECT_LT(result.seconds, 5);
}

TEST(Launch, AKilledRankIsToldFromThoseThatReportItsLoss) {
  // Rank 2 is killed; the others notice and end with a communication error (3), and may be seen to
  // end first.
  Result result = launch({.nproc = 3}, "if [ $RANK = 2 ]; then sleep 0.2; kill -9 $$; fi; exit 3");
  EXPECT_EQ(result.code(), 137);
  EXPECT_THAT(result.err, HasSubstr("rank 2 was killed by signal 9 (SIGKILL)"));
}

// What report_to_launcher does, in shell.
constexpr const char* kSay =
    "say() { printf '%b' \"$1\" > /proc/self/fd/$TRIREME_ERROR_FD; exit $2; }; ";

TEST(Launch, EqualErrorsOfRanksArePrintedOnce) {
  Result result = launch({.nproc = 3}, std::string(kSay) + "say 'a wrong key\nof the config' 2");
  EXPECT_EQ(result.code(), 2);
  EXPECT_THAT(result.err, HasSubstr("trireme: error: a wrong key"));
  EXPECT_THAT(result.err, HasSubstr("(all 3 ranks)"));
  EXPECT_EQ(result.err.find("a wrong key"), result.err.rfind("a wrong key"));
}

TEST(Launch, ACauseHidesTheLossesThatItLedTo) {
  std::string script = std::string(kSay) +
                       "if [ $RANK = 1 ]; then sleep 0.1; say 'the disk is full' 4; fi; "
                       "say \"rank $RANK lost rank 1\" 3";
  Result result = launch({.nproc = 3}, script);
  EXPECT_EQ(result.code(), 4);
  EXPECT_THAT(result.err, HasSubstr("trireme: error: the disk is full (rank 1)"));
  EXPECT_THAT(result.err, Not(HasSubstr("lost")));
  EXPECT_THAT(result.err, Not(HasSubstr("first failure")));
  result = launch({.nproc = 2},
                  std::string(kSay) + "if [ $RANK = 1 ]; then kill -9 $$; fi; say 'lost rank 1' 3");
  EXPECT_THAT(result.err, testing::StartsWith("trireme: first failure: rank 1 was killed by signal 9"));
  EXPECT_THAT(result.err, Not(HasSubstr("lost")));
}

TEST(Launch, OfLossesWithoutACauseTheShortestIsToldOnce) {
  // All gave up on one another: what each of them was doing is its own business.
  Result result = launch({.nproc = 3}, std::string(kSay) +
                                           "if [ $RANK = 1 ]; then say 'rank 1 gave up' 3; fi; "
                                           "say \"operation $RANK: rank 1 gave up\" 3");
  EXPECT_EQ(result.code(), 3);
  EXPECT_THAT(result.err, testing::EndsWith("trireme: error: rank 1 gave up\n"));
  EXPECT_THAT(result.err, Not(HasSubstr("operation")));
}

TEST(Launch, ATerminatedLauncherTakesItsRanksWithIt) {
  Folder folder;
  Result result =
      launch({.nproc = 3}, fmt::format("echo $$ > {}/$RANK; exec sleep 100", folder.path().string()),
             [&](pid_t launcher) {
               await_files(folder, 3);
               ::kill(launcher, SIGTERM);  // as `timeout` does
             });
  EXPECT_EQ(result.code(), 128 + SIGTERM);
  EXPECT_LT(result.seconds, 10);
  for (pid_t id : processes_in(folder)) EXPECT_FALSE(alive(id));
}

TEST(Launch, RanksThatIgnoreTheEndAreKilled) {
  Result result =
      launch({.nproc = 2, .settle = 50ms, .grace = 300ms},
             "if [ $RANK = 1 ]; then exit 5; fi; trap '' TERM; while :; do sleep 0.1; done");
  EXPECT_EQ(result.code(), 5);
  EXPECT_LT(result.seconds, 5);
}

TEST(Launch, SignalsReachAllRanks) {
  Folder folder;
  for (int signal : {SIGTERM, SIGINT}) {
    Result result = launch({.nproc = 2},
                           fmt::format("trap 'echo saved; exit 0' TERM INT; echo $$ > {}/{}-$RANK; "
                                       "while :; do sleep 0.05; done",
                                       folder.path().string(), signal),
                           [&](pid_t launcher) {
                             await_files(folder, signal == SIGTERM ? 2 : 4);
                             std::this_thread::sleep_for(100ms);
                             ::kill(launcher, signal);
                           });
    EXPECT_EQ(result.code(), 0);
    EXPECT_EQ(sorted_lines(result.out), "[rank 0] saved\n[rank 1] saved");
  }
}

TEST(Launch, RanksDoNotOutliveAKilledLauncher) {
  Folder folder;
  Result result =
      launch({.nproc = 3}, fmt::format("echo $$ > {}/$RANK; exec sleep 100", folder.path().string()),
             [&](pid_t launcher) {
               await_files(folder, 3);
               std::this_thread::sleep_for(100ms);
               ::kill(launcher, SIGKILL);
             });
  EXPECT_EQ(result.code(), 137);
  std::this_thread::sleep_for(200ms);
  for (pid_t id : processes_in(folder)) EXPECT_FALSE(alive(id));
}

TEST(Launch, RestartsAfterAFailure) {
  Result result = launch({.nproc = 2, .max_restarts = 2, .settle = 50ms},
                         "echo start $TORCHELASTIC_RESTART_COUNT; if [ "
                         "$RANK$TORCHELASTIC_RESTART_COUNT = 10 ]; then exit 9; fi; sleep 0.2");
  EXPECT_EQ(result.code(), 0);
  EXPECT_THAT(result.err, HasSubstr("rank 1 ended with exit code 9"));
  EXPECT_THAT(result.err, HasSubstr("restart 1 of 2"));
  EXPECT_THAT(result.out, HasSubstr("[rank 1] start 1"));
  EXPECT_THAT(result.out, Not(HasSubstr("start 2")));
}

TEST(Launch, ACommandThatDoesNotExistIsNamed) {
  int out[2];
  ASSERT_EQ(::pipe2(out, O_CLOEXEC), 0);
  pid_t child = ::fork();
  if (child == 0) {
    ::dup2(out[1], 2);
    ::_exit(launch_local({.nproc = 1}, {"/no/such/program"}));
  }
  ::close(out[1]);
  EXPECT_THAT(
      read_all(out[0]),
      HasSubstr("[rank 0] trireme: error: cannot run /no/such/program: No such file or directory"));
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 127);
  EXPECT_THROW(launch_local({.nproc = 0}, {"true"}), base::ConfigError);
  EXPECT_THROW(launch_local({.nproc = 1}, {}), base::ConfigError);
}

}  // namespace
}  // namespace trireme::comm
