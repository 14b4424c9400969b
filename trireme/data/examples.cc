#include "trireme/data/examples.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/data/sampler.h"

namespace trireme::data {
namespace {

class OrderedDataset : public Dataset {
 public:
  OrderedDataset(std::shared_ptr<const Examples> examples, std::string path, OrderOptions order,
                 const SampleOptions& run)
      : examples_(std::move(examples)),
        path_(std::move(path)),
        name_(order.name),
        order_(make_order(order, examples_->size(), run.seed)),
        key_seed_(run.seed),
        seq_length_(run.seq_length) {}
  int64_t size() const override { return examples_->size(); }
  std::string description() const override { return examples_->description(); }
  std::vector<FieldSpec> fields() const override { return examples_->fields(); }
  std::string origin(int64_t index) const override {
    return fmt::format("example {} of {}", order_->at(index),
                       path_.empty() ? description() : path_);
  }
  Identity identity() const override {
    SourceIdentity source = examples_->identity();
    if (name_ != "random" && name_ != "sequential") source.samples += ", order " + name_;
    return {.seq_length = seq_length_, .sources = {std::move(source)}};
  }
  void read(int64_t index, Row row) const override {
    Draws draws(base::stream_key(key_seed_, "data.sample", static_cast<uint64_t>(index)));
    examples_->read(order_->at(index), draws, row);
  }

 private:
  std::shared_ptr<const Examples> examples_;
  std::string path_;
  std::string name_;
  std::unique_ptr<const Order> order_;
  uint64_t key_seed_;
  int64_t seq_length_;
};

}  // namespace

OpenDataset in_order(OpenExamples open) {
  return [open](const std::string& path, const base::Json& options, const SampleOptions& run) {
    base::Json own = options.is_null() ? base::Json::object() : options;
    if (!own.is_object())
      throw base::ConfigError(
          fmt::format("options of {}: expected a map of keys, given {}", path, own.dump()));
    OrderOptions order{.name = run.shuffle ? "random" : "sequential"};
    try {
      if (own.contains("order")) order.name = own["order"].get<std::string>();
      if (own.contains("weights")) order.weights = own["weights"].get<std::vector<double>>();
    } catch (const nlohmann::json::exception& e) {
      throw base::ConfigError(
          fmt::format("options order and weights of {}: {}", path, base::message_of(e)));
    }
    own.erase("order");
    own.erase("weights");
    return std::make_shared<OrderedDataset>(open(path, own, run), path, std::move(order), run);
  };
}

TextTools::TextTools(const SampleOptions& run, std::string kind, bool needed)
    : kind_(std::move(kind)), vocab_size_(run.vocab_size) {
  if (!run.tokenizer.empty()) tokenizer_ = text::Tokenizer::load(run.tokenizer);
  if (needed && !tokenizer_)
    throw base::ConfigError(
        fmt::format("a dataset of kind {} needs `tokenizer`: a folder or file", kind_));
}

int64_t TextTools::id(const char* option, const std::optional<int64_t>& given,
                      std::initializer_list<std::string_view> names) const {
  if (given) {
    if (vocab_size() > 0 && *given >= vocab_size())
      throw base::ConfigError(fmt::format("options of {}.{}: {} is not in the vocabulary of {}",
                                          kind_, option, *given, vocab_size()));
    return *given;
  }
  for (std::string_view name : names) {
    if (auto found = tokenizer_ ? tokenizer_->find(name) : std::nullopt) return *found;
  }
  throw base::ConfigError(fmt::format(
      "options of {}.{}: no id is given and {} none of {}; give the id", kind_, option,
      tokenizer_ ? "the tokenizer has" : "without `tokenizer` there is", fmt::join(names, ", ")));
}

int64_t TextTools::vocab_size() const {
  return tokenizer_ ? tokenizer_->vocab_size() : vocab_size_;
}

void put(const Slot& slot, const std::vector<int64_t>& ids, int64_t length, int64_t pad) {
  base::check(std::ssize(ids) <= length, "{} ids in a field of {}", ids.size(), length);
  std::fill(std::copy(ids.begin(), ids.end(), slot.ids), slot.ids + length, pad);
}

void put_ones(const Slot& slot, int64_t count) {
  std::fill_n(slot.ids, count, int64_t{1});
}

}  // namespace trireme::data
