#pragma once
// Samples for causal language models. The documents of an indexed dataset are laid end to end and
// cut into windows of seq_length + 1 tokens that advance by seq_length: `input_ids` are the first
// seq_length tokens, `labels` the last, so each token but the first is a label once. With T tokens
// an epoch has (T - 1) / seq_length windows; the (T - 1) % seq_length last labels of an epoch's
// order are left out.
//
// Order: each epoch shuffles the documents and the windows by (seed, epoch), so other documents end
// up in the tail each time. Without `shuffle` both keep their order and every epoch is the same
// (validation). Nothing depends on ranks.
//
//   auto train = open_datasets({{"out/web", 0.7}, {"out/code", 0.3}},
//                              {.seq_length = 1024, .seed = 1, .vocab_size = 50257});

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "trireme/base/json.h"
#include "trireme/base/registry.h"
#include "trireme/data/indexed.h"
#include "trireme/data/loader.h"

namespace trireme::data {

struct CausalOptions {
  int64_t seq_length = 0;
  uint64_t seed = 0;
  bool shuffle = true;
  int64_t vocab_size = 0;  // ids must be below it; 0: any id is taken
};

class CausalDataset : public Dataset {
 public:
  /// ConfigError when the dataset is too short for one window, or when a look at the data shows an
  /// id outside the vocabulary: small datasets are looked through here, large ones as they are
  /// read.
  CausalDataset(std::shared_ptr<const IndexedDataset> tokens, const CausalOptions& options);
  ~CausalDataset() override;

  int64_t size() const override { return windows_; }
  int64_t seq_length() const override { return options_.seq_length; }
  std::string description() const override;
  Identity identity() const override;
  /// Thread-safe.
  void read(int64_t index, int64_t* input_ids, int64_t* labels) const override;

 private:
  struct Epoch;
  std::shared_ptr<const Epoch> epoch(int64_t number) const;
  void copy(const Epoch& order, int64_t begin, int64_t count, int64_t* ids) const;

  std::shared_ptr<const IndexedDataset> tokens_;
  CausalOptions options_;
  int64_t windows_;
  mutable std::mutex mutex_;  // guards current_
  mutable std::shared_ptr<const Epoch> current_;
};

/// Draws from several datasets by weight. After any number n of samples each dataset has given less
/// than one sample more or less than weight * n: every sample of a dataset has the window of places
/// that keeps this so, and of the open windows the one that closes first is served (Tijdeman, "The
/// chairman assignment problem", 1980; Baruah et al., "Proportionate progress", 1996). Picking the
/// largest lack, as Megatron-LM does, drifts by up to two.
class BlendDataset : public Dataset {
 public:
  /// Weights are normalised. ConfigError: none, one that is zero, negative or no number, differing
  /// seq_length.
  BlendDataset(std::vector<std::shared_ptr<const Dataset>> datasets, std::vector<double> weights);

  /// The sizes of all datasets together.
  int64_t size() const override;
  int64_t seq_length() const override { return datasets_.front()->seq_length(); }
  std::string description() const override;
  Identity identity() const override;
  /// Sample `index` of the blend: the next one of the dataset that is due. Quick in rising order;
  /// going back starts over from the first. Thread-safe.
  void read(int64_t index, int64_t* input_ids, int64_t* labels) const override;

  struct Place {
    int dataset;
    int64_t sample;
  };
  /// Where sample `index` comes from.
  Place place(int64_t index) const;

 private:
  std::vector<std::shared_ptr<const Dataset>> datasets_;
  std::vector<double> weights_;
  mutable std::mutex mutex_;  // guards the two below
  mutable std::vector<int64_t> used_;
  mutable int64_t next_ = 0;
};

/// Reads all ids. ConfigError with the place of the first that is not in [0, vocab_size).
void check_vocabulary(const IndexedDataset& tokens, int64_t vocab_size);

struct Source {
  std::string path;
  double weight = 1.0;
  std::string type = "tokens";
  base::Json options = base::Json::object();
};

/// Opens one source of a kind; `options` are its own, `causal` the run's.
using OpenDataset = std::function<std::shared_ptr<const Dataset>(
    const std::string& path, const base::Json& options, const CausalOptions& causal)>;
/// All kinds by the name that `type` in data.train and data.valid gives them.
base::Registry<OpenDataset>& dataset_types();

/// The dataset of a configuration's list: one source alone, or the blend of several.
std::shared_ptr<const Dataset> open_datasets(const std::vector<Source>& sources,
                                             const CausalOptions& options);

}  // namespace trireme::data
