#include "trireme/data/dataset.h"

#include "trireme/base/error.h"
#include "trireme/base/philox.h"
#include "trireme/data/blend.h"
#include "trireme/data/causal.h"

namespace trireme::data {

std::vector<FieldSpec> causal_fields(int64_t seq_length) {
  return {{"input_ids", {seq_length}}, {"labels", {seq_length}}};
}

base::Registry<OpenDataset>& dataset_types() {
  static base::Registry<OpenDataset> all("data type", {{"tokens", open_causal}});
  return all;
}

BlendRule blend_rule_of(const std::string& name) {
  if (name == "exact") return BlendRule::exact;
  if (name == "megatron") return BlendRule::megatron;
  throw base::ConfigError(fmt::format("blend rule '{}'; expected exact or megatron", name));
}

std::shared_ptr<const Dataset> open_datasets(const std::vector<Source>& sources,
                                             const SampleOptions& options, BlendRule rule) {
  if (sources.empty()) {
    throw base::ConfigError(
        "no dataset given; expected a list of {path, weight}, for example data.train");
  }
  std::vector<std::shared_ptr<const Dataset>> datasets;
  std::vector<double> weights;
  for (const Source& source : sources) {
    SampleOptions own = options;
    own.run_seed = options.seed;
    own.seed = base::stream_key(options.seed, "data.source", datasets.size());
    datasets.push_back(dataset_types().get(source.type)(source.path, source.options, own));
    weights.push_back(source.weight);
  }
  auto blend = std::make_shared<BlendDataset>(
      datasets, weights, rule);  // also checks the weight of a single source
  return datasets.size() == 1 ? datasets.front() : blend;
}

}  // namespace trireme::data
