// trireme inspect: where every parameter of a run lies, without memory or ranks.

#include <fmt/ranges.h>

#include <cstdio>
#include <optional>

#include "tools/trireme/config_options.h"
#include "tools/trireme/subcommands.h"
#include "trireme/base/error.h"
#include "trireme/layout/slices.h"
#include "trireme/models/registry.h"
#include "trireme/train/assembly.h"

namespace trireme::tools {

namespace {

using layout::Axis;

struct Options {
  ConfigOptions config;
  std::optional<int> ranks, rank;
  bool json = false;
};

std::string text_of(const layout::Slice& slice) {
  std::string text;
  for (const auto& ranges : slice.dims) {
    text += text.empty() ? "[" : ", ";
    for (size_t i = 0; i < ranges.size(); ++i)
      text += fmt::format("{}{}:{}", i > 0 ? "+" : "", ranges[i].begin, ranges[i].end);
  }
  return text.empty() ? "scalar" : text + "]";
}

base::Json json_of(const layout::Slice& slice) {
  base::Json dims = base::Json::array();
  for (const auto& ranges : slice.dims) {
    base::Json& dim = dims.emplace_back(base::Json::array());
    for (const layout::Range& range : ranges)
      dim.push_back(base::Json::array({range.begin, range.end}));
  }
  return dims;
}

/// Why a parameter lies where it does: the policy's pattern that its module matches, and what holds it besides.
std::string reason_of(const layout::ParamSpec& spec, const nn::Policy& policy) {
  const size_t dot = spec.name.rfind('.');
  const std::string module = dot == spec.name.npos ? spec.name : spec.name.substr(0, dot);
  const nn::Rule rule = nn::find_rule(policy, module);
  const bool split = spec.layout.tp.is_split();
  std::string reason = split ? "no pattern: split by its layer" : "no pattern: whole on every rank";
  if (rule.style != nn::Style::replicate) {
    const char* style = rule.style == nn::Style::column ? "column" : rule.style == nn::Style::row ? "row" : "vocab";
    reason = fmt::format("{}: {}{}", style, rule.pattern, split ? "" : ", whole on every rank");
  }
  if (spec.layout.stages.size() > 1) reason += "; tied over stages";
  if (spec.layout.data_rank) reason += "; an expert of one data rank";
  return reason;
}

void run(const Options& options) {
  const config::RunConfig given = options.config.load();
  const config::Dist& dist = given.train.dist;
  const int ranks = options.ranks.value_or(dist.data_parallel_size.value_or(1) *
                                           dist.tensor_parallel_size * dist.pipeline_parallel_size);
  const config::RunConfig config = config::resolved(given, ranks);
  const config::BatchPlan plan =
      config::resolve_batch(config.train, *config.train.dist.data_parallel_size);
  const train::Placement placement = train::placement_of(config, ranks, plan.micro_batches);
  const layout::Mesh& mesh = placement.mesh;
  const base::Json tree = train::model_tree(config.model);
  const layout::ModelDescription model = train::describe(tree, placement, config.data.seq_length);
  const nn::Policy policy = models::make_model(tree, mesh.size(Axis::tp)).policy;
  const std::string shape = fmt::format("pipeline {} x data {} x tensor {}", mesh.size(Axis::pp),
                                        mesh.size(Axis::dp), mesh.size(Axis::tp));
  if (options.rank && (*options.rank < 0 || *options.rank >= mesh.size()))
    throw base::ConfigError(fmt::format("--rank {}: the layout {} has ranks 0 to {}", *options.rank,
                                        shape, mesh.size() - 1));

  base::Json parameters = base::Json::array();
  std::string table = fmt::format("{:<40} {:<14} {:<7} {:<11} {:<11} {:<20} {}\n", "parameter", "shape",
                                  "stages", "dp", "tp", "slice", "why");
  int64_t elements = 0;
  for (const layout::ParamSpec& spec : model.parameters) {
    // Without a rank, as the first one that holds the parameter has it.
    layout::Coord at{.pp = spec.layout.stages.front(), .dp = spec.layout.data_rank.value_or(0)};
    if (options.rank) at = mesh.coord(*options.rank);
    if (!layout::holds(spec, at)) continue;
    const layout::Slice slice = layout::local_slice(spec, mesh, at);
    elements += slice.count();
    const std::string dp = layout::data_place(spec.layout),
                      tp = layout::to_string(spec.layout.tp), reason = reason_of(spec, policy);
    parameters.push_back({{"name", spec.name},
                          {"shape", spec.shape},
                          {"stages", spec.layout.stages},
                          {"dp", dp},
                          {"tp", tp},
                          {"slice", json_of(slice)},
                          {"reason", reason}});
    table += fmt::format(
        "{:<40} {:<14} {:<7} {:<11} {:<11} {:<20} {}\n", spec.name, fmt::format("{}", spec.shape),
        fmt::format("{}", fmt::join(spec.layout.stages, ",")), dp, tp, text_of(slice), reason);
  }
  if (options.json) {
    const base::Json document = {{"parameters", parameters},
                                 {"layers_per_stage", model.layers_per_stage}};
    std::printf("%s\n", document.dump().c_str());
  } else {
    std::printf("%s%s; layers per stage %s; %zu parameters, %ld elements%s\n", table.c_str(),
                shape.c_str(), fmt::format("{}", model.layers_per_stage).c_str(), parameters.size(),
                static_cast<long>(elements),
                options.rank ? fmt::format(" on rank {}", *options.rank).c_str() : "");
  }
}

}  // namespace

void add_inspect(CLI::App& program) {
  auto options = std::make_shared<Options>();
  CLI::App* app = program.add_subcommand(
      "inspect", "every parameter of a run: shape, placement, local slice, stage, and why");
  options->config.add_to(*app);
  app->add_option("--ranks", options->ranks,
                  "ranks of the job (default: as many as the configured axes need)");
  app->add_option("--rank", options->rank, "only what this rank holds");
  app->add_flag("--json", options->json, "one JSON document");
  app->callback([options] { run(*options); });
}

}  // namespace trireme::tools
