#pragma once
// Examples: a finite set of things to learn from, each a row of named arrays. `in_order` makes a
// Dataset of them: an order (sampler.h) says which example comes at each place of the endless
// sequence, and all that is random in a sample (masks, crops, ...) comes from `draws`, which are
// keyed by (seed, place). So samples do not depend on ranks, threads or on what was read before.
//
// A kind of samples is one function that opens Examples from a path and its options:
//
//   dataset_types().add("mine", in_order(open_mine));

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/data/dataset.h"
#include "trireme/data/draws.h"
#include "trireme/text/tokenizer.h"

namespace trireme::data {

class Examples {
 public:
  virtual ~Examples() = default;
  virtual int64_t size() const = 0;
  virtual std::string description() const = 0;
  virtual std::vector<FieldSpec> fields() const = 0;
  /// Path, counts and a hash of the content.
  virtual SourceIdentity identity() const = 0;
  /// Writes example `example`, a slot a field. Thread-safe.
  virtual void read(int64_t example, Draws& draws, Row row) const = 0;
};

using OpenExamples = std::shared_ptr<const Examples> (*)(const std::string& path,
                                                         const base::Json& options,
                                                         const SampleOptions& run);

/// Opens Examples as a Dataset. Two options more than those of the examples: `order` (random, and
/// sequential where the run does not shuffle; sampler.h has the others) and `weights`, a list with
/// one for each example.
OpenDataset in_order(OpenExamples open);

/// The run's tokenizer and the ids of its special tokens.
class TextTools {
 public:
  /// `kind`: the dataset, for messages. Where `needed`, ConfigError without a tokenizer.
  TextTools(const SampleOptions& run, std::string kind, bool needed);
  const text::Tokenizer* tokenizer() const { return tokenizer_.get(); }
  /// The id given, else that of the first of the names that the tokenizer knows; ConfigError naming
  /// `option` where there is none.
  int64_t id(const char* option, const std::optional<int64_t>& given,
             std::initializer_list<std::string_view> names) const;
  /// Ids are below it: the tokenizer's, else the model's.
  int64_t vocab_size() const;

 private:
  std::string kind_;
  int64_t vocab_size_;
  std::shared_ptr<const text::Tokenizer> tokenizer_;
};

/// Fills a slot from ids, and the rest of `length` with `pad`.
void put(const Slot& slot, const std::vector<int64_t>& ids, int64_t length, int64_t pad);
/// Ones for `count` places; the rest stays zero.
void put_ones(const Slot& slot, int64_t count);

}  // namespace trireme::data
