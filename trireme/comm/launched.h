#pragma once
// What a launcher's environment says about this process: its rank and where the ranks meet.
//
// Understood are, and come in this order: torchrun's variables where torchrun or `trireme launch`
// set them; those of mpirun (Open MPI's, and PMI's of MPICH and Intel MPI), also inside of a Slurm
// job; Slurm's; torchrun's RANK and WORLD_SIZE set by hand. Two launchers that contradict each
// other are an error: a job in which ranks meet twice or never is harder to understand.
//
//   comm::LaunchedRank launched = comm::launched_rank();   // under `srun -n 8`: {5, 8, "Slurm"}

#include <string>
#include <utility>

namespace trireme::comm {

struct LaunchedRank {
  int rank = 0, size = 1;
  /// Names the launcher; empty: there is none, or it started one process only.
  std::string source;
  /// How many ranks it started on this host; 0: it does not say.
  int here = 0;
  /// How often the job was started again.
  int restarts = 0;

  bool by_mpirun() const { return source == "Open MPI" || source == "PMI"; }
};

/// Reads the environment. ConfigError where a launcher's variables are incomplete or wrong, or two
/// launchers contradict each other.
LaunchedRank launched_rank();

/// Address and port of the store through which the ranks find one another: MASTER_ADDR and
/// MASTER_PORT, else what Slurm says, else this host if all ranks run here. ConfigError.
std::pair<std::string, int> meeting_place(const LaunchedRank& launched);

/// The first host of a list as Slurm writes it: "n[01-03,7],m" yields "n01".
std::string first_host(const std::string& list);

}  // namespace trireme::comm
