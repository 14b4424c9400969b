#pragma once
// Dataset: samples in a fixed order that may be repeated for epochs without end. A sample is a row
// of named arrays of fixed shapes (batch.h). What a sample holds is a function of its index and the
// run's seed, never of ranks, so runs resume at any sample on any layout.
//
// A configuration names datasets by `type`; `dataset_types()` knows how to open each:
//
//   auto train = open_datasets({{.path = "out/web", .weight = 0.7}, {.path = "out/code", .weight =
//   0.3}},
//                              {.seq_length = 1024, .seed = 1, .vocab_size = 50257});

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "trireme/base/json.h"
#include "trireme/base/registry.h"
#include "trireme/data/batch.h"
#include "trireme/data/identity.h"

namespace trireme::data {

/// Where one field of a sample goes: `ids` or `reals`, by the field's dtype; FieldSpec::size()
/// numbers, zero before. Where it is not `wanted` what is written is thrown away, and need not be.
struct Slot {
  int64_t* ids = nullptr;
  float* reals = nullptr;
  bool wanted = true;
};
using Row = std::span<const Slot>;

class Dataset {
 public:
  virtual ~Dataset() = default;
  /// Samples of one epoch.
  virtual int64_t size() const = 0;
  virtual std::string description() const = 0;
  /// What a sample holds.
  virtual std::vector<FieldSpec> fields() const = 0;
  /// Writes sample `index` (of the endless sequence: epochs follow one another), a slot a field.
  /// Thread-safe.
  virtual void read(int64_t index, Row row) const = 0;
  /// Where sample `index` comes from, for messages: its number there, and the file.
  virtual std::string origin(int64_t index) const {
    return fmt::format("sample {} of {}", index, description());
  }
  /// Tells this data from others; see identity.h.
  virtual Identity identity() const = 0;
};

/// Samples `indices` as a batch whose `samples` are `places`, one each; made on `workers` threads.
/// Fields of the names `skip` are not read. An error of a sample keeps its kind and names the
/// sample and its origin.
Batch read_batch(const Dataset& dataset, std::span<const int64_t> indices,
                 std::vector<int64_t> places, int workers = 1,
                 const std::set<std::string>& skip = {});

/// The fields of causal language models: `input_ids` and `labels`, seq_length ids each.
std::vector<FieldSpec> causal_fields(int64_t seq_length);

/// What a run tells each of its datasets.
struct SampleOptions {
  int64_t seq_length = 0;
  uint64_t seed = 0;  // of this source
  bool shuffle = true;
  int64_t vocab_size = 0;      // ids must be below it; 0: any id is taken
  std::string tokenizer = {};  // folder or file; empty: none
  // The configuration's own, for orders that others fixed:
  uint64_t run_seed = 0;
  int64_t run_samples = 0;  // that the run will take; 0: not known, or as many as there are
};

struct Source {
  std::string path;
  double weight = 1.0;
  std::string type = "tokens";
  base::Json options = base::Json::object();
};

/// Opens one source of a type; `options` are its own, `run` the run's.
using OpenDataset = std::function<std::shared_ptr<const Dataset>(
    const std::string& path, const base::Json& options, const SampleOptions& run)>;
/// All types by the name that `type` in data.train and data.valid gives them.
base::Registry<OpenDataset>& dataset_types();

/// How several sources are mixed: `exact` keeps every source within one sample of its share,
/// `megatron` draws as Megatron-LM does.
enum class BlendRule { exact, megatron };
BlendRule blend_rule_of(const std::string& name);

/// The dataset of a configuration's list: one source alone, or the blend of several.
std::shared_ptr<const Dataset> open_datasets(const std::vector<Source>& sources,
                                             const SampleOptions& options,
                                             BlendRule rule = BlendRule::exact);

}  // namespace trireme::data
