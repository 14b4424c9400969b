#include "trireme/data/oslo.h"

#include <simdjson.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/base/io.h"
#include "trireme/base/log.h"
#include "trireme/data/options.h"

namespace trireme::data {
namespace {

using base::ConfigError;
using base::Field;

struct PreprocessorArguments {
  int64_t chunk_size = 1024;
  std::optional<int64_t> chunksize = {}, eod_token_id = {};
  std::string binarization_impl = "mmap";
  bool append_eod = true;
  template <class Self, class V>
  static void visit(Self& self, V&& v) {
    v("chunk_size", self.chunk_size, Field{"documents encoded at a time", 1});
    v("chunksize", self.chunksize, Field{"the same", 1});
    v("binarization_impl", self.binarization_impl,
      Field{.help = "", .choices = {"mmap", "lazy", "cached"}});
    v("append_eod", self.append_eod, Field{""});
    v("eod_token_id", self.eod_token_id, Field{"", 0, 2147483647});
  }
};

struct CausalArguments {
  int64_t max_seq_length = 0;
  std::string binarization_impl = "mmap", split_type = "train";
  double start_weight = 0, end_weight = 1;
  std::optional<int64_t> seed = {};
  template <class Self, class V>
  static void visit(Self& self, V&& v) {
    v("max_seq_length", self.max_seq_length, Field{"", 2});
    v("binarization_impl", self.binarization_impl,
      Field{.help = "", .choices = {"mmap", "lazy", "cached"}});
    v("split_type", self.split_type, Field{""});
    v("start_weight", self.start_weight, Field{"", 0, 1});
    v("end_weight", self.end_weight, Field{"", 0, 1});
    v("seed", self.seed, Field{"", 0, 4294967295.0});
  }
};

CausalArguments read_causal(const base::Json& arguments) {
  CausalArguments own;
  read_options(arguments, "DatasetForCausalLM", own);
  if (own.max_seq_length == 0)
    throw ConfigError("DatasetForCausalLM: give max_seq_length, 2 or more");
  return own;
}

/// The lines of a file, one after the other.
class Lines {
 public:
  explicit Lines(const std::string& path) : file_(std::make_shared<base::MappedFile>(path)) {}
  const std::string& path() const { return file_->path(); }
  int64_t number() const { return number_; }
  /// With its newline.
  std::optional<std::string_view> next() {
    const std::string_view all(reinterpret_cast<const char*>(file_->bytes().data()),
                               file_->bytes().size());
    if (at_ == all.size()) return std::nullopt;
    const size_t end = std::min(all.find('\n', at_), all.size() - 1) + 1;
    const std::string_view line = all.substr(at_, end - at_);
    at_ = end;
    ++number_;
    return line;
  }

 private:
  std::shared_ptr<const base::MappedFile> file_;
  size_t at_ = 0;
  int64_t number_ = 0;
};

}  // namespace

DatasetPreprocessor::DatasetPreprocessor(std::shared_ptr<const text::Tokenizer> tokenizer,
                                         const base::Json& arguments)
    : tokenizer_(std::move(tokenizer)) {
  PreprocessorArguments own;
  read_options(arguments, "DatasetPreprocessor", own);
  chunk_size_ = own.chunksize.value_or(own.chunk_size);
  mode_ = access_of(own.binarization_impl);
  if (!own.append_eod) return;
  end_ = own.eod_token_id ? static_cast<int32_t>(*own.eod_token_id) : tokenizer_->end_of_document();
  if (!end_)
    throw ConfigError(
        "DatasetPreprocessor: append_eod needs eod_token_id, since the tokenizer has no token that "
        "ends a document");
  if (*end_ >= tokenizer_->vocab_size())
    throw ConfigError(
        fmt::format("DatasetPreprocessor: eod_token_id {} is not in the vocabulary of {}", *end_,
                    tokenizer_->vocab_size()));
}

int64_t DatasetPreprocessor::preprocess(const Texts& texts, const std::string& save_file_name,
                                        int64_t log_interval) const {
  IndexedWriter writer(save_file_name, base::DType::i32, format_of(mode_));
  base::Logger log;
  int64_t seen = 0;
  for (bool more = true; more;) {
    std::vector<std::string> chunk;
    while (std::ssize(chunk) < chunk_size_) {
      auto text = texts();
      if (!(more = text.has_value())) break;
      chunk.push_back(*std::move(text));
    }
    const std::vector<std::string_view> views(chunk.begin(), chunk.end());
    for (std::vector<int32_t>& ids : tokenizer_->encode_batch(views)) {
      if (++seen % std::max<int64_t>(log_interval, 1) == 0)
        log.info("{}: {} documents, {} tokens", save_file_name, seen, writer.tokens());
      if (ids.empty()) continue;
      if (end_) ids.push_back(*end_);
      writer.add_sequence(std::span<const int32_t>(ids));
      writer.end_document();
    }
  }
  const int64_t documents = writer.documents();
  writer.finish();
  return documents;
}

DatasetPreprocessor::Texts DatasetPreprocessor::open_jsonl(const std::string& file,
                                                           const std::string& json_key) {
  auto lines = std::make_shared<Lines>(file.ends_with(".jsonl") ? file : file + ".jsonl");
  auto parser = std::make_shared<simdjson::dom::parser>();
  return [lines, parser, json_key]() -> std::optional<std::string> {
    while (auto line = lines->next()) {
      if (line->find_first_not_of(" \t\r\n") == line->npos) continue;
      std::string_view text;
      if (auto error = parser->parse(line->data(), line->size())[json_key].get(text)) {
        throw base::FormatError(
            fmt::format("{}:{}: {}; expected an object with a text under \"{}\"", lines->path(),
                        lines->number(), simdjson::error_message(error), json_key));
      }
      return std::string(text);
    }
    return std::nullopt;
  };
}

DatasetPreprocessor::Texts DatasetPreprocessor::open_lines(const std::string& file,
                                                           bool keep_newlines) {
  auto lines = std::make_shared<Lines>(file);
  return [lines, keep_newlines]() -> std::optional<std::string> {
    auto line = lines->next();
    if (!line) return std::nullopt;
    if (!keep_newlines && line->ends_with('\n')) line->remove_suffix(1);
    return std::string(*line);
  };
}

DatasetForCausalLM::DatasetForCausalLM(const std::string& data_name, const base::Json& arguments)
    : data_(data_name, access_of(read_causal(arguments).binarization_impl)) {
  const CausalArguments own = read_causal(arguments);
  split_type_ = own.split_type;
  max_seq_length_ = own.max_seq_length;
  seed_ = own.seed.value_or(42);
  const auto count = static_cast<double>(data_.sequences());
  const auto begin = static_cast<int64_t>(std::nearbyint(own.start_weight * count)),
             end = static_cast<int64_t>(std::nearbyint(own.end_weight * count));
  const std::vector<int32_t> lengths = megatron_lengths(data_);
  std::vector<int64_t> documents;
  int64_t tokens = 0;
  for (int64_t d = begin; d < end; ++d) {
    documents.push_back(d);
    tokens += lengths[d];
  }
  if (tokens < max_seq_length_) {
    throw ConfigError(
        fmt::format("DatasetForCausalLM {}: the split {} from {} to {} has {} documents of {} "
                    "tokens; a sample takes {}",
                    data_name, split_type_, own.start_weight, own.end_weight, documents.size(),
                    tokens, max_seq_length_));
  }
  order_ =
      megatron_order(lengths, documents,
                     {.seq_length = max_seq_length_ - 1, .seed = static_cast<uint32_t>(seed_)});
}

std::string DatasetForCausalLM::description() const {
  return fmt::format("{} ({}): {} samples of {}", data_.prefix(), split_type_, size(),
                     max_seq_length_);
}

Identity DatasetForCausalLM::identity() const {
  return {.seq_length = max_seq_length_,
          .sources = {{.path = data_.prefix(),
                       .documents = std::ssize(order_.documents),
                       .tokens = data_.tokens(),
                       .fingerprint = data_.fingerprint(),
                       .samples = fmt::format("OSLO's order, seed {}", seed_)}}};
}

std::vector<int64_t> DatasetForCausalLM::tokens(int64_t index) const {
  const int64_t cut = order_.order[index % size()];
  const auto from = order_.places[cut], to = order_.places[cut + 1];
  std::vector<int64_t> ids(max_seq_length_);
  int64_t* at = ids.data();
  for (int64_t d = from.document; d <= to.document; ++d) {
    const int64_t sequence = order_.documents[d], begin = d == from.document ? from.token : 0,
                  end = d == to.document ? to.token + 1 : data_.length(sequence);
    data_.read(data_.begin(sequence) + begin, end - begin, at);
    at += end - begin;
  }
  return ids;
}

std::string DatasetForCausalLM::origin(int64_t index) const {
  return fmt::format("sample {} of {}.bin", index, data_.prefix());
}

void DatasetForCausalLM::read(int64_t index, Row row) const {
  const std::vector<int64_t> ids = tokens(index);
  std::copy(ids.begin(), ids.end() - 1, row[0].ids);
  std::copy(ids.begin() + 1, ids.end(), row[1].ids);
}

namespace {

std::vector<double> weights_or_lengths(const std::vector<std::shared_ptr<const Dataset>>& datasets,
                                       const std::optional<std::vector<double>>& weights) {
  if (weights) return *weights;
  std::vector<double> lengths;
  for (const auto& dataset : datasets) lengths.push_back(static_cast<double>(dataset->size()));
  return lengths;
}

}  // namespace

DatasetBlender::DatasetBlender(std::vector<std::shared_ptr<const Dataset>> datasets,
                               const std::optional<std::vector<double>>& weights)
    : BlendDataset(datasets, weights_or_lengths(datasets, weights), BlendRule::megatron) {}

namespace {

std::vector<int64_t> all_indices(int64_t size) {
  std::vector<int64_t> indices(size);
  std::iota(indices.begin(), indices.end(), int64_t{0});
  return indices;
}

}  // namespace

InfiniteDataLoader::InfiniteDataLoader(std::shared_ptr<const Dataset> dataset,
                                       const DistributedOptions& options, int64_t batch_size,
                                       bool drop_last, EpochPosition start)
    : dataset_(std::move(dataset)),
      sampler_(all_indices(dataset_->size()), options),
      batch_size_(batch_size),
      position_(start) {
  if (batch_size_ < 1)
    throw ConfigError(
        fmt::format("InfiniteDataLoader: batch_size {}; expected 1 or more", batch_size_));
  batches_ =
      drop_last ? sampler_.size() / batch_size_ : (sampler_.size() + batch_size_ - 1) / batch_size_;
  if (batches_ == 0)
    throw ConfigError(fmt::format(
        "InfiniteDataLoader: a rank has {} samples and drop_last leaves out batches below {}",
        sampler_.size(), batch_size_));
  if (position_.epoch < 0 || position_.batch < 0 || position_.batch >= batches_)
    throw ConfigError(
        fmt::format("InfiniteDataLoader: position {} of epoch {}; an epoch has {} batches",
                    position_.batch, position_.epoch, batches_));
}

Batch InfiniteDataLoader::next() {
  if (indices_.empty()) {
    sampler_.set_epoch(position_.epoch);
    indices_ = sampler_.indices();
  }
  const int64_t begin = position_.batch * batch_size_,
                end = std::min(begin + batch_size_, sampler_.size());
  std::vector<int64_t> places(end - begin);
  std::iota(places.begin(), places.end(), int64_t{0});
  Batch batch =
      read_batch(*dataset_, std::span(indices_).subspan(begin, end - begin), std::move(places));
  if (++position_.batch == batches_) {
    position_ = {position_.epoch + 1, 0};
    indices_.clear();
  }
  return batch;
}

}  // namespace trireme::data
