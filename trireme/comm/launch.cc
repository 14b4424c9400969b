#include "trireme/comm/launch.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <map>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/base/json.h"
#include "trireme/base/threads.h"
#include "trireme/comm/socket.h"
#include "trireme/comm/store.h"

namespace trireme::comm {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kCommFailed = 3;  // exit code of a CommError
constexpr const char* kErrorVariable = "TRIREME_ERROR_FD";
constexpr const char* kPrefixVariable = "TRIREME_PREFIX";

/// The lines of one stream of one rank, copied to a stream of the launcher.
class Output {
 public:
  Output(Descriptor pipe, int to, std::string prefix)
      : pipe_(std::move(pipe)), to_(to), prefix_(std::move(prefix)) {
    ::fcntl(pipe_.get(), F_SETFL, O_NONBLOCK);
  }
  int descriptor() const { return pipe_.get(); }
  bool open() const { return static_cast<bool>(pipe_); }

  /// Copies what there is; closes at the end of the stream.
  void copy() {
    char text[65536];
    for (;;) {
      ssize_t n = ::read(pipe_.get(), text, sizeof text);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return;  // nothing more for now
      if (n == 0) break;
      pending_.append(text, static_cast<size_t>(n));
      print();
    }
    finish();
  }
  /// Prints an unfinished line too.
  void finish() {
    if (!pending_.empty()) pending_ += '\n';
    print();
    pipe_ = Descriptor();
  }

 private:
  void print() {
    std::string out;
    size_t begin = 0;
    for (size_t end; (end = pending_.find('\n', begin)) != std::string::npos; begin = end + 1)
      out += prefix_ + pending_.substr(begin, end + 1 - begin);
    pending_.erase(0, begin);
    for (size_t done = 0; done < out.size();) {
      ssize_t n = ::write(to_, out.data() + done, out.size() - done);
      if (n < 0 && errno != EINTR) return;  // nobody reads the launcher's output
      done += n > 0 ? static_cast<size_t>(n) : 0;
    }
  }

  Descriptor pipe_;
  int to_;
  std::string prefix_, pending_;
};

/// The error that a rank reports when it ends.
struct Report {
  int rank;
  Descriptor pipe;
  std::string text = {};

  void read() {
    char part[4096];
    ssize_t n;
    while ((n = ::read(pipe.get(), part, sizeof part)) > 0 || (n < 0 && errno == EINTR))
      if (n > 0) text.append(part, static_cast<size_t>(n));
    if (n == 0) pipe = Descriptor();
  }
};

/// The signals that the launcher handles, read from a descriptor; restored at the end.
class Signals {
 public:
  Signals() {
    sigset_t set;
    ::sigemptyset(&set);
    for (int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&set, signal);
    ::pthread_sigmask(SIG_BLOCK, &set, &before_);
    descriptor_ = Descriptor(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  ~Signals() { restore(); }
  void restore() const { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  int descriptor() const { return descriptor_.get(); }
  /// The next signal; 0: none.
  int next() const {
    signalfd_siginfo info;
    return ::read(descriptor_.get(), &info, sizeof info) == sizeof info
               ? static_cast<int>(info.ssi_signo)
               : 0;
  }

 private:
  sigset_t before_;
  Descriptor descriptor_;
};

/// How a rank failed: its exit code, or 128 + a signal.
struct Failure {
  int rank, code;
  std::string text() const {
    if (code <= 128) return fmt::format("rank {} ended with exit code {}", rank, code);
    const char* name = ::sigabbrev_np(code - 128);
    return fmt::format("rank {} was killed by signal {} (SIG{})", rank, code - 128,
                       name ? name : "?");
  }
};

int free_port() {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0)
    throw base::CommError(fmt::format("cannot find a free TCP port: {}", std::strerror(errno)));
  return ntohs(address.sin_port);
}

/// One attempt to run all ranks.
class Job {
 public:
  Job(const LaunchOptions& options, const std::vector<std::string>& command, int attempt)
      : options_(options), command_(command), attempt_(attempt), launcher_(::getpid()) {}

  ~Job() {
    signal_all(SIGKILL);
    while (!running_.empty()) reap(0);
  }

  /// Returns the failure to blame once all ranks have ended; nothing: none.
  std::optional<Failure> run() {
    int port = options_.master_port != 0 ? options_.master_port : free_port();
    for (int local = 0; local < options_.nproc; ++local) start(local, port);
    store_.serve();
    constexpr auto kNever = Clock::time_point::max();
    Clock::time_point due = kNever;  // the next signal to ranks that go on after a failure
    int sent = 0;
    while (!running_.empty()) {
      wait(due);
      reap(WNOHANG);
      if (!failures_.empty() && sent == 0 && due == kNever) due = Clock::now() + options_.settle;
      if (Clock::now() < due) continue;
      if (sent == 0) ended_ = running_.size();
      signal_all(sent == 0 ? SIGTERM : SIGKILL);
      due = sent++ == 0 ? Clock::now() + options_.grace : kNever;
    }
    for (Output& output : outputs_)
      if (output.open()) output.copy();
    for (Output& output : outputs_)
      if (output.open()) output.finish();
    if (failures_.empty()) return std::nullopt;
    auto cause = std::find_if(failures_.begin(), failures_.end(),
                              [](auto& f) { return f.code != kCommFailed; });
    return cause != failures_.end() ? *cause : failures_.front();
  }

  bool stopped_by_signal() const { return signals_received_ > 0; }

  /// Says on stderr why the job failed, the cause first: what ranks reported, each error once, and
  /// how the blamed rank ended where it reported nothing. What only tells of a peer's loss is left
  /// out where the cause is known, and told once, by the rank that says it shortest, where it is
  /// not.
  void explain(const Failure& blamed) {
    std::map<std::string, std::vector<int>> causes, losses;
    bool told = false;
    for (Report& report : reports_) {
      if (report.pipe) report.read();
      if (report.text.empty()) continue;
      const bool loss = std::ranges::any_of(failures_, [&](const Failure& f) {
        return f.rank == report.rank && f.code == kCommFailed;
      });
      (loss ? losses : causes)[report.text].push_back(report.rank);
      told |= report.rank == blamed.rank;
    }
    if (!told || stopped_by_signal())
      fmt::print(stderr, "trireme: {}{}{}\n",
                 !stopped_by_signal() ? "first failure: "
                 : blamed.code <= 128 ? "stopped by a signal; "
                                      : "stopped by a signal before it could end by itself: ",
                 blamed.text(),
                 ended_ > 0 ? fmt::format("; {} other rank{} stopped", ended_,
                                          ended_ == 1 ? " was" : "s were")
                            : "");
    if (causes.empty() && blamed.code == kCommFailed && !losses.empty())
      causes.insert(*std::ranges::min_element(losses, {},
                                              [](const auto& loss) { return loss.first.size(); }));
    for (const auto& [text, ranks] : causes) print_report(text, ranks);
  }

 private:
  void start(int local, int port) {
    int rank = options_.node_rank * options_.nproc + local;
    std::map<std::string, std::string> variables{
        {"RANK", std::to_string(rank)},
        {"WORLD_SIZE", std::to_string(options_.nproc * options_.nnodes)},
        {"LOCAL_RANK", std::to_string(local)},
        {"LOCAL_WORLD_SIZE", std::to_string(options_.nproc)},
        {"GROUP_RANK", std::to_string(options_.node_rank)},
        {"GROUP_WORLD_SIZE", std::to_string(options_.nnodes)},
        {"MASTER_ADDR", options_.master_addr},
        {"MASTER_PORT", std::to_string(port)},
        {"TORCHELASTIC_RESTART_COUNT", std::to_string(attempt_)},
        {"TORCHELASTIC_MAX_RESTARTS", std::to_string(options_.max_restarts)},
        {"TRIREME_STORE", options_.nnodes == 1 ? store_.address() : ""},
        {"TORCHELASTIC_USE_AGENT_STORE", options_.nnodes == 1 ? "False" : "True"},
    };
    if (std::getenv("OMP_NUM_THREADS") == nullptr)
      variables["OMP_NUM_THREADS"] =
          std::to_string(std::max(1, base::available_cores() / options_.nproc));
    std::vector<char*> arguments;
    for (const std::string& word : command_) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);

    int error_ends[2];
    if (::pipe2(error_ends, O_CLOEXEC) != 0) throw base::IoError("pipe", errno, "open");
    ::fcntl(error_ends[0], F_SETFL, O_NONBLOCK);
    reports_.push_back({rank, Descriptor(error_ends[0])});
    Descriptor error_writing(error_ends[1]);
    variables[kErrorVariable] = std::to_string(error_writing.get());
    variables[kPrefixVariable] = options_.prefix ? "1" : "";

    Descriptor reading[2], writing[2];
    for (int i = 0; i < 2 && options_.prefix; ++i) {
      int ends[2];
      if (::pipe2(ends, O_CLOEXEC) != 0) throw base::IoError("pipe", errno, "open");
      reading[i] = Descriptor(ends[0]);
      writing[i] = Descriptor(ends[1]);
    }
    pid_t child = ::fork();
    if (child < 0) throw base::IoError(command_[0], errno, fmt::format("start rank {}", rank));
    if (child == 0) {
      ::setpgid(0, 0);
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != launcher_) ::_exit(1);  // the launcher died before the line above
      for (int i = 0; i < 2 && options_.prefix; ++i) ::dup2(writing[i].get(), i + 1);
      for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
      ::fcntl(error_writing.get(), F_SETFD, 0);
      signals_.restore();
      ::execvp(arguments[0], arguments.data());
      std::string error =
          fmt::format("trireme: error: cannot run {}: {}\n", arguments[0], std::strerror(errno));
      ssize_t written = ::write(2, error.data(), error.size());
      ::_exit(written >= 0 ? 127 : 126);
    }
    ::setpgid(child, child);
    running_[child] = rank;
    for (int i = 0; i < 2 && options_.prefix; ++i)
      outputs_.emplace_back(std::move(reading[i]), i + 1, fmt::format("[rank {}] ", rank));
  }

  void wait(Clock::time_point until) {
    auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count() + 1;
    std::vector<pollfd> waits{{signals_.descriptor(), POLLIN, 0}};
    for (Output& output : outputs_) waits.push_back({output.descriptor(), POLLIN, 0});
    for (Report& report : reports_) waits.push_back({report.pipe.get(), POLLIN, 0});
    // Not for longer than a second: a SIGCHLD that another thread of the program took is not seen
    // here.
    if (::poll(waits.data(), waits.size(), static_cast<int>(std::clamp<int64_t>(left, 0, 1000))) <=
        0)
      return;
    for (size_t i = 0; i < outputs_.size(); ++i)
      if (waits[i + 1].revents != 0) outputs_[i].copy();
    for (size_t i = 0; i < reports_.size(); ++i)
      if (waits[outputs_.size() + i + 1].revents != 0) reports_[i].read();
    for (int signal; (signal = signals_.next()) != 0;) {
      if (signal == SIGCHLD) continue;
      ++signals_received_;
      signal_all(signals_received_ < 3 ? signal : SIGKILL);
    }
  }

  void reap(int flags) {
    // Only our own ranks: a user of the library may have other children.
    for (auto it = running_.begin(); it != running_.end();) {
      int status = 0;
      pid_t child = ::waitpid(it->first, &status, flags);
      if (child == 0 || (child < 0 && errno == EINTR)) {
        ++it;
        continue;
      }
      int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      bool by_us = ended_ > 0 && WIFSIGNALED(status);
      if (code != 0 && !by_us) failures_.push_back({it->second, code});
      it = running_.erase(it);
    }
  }

  void print_report(const std::string& text, const std::vector<int>& ranks) const {
    std::string lines;
    for (char c : text) lines += c == '\n' ? std::string("\n  ") : std::string(1, c);
    const std::string who = std::ssize(ranks) == options_.nproc
                                ? fmt::format("all {} ranks", ranks.size())
                                : fmt::format("rank {}", fmt::join(ranks, ", "));
    const bool said = options_.nproc == 1 || text.starts_with("rank ");
    fmt::print(stderr, "trireme: error: {}{}\n", lines, said ? "" : fmt::format(" ({})", who));
  }

  void signal_all(int signal) {
    for (auto& [child, _] : running_) ::kill(-child, signal);
  }

  const LaunchOptions& options_;
  const std::vector<std::string>& command_;
  int attempt_;
  pid_t launcher_;
  Signals signals_;
  StoreServer store_;
  std::map<pid_t, int> running_;  // process -> rank
  std::vector<Output> outputs_;
  std::vector<Report> reports_;
  std::vector<Failure> failures_;  // in the order in which they were seen
  int signals_received_ = 0;
  size_t ended_ = 0;
};

/// The file whose words torchrun repeats when it says which rank failed first and why; the format is
/// torch.distributed.elastic's. One that cannot be written is no reason to hide the error itself.
void write_elastic_error(std::string_view message) {
  const char* file = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (!file || !*file) return;
  base::Json error = {{"message", message}};
  error["extraInfo"] = {{"py_callstack", message}, {"timestamp", std::to_string(std::time(nullptr))}};
  base::Json content;
  content["message"] = std::move(error);
  std::ofstream(file) << content.dump(-1, ' ', false, base::Json::error_handler_t::replace);
}

}  // namespace

bool report_to_launcher(std::string_view message) {
  write_elastic_error(message);
  const char* variable = std::getenv(kErrorVariable);
  int pipe = variable ? std::atoi(variable) : -1;
  if (pipe < 0) return false;
  while (!message.empty()) {
    ssize_t n = ::write(pipe, message.data(), message.size());
    if (n < 0 && errno != EINTR) return false;  // the launcher is gone
    message.remove_prefix(n > 0 ? static_cast<size_t>(n) : 0);
  }
  return true;
}

bool launcher_prefixes() {
  const char* variable = std::getenv(kPrefixVariable);
  return variable && *variable;
}

int launch_local(const LaunchOptions& options, const std::vector<std::string>& command) {
  if (command.empty()) throw base::ConfigError("no command to launch; give it after --");
  if (options.nproc < 1 || options.nnodes < 1 || options.node_rank < 0 ||
      options.node_rank >= options.nnodes || options.max_restarts < 0)
    throw base::ConfigError(
        fmt::format("cannot launch {} ranks on node {} of {} with {} restarts; expected at least 1 "
                    "rank, a node rank from 0 to {}, "
                    "no negative number of restarts",
                    options.nproc, options.node_rank, options.nnodes, options.max_restarts,
                    options.nnodes - 1));
  if (options.nnodes > 1 && options.master_port == 0)
    throw base::ConfigError(
        "several nodes need the same --master-addr and --master-port on each; no port was given");
  for (int attempt = 0;; ++attempt) {
    if (options.before_start) options.before_start(attempt);
    Job job(options, command, attempt);
    auto failure = job.run();
    if (!failure) return 0;
    job.explain(*failure);
    if (job.stopped_by_signal() || attempt == options.max_restarts) return failure->code;
    fmt::print(stderr, "trireme: restart {} of {}\n", attempt + 1, options.max_restarts);
  }
}

}  // namespace trireme::comm
