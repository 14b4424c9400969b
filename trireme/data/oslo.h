#pragma once
// The data tools of OSLO under their own names: its arguments (both spellings where its text and
// its code differ), the samples and orders that it makes, without its limits: nothing is cached in
// files that go stale, splits may be of any size, what cannot be is refused.
//
//   DatasetPreprocessor preprocessor(tokenizer, {{"binarization_impl", "lazy"}});
//   preprocessor.preprocess(DatasetPreprocessor::open_jsonl("books", "text"), "out/books");
//   auto train = std::make_shared<DatasetForCausalLM>("out/books", base::Json{{"max_seq_length",
//   128}, {"end_weight", 0.9}}); InfiniteDataLoader loader(train, {.num_replicas = 2, .rank = 0},
//   8); while (true) step(loader.next());

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/json.h"
#include "trireme/data/blend.h"
#include "trireme/data/indexed.h"
#include "trireme/data/megatron_order.h"
#include "trireme/data/sampler.h"
#include "trireme/text/tokenizer.h"

namespace trireme::data {

class DatasetPreprocessor {
 public:
  /// Documents one after the other; nothing at the end.
  using Texts = std::function<std::optional<std::string>()>;

  /// Arguments: chunk_size (or chunksize) 1024, binarization_impl "mmap", append_eod true,
  /// eod_token_id null (the tokenizer's). ConfigError: an argument that is none, no end of
  /// document.
  explicit DatasetPreprocessor(std::shared_ptr<const text::Tokenizer> tokenizer,
                               const base::Json& arguments = base::Json::object());
  /// Writes SAVE_FILE_NAME.idx and .bin with ids of 32 bits; a document without a token is left
  /// out. Memory holds a chunk. Logs a line each `log_interval` documents. Returns the documents
  /// written.
  int64_t preprocess(const Texts& texts, const std::string& save_file_name,
                     int64_t log_interval = 1000) const;
  /// The field `json_key` of each line; FILE may lack its ending .jsonl. FormatError: file:line.
  static Texts open_jsonl(const std::string& file, const std::string& json_key);
  /// Each line of a text file, with its newline as OSLO keeps it, or without.
  static Texts open_lines(const std::string& file, bool keep_newlines = true);

 private:
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  int64_t chunk_size_ = 1024;
  Access mode_ = Access::mmap;
  std::optional<int32_t> end_;
};

/// Samples of max_seq_length tokens, each beginning with the last of the one before; fields
/// input_ids and labels of one token less, since labels are shifted here. One pass in a shuffled
/// order; sample `size()` + i is sample i again.
class DatasetForCausalLM : public Dataset {
 public:
  /// Arguments: max_seq_length, binarization_impl "mmap", split_type "train" (a name, for
  /// messages), start_weight 0.0, end_weight 1.0 (shares of the documents), seed null (42).
  /// ConfigError: an argument that is none, a split without a whole sample.
  DatasetForCausalLM(const std::string& data_name, const base::Json& arguments);
  int64_t size() const override { return order_.samples(); }
  std::string description() const override;
  std::vector<FieldSpec> fields() const override { return causal_fields(max_seq_length_ - 1); }
  std::string origin(int64_t index) const override;
  Identity identity() const override;
  void read(int64_t index, Row row) const override;
  /// What OSLO's item is: max_seq_length ids.
  std::vector<int64_t> tokens(int64_t index) const;
  const MegatronOrder& order() const { return order_; }

 private:
  std::string split_type_ = "train";
  int64_t max_seq_length_ = 0, seed_ = 42;
  IndexedDataset data_;
  MegatronOrder order_;
};

/// OSLO's blend: in Megatron-LM's order, by weight or, without weights, by length.
class DatasetBlender : public BlendDataset {
 public:
  explicit DatasetBlender(std::vector<std::shared_ptr<const Dataset>> datasets,
                          const std::optional<std::vector<double>>& weights = std::nullopt);
};

/// Where an InfiniteDataLoader stands.
struct EpochPosition {
  int64_t epoch = 0, batch = 0;
};

/// Batches of one rank's share of a dataset without end; each epoch is in an order of its own, and
/// the position can be taken up again.
class InfiniteDataLoader {
 public:
  /// A short last batch of an epoch is served, or left out where `drop_last`. ConfigError where
  /// that leaves none.
  InfiniteDataLoader(std::shared_ptr<const Dataset> dataset, const DistributedOptions& options,
                     int64_t batch_size, bool drop_last = false, EpochPosition start = {});
  Batch next();
  /// Where `next` goes on.
  EpochPosition position() const { return position_; }
  int64_t batches_per_epoch() const { return batches_; }

 private:
  std::shared_ptr<const Dataset> dataset_;
  DistributedProxySampler sampler_;
  int64_t batch_size_, batches_;
  EpochPosition position_;
  std::vector<int64_t> indices_;  // of the epoch
};

}  // namespace trireme::data
