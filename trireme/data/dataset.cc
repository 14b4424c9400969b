#include "trireme/data/dataset.h"

#include <cmath>
#include <exception>
#include <new>

#include "trireme/base/error.h"
#include "trireme/base/philox.h"
#include "trireme/base/threads.h"
#include "trireme/data/blend.h"
#include "trireme/data/causal.h"
#include "trireme/data/dataset_kinds.h"

namespace trireme::data {

std::vector<FieldSpec> causal_fields(int64_t seq_length) {
  return {{"input_ids", {seq_length}}, {"labels", {seq_length}}};
}

namespace {

/// Throws `error` with `context` before its message where it is an E.
template <class E>
void rethrow_as(const base::Error& error, const std::string& context) {
  if (dynamic_cast<const E*>(&error)) throw E(context + error.what());
}

/// Within a catch block: throws what is being handled again, of the same kind, `context` before its
/// message; what is no Error becomes an InternalError.
[[noreturn]] void rethrow_within(const std::string& context) {
  try {
    throw;
  } catch (const base::Error& error) {
    rethrow_as<base::ConfigError>(error, context);
    rethrow_as<base::FormatError>(error, context);
    rethrow_as<base::CommError>(error, context);
    rethrow_as<base::IoError>(error, context);
    throw base::InternalError(context + error.what());
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    throw base::InternalError(context + error.what());
  }
}

/// The origin of a sample that could not be read; what is wrong may keep it from being told.
std::string origin_of(const Dataset& dataset, int64_t index) {
  try {
    return dataset.origin(index);
  } catch (const std::exception&) {
    return dataset.description();
  }
}

}  // namespace

Batch read_batch(const Dataset& dataset, std::span<const int64_t> indices,
                 std::vector<int64_t> places, int workers, const std::set<std::string>& skip) {
  const auto rows = std::ssize(indices);
  const std::vector<FieldSpec> specs = dataset.fields();
  Batch batch{{}, std::move(places)};
  for (const FieldSpec& spec : specs) {
    Field& field =
        batch.fields.emplace_back(Field{.name = spec.name, .shape = {rows}, .dtype = spec.dtype, .read = !skip.contains(spec.name)});
    field.shape.insert(field.shape.end(), spec.shape.begin(), spec.shape.end());
    if (!field.read) continue;
    const auto numbers = static_cast<size_t>(rows * spec.size());
    spec.dtype == base::DType::f32 ? field.reals.resize(numbers) : field.values.resize(numbers);
  }
  const auto read_row = [&](int64_t i) {
    std::vector<Slot> row(specs.size());
    std::vector<std::vector<float>> reals;  // thrown away, as are the ids
    std::vector<std::vector<int64_t>> ids;
    for (size_t f = 0; f < specs.size(); ++f) {
      const int64_t at = i * specs[f].size();
      Field& field = batch.fields[f];
      const bool real = field.dtype == base::DType::f32;
      const auto size = static_cast<size_t>(specs[f].size());
      if (!field.read) {
        row[f] = real ? Slot{.reals = reals.emplace_back(size).data(), .wanted = false}
                      : Slot{.ids = ids.emplace_back(size).data(), .wanted = false};
        continue;
      }
      row[f] = real ? Slot{.reals = field.reals.data() + at}
                                               : Slot{.ids = field.values.data() + at};
    }
    dataset.read(indices[i], row);
  };
  base::parallel_for(rows, workers, [&](int64_t i) {
    try {
      read_row(i);
    } catch (...) {
      rethrow_within(
          fmt::format("sample {} ({}): ", indices[i], origin_of(dataset, indices[i])));
    }
  });
  return batch;
}

namespace {

/// A blend as a source of another one: options `sources`, a list like data.train, and `blend`.
std::shared_ptr<const Dataset> open_blend(const std::string&, const base::Json& options,
                                          const SampleOptions& run) {
  std::vector<Source> sources;
  BlendRule rule = BlendRule::exact;
  try {
    for (const auto& [key, value] : options.items()) {
      if (key != "sources" && key != "blend")
        throw base::ConfigError(
            fmt::format("options of blend: unknown option '{}'; known are sources, blend", key));
    }
    rule = blend_rule_of(options.value("blend", "exact"));
    for (const base::Json& source : options.at("sources")) {
      for (const auto& [key, value] : source.items()) {
        if (key != "path" && key != "weight" && key != "type" && key != "options")
          throw base::ConfigError(fmt::format(
              "options of blend.sources: unknown key '{}'; known are path, weight, type, options",
              key));
      }
      sources.push_back({.path = source.value("path", ""),
                         .weight = source.value("weight", 1.0),
                         .type = source.value("type", "tokens"),
                         .options = source.value("options", base::Json::object())});
    }
  } catch (const nlohmann::json::exception& e) {
    throw base::ConfigError(fmt::format(
        "options of blend: {}; expected sources: [{{path, weight, type, options}}, ...]",
        base::message_of(e)));
  }
  return open_datasets(sources, run, rule);
}

}  // namespace

base::Registry<OpenDataset>& dataset_types() {
  static base::Registry<OpenDataset> all("data type",
                                         {{"tokens", open_causal},
                                          {"blend", open_blend},
                                          {"bert", in_order(open_bert)},
                                          {"mlm", in_order(open_mlm)},
                                          {"t5", in_order(open_t5)},
                                          {"prefix_lm", in_order(open_prefix_lm)},
                                          {"sft", in_order(open_finetune)},
                                          {"classification", in_order(open_classification)},
                                          {"squad", in_order(open_question_answering)},
                                          {"images", in_order(open_images)},
                                          {"synthetic", in_order(open_synthetic)}});
  return all;
}

namespace {

/// Samples that a source of this share gives to a run, with half a percent more as Megatron-LM asks
/// for; 0 where the run's number is not known or the share is none.
int64_t share_of(int64_t samples, double share, size_t sources) {
  if (sources == 1 || samples == 0 || !(share > 0 && share <= 1)) return sources == 1 ? samples : 0;
  return static_cast<int64_t>(
      std::ceil(std::ceil(static_cast<double>(samples) * share) * (1 + 0.005)));
}

}  // namespace

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
  double sum = 0;
  for (const Source& source : sources) sum += source.weight;
  std::vector<std::shared_ptr<const Dataset>> datasets;
  std::vector<double> weights;
  for (const Source& source : sources) {
    SampleOptions own = options;
    own.run_samples = share_of(options.run_samples, source.weight / sum, sources.size());
    own.run_seed = options.seed;
    own.seed = base::stream_key(options.seed, "data.source", datasets.size());
    datasets.push_back(dataset_types().get(source.type)(source.path, source.options, own));
    weights.push_back(source.weight);
  }
  auto blend = std::make_shared<BlendDataset>(datasets, weights,
                                              rule);  // also checks the weight of a single source
  return datasets.size() == 1 ? datasets.front() : blend;
}

}  // namespace trireme::data
