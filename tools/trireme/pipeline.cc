// trireme pipeline: a schedule before anyone runs it.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "tools/trireme/subcommands.h"
#include "trireme/base/error.h"
#include "trireme/base/io.h"
#include "trireme/schedule/draw.h"
#include "trireme/schedule/generators.h"

namespace trireme::tools {

namespace {

using namespace schedule;

struct Options {
  std::string name = "1f1b", file, format = "text";
  Request request{.ranks = 4, .micro_batches = 8};
  std::vector<double> costs = {1, 1, 1, 0};
  bool compare = false, json = false;
};

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
}

Costs costs_of(const Options& options) {
  const std::vector<double>& c = options.costs;
  if (c.size() != 4 || std::ranges::any_of(c, [](double cost) { return !(cost >= 0); }))
    throw base::ConfigError("--costs: expected four numbers f,i,w,comm of at least 0");
  return {c[0], c[1], c[2], c[3]};
}

void show(const Schedule& schedule, const Options& options) {
  const Costs costs = costs_of(options);
  const Simulation simulation = simulate(schedule, costs);
  if (options.format == "json")
    print(to_json(schedule, costs, simulation).dump() + "\n");
  else if (options.format == "trace")
    print(chrome_trace(schedule, simulation).dump() + "\n");
  else if (options.format == "svg")
    print(draw_svg(schedule, simulation));
  else
    print(draw_text(schedule, simulation));
}

/// Messages that cross between ranks, both ways.
int64_t messages(const Schedule& schedule) {
  int64_t sent = 0;
  for (const auto& row : with_communication(schedule).program)
    sent += std::ranges::count_if(
        row, [](const Action& a) { return a.op == Op::SendF || a.op == Op::SendB; });
  return sent;
}

/// Every schedule side by side; those with one chunk a stage are shown with one.
void compare(const Options& options) {
  const Costs costs = costs_of(options);
  base::Json all = base::Json::array();
  std::string table =
      fmt::format("{:<12} {:>6} {:>10} {:>8} {:>11} {:>16} {:>9}\n", "schedule", "chunks",
                  "makespan", "bubble", "own bubble", "peak activations", "messages");
  for (std::string_view name : names()) {
    Request request = options.request;
    if (request.chunks_per_rank && !takes_chunks(name, *request.chunks_per_rank))
      request.chunks_per_rank.reset();
    const Schedule schedule = generate(name, request);
    const Simulation s = simulate(schedule, costs);
    all.push_back(to_json(schedule, costs, s));
    all.back().erase("program");
    all.back()["messages"] = messages(schedule);
    table += fmt::format("{:<12} {:>6} {:>10g} {:>6.1f} % {:>9.1f} % {:>16g} {:>9}\n", name,
                         schedule.chunks / schedule.ranks, s.makespan, 100 * s.bubble, 100 * s.bubble_own,
                         std::ranges::max(s.peak_activations), messages(schedule));
  }
  print(options.format == "json" ? all.dump() + "\n" : table);
}

void run(Options options) {
  if (options.json) options.format = "json";
  options.request.costs = costs_of(options);
  if (options.compare) return compare(options);
  const bool own = !options.file.empty();
  const Schedule schedule = own ? parse(base::read_file(options.file), options.file)
                                : generate(options.name, options.request);
  check(schedule);
  if (own && options.format == "text") print(options.file + ": a valid schedule\n");
  show(schedule, options);
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
  app->add_option("--chunks", options->request.chunks_per_rank, "chunks (virtual stages) a stage")
      ->capture_default_str();
  app->add_option("--costs", options->costs,
                  "time of a whole stage's forward, input gradient and weight gradient, and of one "
                  "message: f,i,w,comm")
      ->delimiter(',')
      ->expected(1, 4);
  app->add_option("--format", options->format, "text, svg, trace (chrome://tracing) or json")
      ->check(CLI::IsMember({"text", "svg", "trace", "json"}))
      ->capture_default_str();
  app->add_flag("--json", options->json, "same as --format json");
  app->add_option("--check", options->file, "checks and shows the schedule in a file of your own");
  app->add_flag("--compare", options->compare, "a table of all schedules");
  app->callback([options] { run(*options); });
}

}  // namespace trireme::tools
