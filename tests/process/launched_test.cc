// Which rank a launcher's variables make of a process, and what is wrong with them.
#include "trireme/comm/launched.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cstdlib>
#include <map>

#include "trireme/base/error.h"

namespace trireme::comm {
namespace {

using testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

constexpr const char* kVariables[] = {"RANK",
                                      "WORLD_SIZE",
                                      "LOCAL_WORLD_SIZE",
                                      "MASTER_ADDR",
                                      "MASTER_PORT",
                                      "TORCHELASTIC_RESTART_COUNT",
                                      "SLURM_PROCID",
                                      "SLURM_NTASKS",
                                      "SLURM_STEP_NUM_TASKS",
                                      "SLURM_STEP_TASKS_PER_NODE",
                                      "SLURM_NODEID",
                                      "SLURM_STEP_NODELIST",
                                      "SLURM_JOB_ID",
                                      "SLURM_RESTART_COUNT",
                                      "OMPI_COMM_WORLD_RANK",
                                      "OMPI_COMM_WORLD_SIZE",
                                      "OMPI_COMM_WORLD_LOCAL_SIZE",
                                      "PMI_RANK",
                                      "PMI_SIZE",
                                      "MPI_LOCALNRANKS"};

/// The environment of a launcher, while it lives.
class Environment {
 public:
  explicit Environment(const Variables& variables) {
    for (const char* name : kVariables) {
      if (const char* value = std::getenv(name)) before_[name] = value;
      ::unsetenv(name);
    }
    for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  }
  ~Environment() {
    for (const char* name : kVariables) ::unsetenv(name);
    for (const auto& [name, value] : before_) ::setenv(name.c_str(), value.c_str(), 1);
  }

 private:
  Variables before_;
};

std::string refusal(const Variables& variables) {
  Environment environment(variables);
  try {
    meeting_place(launched_rank());
  } catch (const base::ConfigError& error) {
    return error.what();
  }
  return "";
}

const Variables kTorchrun{{"RANK", "3"}, {"WORLD_SIZE", "4"}};
Variables with(Variables variables, const Variables& more) {
  variables.insert(more.begin(), more.end());
  return variables;
}

TEST(Launched, LaunchersAreRecognised) {
  struct Case {
    Variables variables;
    int rank, size, here;
    const char* source;
  };
  const Case cases[] = {
      {{}, 0, 1, 0, ""},
      {kTorchrun, 3, 4, 0, "torchrun"},
      {with(kTorchrun, {{"LOCAL_WORLD_SIZE", "2"}}), 3, 4, 2, "torchrun"},
      {{{"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "8"}}, 5, 8, 0, "Slurm"},
      {{{"SLURM_PROCID", "5"},
        {"SLURM_NTASKS", "16"},
        {"SLURM_STEP_NUM_TASKS", "8"},
        {"SLURM_STEP_TASKS_PER_NODE", "3(x2),2"},
        {"SLURM_NODEID", "1"}},
       5,
       8,
       3,
       "Slurm"},
      {{{"OMPI_COMM_WORLD_RANK", "1"},
        {"OMPI_COMM_WORLD_SIZE", "2"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}},
       1,
       2,
       2,
       "Open MPI"},
      {{{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALNRANKS", "1"}}, 1, 2, 1, "PMI"},
      // Launchers within launchers: the inner one counts.
      {with(kTorchrun,
            {{"TORCHELASTIC_RESTART_COUNT", "0"}, {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}}),
       3, 4, 0, "torchrun"},
      {{{"OMPI_COMM_WORLD_RANK", "5"},
        {"OMPI_COMM_WORLD_SIZE", "8"},
        {"SLURM_PROCID", "1"},
        {"SLURM_NTASKS", "2"}},
       5,
       8,
       0,
       "Open MPI"},
      // What started a single process is no launcher of ranks.
      {{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}}, 0, 1, 0, ""},
      {with(kTorchrun, {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}}), 3, 4, 0, "torchrun"},
      // Variables that agree.
      {with(kTorchrun, {{"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "4"}}), 3, 4, 0, "Slurm"},
  };
  for (const Case& c : cases) {
    Environment environment(c.variables);
    LaunchedRank launched = launched_rank();
    EXPECT_EQ(launched.rank, c.rank);
    EXPECT_EQ(launched.size, c.size);
    EXPECT_EQ(launched.here, c.here);
    EXPECT_EQ(launched.source, c.source);
  }
}

TEST(Launched, RestartsAreCounted) {
  {
    Environment environment(with(kTorchrun, {{"TORCHELASTIC_RESTART_COUNT", "2"}}));
    EXPECT_EQ(launched_rank().restarts, 2);
  }
  Environment environment(
      {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_RESTART_COUNT", "1"}});
  EXPECT_EQ(launched_rank().restarts, 1);
}

TEST(Launched, WrongVariablesAreRefused) {
  for (const Variables& variables : {Variables{{"RANK", "0"}},
                                     {{"WORLD_SIZE", "2"}},
                                     {{"RANK", "two"}, {"WORLD_SIZE", "2"}},
                                     {{"RANK", "-1"}, {"WORLD_SIZE", "2"}},
                                     {{"RANK", "2"}, {"WORLD_SIZE", "2"}},
                                     {{"PMI_RANK", "9"}, {"PMI_SIZE", "4"}}})
    EXPECT_NE(refusal(variables), "") << variables.begin()->first;
}

TEST(Launched, LaunchersThatDisagreeAreRefused) {
  for (const Variables& other : {Variables{{"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "8"}},
                                 {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "4"}},
                                 {{"PMI_RANK", "3"}, {"PMI_SIZE", "5"}}})
    EXPECT_THAT(
        refusal(with(kTorchrun, other)),
        testing::AllOf(HasSubstr("two launchers"), HasSubstr("torchrun this is rank 3 of 4"),
                       HasSubstr("unset RANK and WORLD_SIZE")));
  EXPECT_THAT(refusal({{"OMPI_COMM_WORLD_RANK", "0"},
                       {"OMPI_COMM_WORLD_SIZE", "4"},
                       {"PMI_RANK", "1"},
                       {"PMI_SIZE", "2"}}),
              HasSubstr("for Open MPI this is rank 0 of 4, for PMI rank 1 of 2; start"));
}

TEST(Launched, TheMeetingPlaceIsKnownOrAskedFor) {
  auto place = [](const Variables& variables) {
    Environment environment(variables);
    auto [host, port] = meeting_place(launched_rank());
    return fmt::format("{}:{}", host, port);
  };
  EXPECT_EQ(place(kTorchrun), "127.0.0.1:29500");
  EXPECT_EQ(place(with(kTorchrun, {{"MASTER_ADDR", "a"}, {"MASTER_PORT", "5"}})), "a:5");
  Variables slurm{{"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "8"}};
  EXPECT_EQ(
      place(with(slurm, {{"SLURM_STEP_NODELIST", "n[07-09,12],m1"}, {"SLURM_JOB_ID", "40017"}})),
      "n07:20017");
  EXPECT_EQ(place(with(slurm, {{"MASTER_ADDR", "a"}, {"SLURM_STEP_NODELIST", "n1"}})), "a:29500");
  EXPECT_THAT(refusal(slurm), HasSubstr("set MASTER_ADDR"));
  Variables mpi{{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "4"}};
  EXPECT_EQ(place(with(mpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}})), "127.0.0.1:29500");
  EXPECT_THAT(refusal(with(mpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}})),
              HasSubstr("build trireme with MPI"));
}

TEST(Launched, ListsOfHosts) {
  EXPECT_EQ(first_host("n[01-03,7],m"), "n01");
  EXPECT_EQ(first_host("gpu1"), "gpu1");
  EXPECT_EQ(first_host("a-1,b-2"), "a-1");
  EXPECT_EQ(first_host("r[2-3]n[4,6]x,s"), "r2n4x");
  EXPECT_EQ(first_host(""), "");
  EXPECT_THROW(first_host("n[1-"), base::ConfigError);
}

}  // namespace
}  // namespace trireme::comm
