#pragma once
// Samples for causal language models. The documents of an indexed dataset are laid end to end and
// cut into windows of seq_length + 1 tokens that advance by seq_length: `input_ids` are the first
// seq_length tokens, `labels` the last, so each token but the first is a label once. With T tokens
// an epoch has (T - 1) / seq_length windows; the (T - 1) % seq_length last labels of an epoch's
// order are left out.
//
// Order: each epoch shuffles the documents and the windows by (seed, epoch), so other documents end
// up in the tail each time. Without `shuffle` both keep their order and every epoch is the same
// (validation). Nothing depends on ranks. `order: megatron` takes Megatron-LM's order instead.
//
//   CausalDataset train(std::make_shared<IndexedDataset>("out/web"), {.seq_length = 1024, .seed =
//   1});

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/fields.h"
#include "trireme/data/dataset.h"
#include "trireme/data/indexed.h"
#include "trireme/data/megatron_order.h"

namespace trireme::data {

/// The options of a source of type `tokens`.
struct CausalOptions {
  std::string order = "random";
  int64_t samples = 0;
  std::optional<int64_t> seed = {};
  std::string access = "mmap";
  std::string split = "", part = "train";
  bool reset_position_ids = false, reset_attention_mask = false, eod_mask_loss = false;
  std::optional<int64_t> eod = {};

  template <class Self, class V>
  static void visit(Self& self, V&& v) {
    using base::Field;
    v("order", self.order,
      Field{.help = "random: documents and windows shuffled each epoch; sequential; megatron: as "
                    "Megatron-LM's GPTDataset",
            .choices = {"random", "sequential", "megatron"}});
    v("samples", self.samples,
      Field{"of the whole run, for order megatron; 0: as the run's length says, else one epoch",
            0});
    v("seed", self.seed, Field{"of order megatron; null: train.seed", 0, 4294967295.0});
    v("access", self.access,
      Field{.help = "the file is mapped, read at each sample, or held in memory",
            .choices = {"mmap", "lazy", "cached"}});
    v("split", self.split, Field{"shares of the documents, such as 949,50,1; empty: all of them"});
    v("part", self.part, Field{.help = "of the split", .choices = {"train", "valid", "test"}});
    v("reset_position_ids", self.reset_position_ids,
      Field{"field position_ids: counts from 0 after each end of document"});
    v("reset_attention_mask", self.reset_attention_mask,
      Field{"field segment_ids: the document within the sample; attention stays within one"});
    v("eod_mask_loss", self.eod_mask_loss,
      Field{"no label after an end of document: what begins a document cannot be guessed"});
    v("eod", self.eod, Field{"id that ends a document; null: the tokenizer's", 0});
  }
};

class CausalDataset : public Dataset {
 public:
  /// ConfigError when the dataset is too short for one window, or when a look at the data shows an
  /// id outside the vocabulary: small datasets are looked through here, large ones as they are
  /// read.
  CausalDataset(std::shared_ptr<const IndexedDataset> tokens, const SampleOptions& run,
                const CausalOptions& options = {});
  ~CausalDataset() override;

  int64_t size() const override { return windows_; }
  std::string description() const override;
  std::vector<FieldSpec> fields() const override;
  std::string origin(int64_t index) const override;
  Identity identity() const override;
  /// ConfigError past the last sample of order megatron.
  void read(int64_t index, Row row) const override;

 private:
  struct Epoch;
  void take_part();
  void take_megatron_order();
  std::shared_ptr<const Epoch> epoch(int64_t number) const;
  void copy(const Epoch& order, int64_t begin, int64_t count, int64_t* ids) const;
  void copy_tokens(int64_t begin, int64_t count, int64_t* ids) const;
  void copy_megatron(int64_t index, int64_t* ids) const;

  std::shared_ptr<const IndexedDataset> tokens_;
  SampleOptions run_;
  CausalOptions options_;
  int64_t first_document_ = 0, end_document_ = 0;  // that take part
  int64_t windows_ = 0;
  std::optional<MegatronOrder> megatron_;
  mutable std::mutex mutex_;  // guards current_
  mutable std::shared_ptr<const Epoch> current_;
};

/// Opens a source of type `tokens`.
std::shared_ptr<const Dataset> open_causal(const std::string& path, const base::Json& options,
                                           const SampleOptions& run);

/// Reads all ids. ConfigError with the place of the first that is not in [0, vocab_size).
void check_vocabulary(const IndexedDataset& tokens, int64_t vocab_size);

}  // namespace trireme::data
