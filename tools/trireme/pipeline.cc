// trireme pipeline: a schedule before anyone runs it.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "tools/trireme/subcommands.h"
#include "trireme/base/error.h"
#include "trireme/base/wording.h"
#include "trireme/schedule/choose.h"
#include "trireme/schedule/draw.h"

namespace trireme::tools {

namespace {

using namespace schedule;

struct Options {
  std::string name = "1f1b", file, format = "text";
  Request request{.ranks = 4, .micro_batches = 8};
  std::optional<double> memory;
  std::vector<double> costs = {1, 1, 1, 0};
  bool compare = false, json = false;
};

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
}

Costs costs_of(const Options& options) {
  const std::vector<double>& c = options.costs;
  if (c.size() != 4 || std::ranges::any_of(c, [](double cost) { return !(cost >= 0); }))
    throw base::ConfigError(
        fmt::format("--costs: {} given, expected four of at least 0: f,i,w,comm",
                    base::counted(std::ssize(c), "number")));
  return {c[0], c[1], c[2], c[3]};
}

/// Flags that would have no effect beside those given are refused. `given` tells whether one is on
/// the command line.
template <class Given>
void check_flags(const Options& options, const Given& given) {
  const auto refuse = [&](std::initializer_list<const char*> flags, const char* why) {
    for (const char* flag : flags)
      if (given(flag)) throw base::ConfigError(fmt::format("{} {}", flag, why));
  };
  if (given("--json") && given("--format") && options.format != "json")
    throw base::ConfigError(
        fmt::format("--json and --format {} contradict each other; give one", options.format));
  if (!options.file.empty()) {
    refuse({"--schedule"}, "has no effect beside --check, which shows the file's; leave it out");
    refuse({"--stages", "--micro-batches"},
           "is what the file of --check says, also for --compare; leave it out");
  }
  if (!options.file.empty() && !options.compare)
    refuse({"--chunks", "--memory"},
           "plans a schedule, but that of --check is there; leave it out");
  if (options.compare) {
    refuse({"--schedule"}, "has no effect beside --compare, which shows all; leave it out");
    if (options.format != "text" && options.format != "json")
      throw base::ConfigError(fmt::format(
          "--compare is a table: no {}; draw one schedule with --schedule", options.format));
  }
  if (options.memory && !(*options.memory >= 1))
    throw base::ConfigError(fmt::format(
        "--memory {:g}: expected at least 1, the activations of one micro-batch in a whole stage",
        *options.memory));
}

/// Every schedule side by side, and the user's own one where it is given.
void compare(const Options& options) {
  const Costs costs = options.request.costs;
  Question question{.ranks = options.request.ranks, .micro_batches = options.request.micro_batches};
  std::optional<Schedule> own;
  if (!options.file.empty()) {
    own = read(options.file, "--check");
    question.ranks = own->ranks, question.micro_batches = own->micro_batches;
  }
  question.costs = [&](int) { return costs; };
  question.interleaved = {options.request.chunks_per_rank.value_or(2)};
  if (options.memory) question.memory = *options.memory;
  Choice choice = choose(question);
  const std::string none = shortfall(choice);
  choice.candidates.push_back(
      candidate_of(forward_only({question.ranks, question.micro_batches}), costs));
  if (own) choice.candidates.push_back(candidate_of(*own, costs));
  if (options.format != "json") return print(to_text(choice) + none + (none.empty() ? "" : "\n"));
  base::Json rows = to_json(choice);
  for (base::Json& row : rows)
    row["costs"] = {{"f", costs.f}, {"i", costs.i}, {"w", costs.w}, {"comm", costs.comm}};
  print(rows.dump() + "\n");
}

void run(Options options) {
  if (options.json) options.format = "json";
  options.request.costs = costs_of(options);
  if (options.compare) return compare(options);
  const Costs& costs = options.request.costs;
  if (options.memory) options.request.memory = {*options.memory};
  const bool given = !options.file.empty();
  const Schedule schedule =
      given ? read(options.file, "--check") : generate(options.name, options.request);
  if (!given) check(schedule);
  if (given && options.format == "text") print(options.file + ": a valid schedule\n");
  print(draw(options.format, schedule, costs, simulate(schedule, costs)));
}

}  // namespace

void add_pipeline(CLI::App& program) {
  auto options = std::make_shared<Options>();
  CLI::App* app = program.add_subcommand(
      "pipeline", "show a pipeline schedule: its order, makespan, bubble and peak activations");
  app->add_option("--schedule", options->name, fmt::format("one of: {}", fmt::join(names(), ", ")))
      ->capture_default_str();
  app->add_option("--stages", options->request.ranks, "pipeline stages")->capture_default_str();
  app->add_option("--micro-batches", options->request.micro_batches, "micro-batches of a step")
      ->capture_default_str();
  app->add_option("--chunks", options->request.chunks_per_rank,
                  "chunks (virtual stages) a stage; with --compare: of interleaved");
  app->add_option("--costs", options->costs,
                  "time of a whole stage's forward, input gradient and weight gradient, and of one "
                  "message: f,i,w,comm [1,1,1,0]")
      ->delimiter(',')
      ->expected(1, 4);
  app->add_option("--format", options->format,
                  "text, svg, trace (chrome://tracing), json, or schedule: the file of a schedule, "
                  "to start your own from")
      ->check(CLI::IsMember({"text", "svg", "trace", "json", "schedule"}))
      ->capture_default_str();
  app->add_flag("--json", options->json, "same as --format json");
  app->add_option("--check", options->file, "checks and shows the schedule in a file of your own");
  app->add_option("--memory", options->memory,
                  "activations that a rank may hold, counted in whole stages: what the zero-bubble "
                  "schedules are planned with, and the limit of --compare");
  app->add_flag("--compare", options->compare,
                "a table of all schedules, and of the one in --check");
  app->callback([options, app] {
    check_flags(*options, [app](const char* flag) { return app->count(flag) > 0; });
    run(*options);
  });
}

}  // namespace trireme::tools
