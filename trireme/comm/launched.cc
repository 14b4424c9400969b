#include "trireme/comm/launched.h"

#include <charconv>
#include <cstdlib>
#include <optional>
#include <vector>

#include "trireme/base/error.h"

namespace trireme::comm {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

int number(const char* name) {
  std::string text = variable(name);
  int value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0)
    throw base::ConfigError(
        fmt::format("the environment's {} is '{}'; expected a number from 0", name, text));
  return value;
}

int number_or(const char* name, int otherwise) {
  return variable(name).empty() ? otherwise : number(name);
}

struct Source {
  const char *name, *rank, *size, *here;
};
constexpr Source kTorchrun{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"};
constexpr Source kOpenMpi{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                          "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Source kPmi{"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"};
constexpr Source kSlurm{"Slurm", "SLURM_PROCID", "SLURM_NTASKS", ""};
constexpr Source kSlurmStep{"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", ""};

/// A launcher's rank, where its variables are set.
std::optional<LaunchedRank> read(const Source& source) {
  bool rank = !variable(source.rank).empty(), size = !variable(source.size).empty();
  if (!rank || !size) {
    // Slurm and MPI set some of their variables for other programs too.
    if (rank == size || source.rank != std::string(kTorchrun.rank)) return std::nullopt;
    throw base::ConfigError(fmt::format("the environment has {} but no {}; a launcher sets both",
                                        rank ? source.rank : source.size,
                                        rank ? source.size : source.rank));
  }
  LaunchedRank launched{.rank = number(source.rank),
                        .size = number(source.size),
                        .source = source.name,
                        .here = number_or(source.here, 0)};
  if (launched.rank >= launched.size)
    throw base::ConfigError(
        fmt::format("the environment's {} is {} with {} {}; ranks are numbered from 0", source.rank,
                    launched.rank, source.size, launched.size));
  return launched;
}

/// Launchers of one process say nothing about the ranks: a shell that srun started is one.
std::optional<LaunchedRank> read_several(const Source& source) {
  auto launched = read(source);
  return launched && launched->size > 1 ? launched : std::nullopt;
}

void expect_agreement(const LaunchedRank& a, const LaunchedRank& b, const char* what_to_do) {
  if (a.rank == b.rank && a.size == b.size) return;
  throw base::ConfigError(fmt::format(
      "the environment is that of two launchers: for {} this is rank {} of {}, for {} rank {} of "
      "{}; {}",
      a.source, a.rank, a.size, b.source, b.rank, b.size, what_to_do));
}

/// Entry `index` of a list such as "4(x2),3", which stands for 4, 4, 3; 0: there is none.
int entry(const std::string& list, int index) {
  const char *at = list.data(), *end = at + list.size();
  while (at < end) {
    int value = 0, times = 1;
    at = std::from_chars(at, end, value).ptr;
    if (end - at > 2 && at[0] == '(' && at[1] == 'x') at = std::from_chars(at + 2, end, times).ptr;
    if (index < times) return value;
    index -= times;
    while (at < end && *at != ',') ++at;
    if (at < end) ++at;
  }
  return 0;
}

LaunchedRank find() {
  auto torchrun = read(kTorchrun);
  // What torchrun and `trireme launch` start is theirs, whatever started them.
  if (torchrun && !variable("TORCHELASTIC_RESTART_COUNT").empty()) return *torchrun;
  auto open_mpi = read_several(kOpenMpi), pmi = read_several(kPmi);
  auto slurm = read_several(variable(kSlurmStep.size).empty() ? kSlurm : kSlurmStep);
  if (open_mpi && pmi && !slurm)
    expect_agreement(*open_mpi, *pmi, "start the ranks with one mpirun only");
  // mpirun in a Slurm job starts its daemons with srun, and processes inherit the daemons'
  // variables.
  auto other = open_mpi ? open_mpi : pmi ? pmi : slurm;
  if (slurm && other && other->here == 0)
    other->here = entry(variable("SLURM_STEP_TASKS_PER_NODE"), number_or("SLURM_NODEID", 0));
  if (torchrun && torchrun->size > 1 && other)
    expect_agreement(*torchrun, *other, "unset RANK and WORLD_SIZE, or set them to the same");
  if (other) return *other;
  return torchrun ? *torchrun : LaunchedRank{};
}

}  // namespace

LaunchedRank launched_rank() {
  LaunchedRank launched = find();
  launched.restarts = number_or("TORCHELASTIC_RESTART_COUNT", number_or("SLURM_RESTART_COUNT", 0));
  return launched;
}

std::string first_host(const std::string& list) {
  std::string host;
  for (size_t at = 0; at < list.size() && list[at] != ','; ++at) {
    if (list[at] != '[') {
      host += list[at];
      continue;
    }
    size_t end = list.find_first_of(",-]", at), close = list.find(']', at);
    if (close == std::string::npos)
      throw base::ConfigError(fmt::format("Slurm's list of hosts '{}' lacks a ]", list));
    host += list.substr(at + 1, end - at - 1);
    at = close;
  }
  return host;
}

std::pair<std::string, int> meeting_place(const LaunchedRank& launched) {
  std::string host = variable("MASTER_ADDR");
  int port = number_or("MASTER_PORT", 0);
  if (launched.source == "Slurm") {
    // A port of the job's own, so that two jobs may share a host.
    if (port == 0) port = 20000 + number_or("SLURM_JOB_ID", 9500) % 20000;
    for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"})
      if (host.empty()) host = first_host(variable(name));
  }
  if (host.empty() && (launched.source == "torchrun" || launched.here == launched.size))
    host = "127.0.0.1";
  if (host.empty())
    throw base::ConfigError(fmt::format(
        "the {} ranks that {} started may be on several hosts, and nothing says where they meet: "
        "set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a free port there{}",
        launched.size, launched.source,
        launched.by_mpirun() ? ", or build trireme with MPI (-DTRIREME_WITH_MPI=ON)" : ""));
  return {host, port == 0 ? 29500 : port};
}

}  // namespace trireme::comm
