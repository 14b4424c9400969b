// Samples of tasks on texts: fine-tuning on prompts and completions, classes and numbers of texts
// and pairs.

#include <algorithm>
#include <charconv>
#include <set>

#include "trireme/base/error.h"
#include "trireme/data/dataset_kinds.h"
#include "trireme/data/options.h"
#include "trireme/data/table.h"

namespace trireme::data {
namespace {

using base::ConfigError;
using base::FormatError;

struct FinetuneOptions {
  std::string prompt = "prompt", completion = "completion", too_long = "error";
  bool append_eod = true, prompt_loss = false, bpe_dropout = false;
  std::optional<int64_t> eod = {}, pad = {};

  template <class Self, class V>
  static void visit(Self& self, V&& v) {
    using base::Field;
    v("prompt", self.prompt, Field{"key of the prompt"});
    v("completion", self.completion, Field{"key of what is to follow"});
    v("too_long", self.too_long,
      Field{.help = "a sample of more than seq_length: refuse it, or cut off its end",
            .choices = {"error", "truncate"}});
    v("append_eod", self.append_eod, Field{"an end of document behind the completion"});
    v("prompt_loss", self.prompt_loss, Field{"the prompt's labels count too"});
    v("bpe_dropout", self.bpe_dropout, Field{"leave merges out as the tokenizer's dropout says"});
    v("eod", self.eod, Field{"ids of special tokens; null: the tokenizer's", 0});
    v("pad", self.pad, Field{"null: the tokenizer's, or eod", 0});
  }
};

class FinetuneExamples : public Examples {
 public:
  FinetuneExamples(const std::string& path, const FinetuneOptions& options, TextTools tools,
                   int64_t length, std::string settings)
      : table_(path),
        options_(options),
        tools_(std::move(tools)),
        length_(length),
        settings_(std::move(settings)) {
    const auto end = tools_.tokenizer()->end_of_document();
    if (options_.append_eod || !options_.pad)
      eod_ = options_.eod ? *options_.eod
             : end        ? *end
                          : tools_.id("eod", {}, {"</s>", "<|endoftext|>"});
    const auto pad = tools_.tokenizer()->find("<pad>");
    pad_ = options_.pad ? *options_.pad : pad ? *pad : eod_;
  }
  int64_t size() const override { return table_.rows(); }
  std::string description() const override {
    return fmt::format("{}: {} prompts", table_.path(), size());
  }
  std::vector<FieldSpec> fields() const override {
    return {{"input_ids", {length_}}, {"attention_mask", {length_}}, {"labels", {length_}}};
  }
  SourceIdentity identity() const override {
    return {.path = table_.path(),
            .documents = size(),
            .fingerprint = table_.fingerprint(),
            .samples = settings_};
  }
  void read(int64_t example, Draws& draws, Row row) const override {
    const auto cells = table_.cells(example, {options_.prompt, options_.completion});
    const text::Tokenizer& tokenizer = *tools_.tokenizer();
    const auto encode = [&](const std::string& text) {
      return options_.bpe_dropout ? tokenizer.sample(text, draws.word()) : tokenizer.encode(text);
    };
    const auto prompt = encode(cells[0]), completion = encode(cells[1]);
    std::vector<int64_t> ids(prompt.begin(), prompt.end());
    ids.insert(ids.end(), completion.begin(), completion.end());
    if (options_.append_eod) ids.push_back(eod_);
    if (std::ssize(ids) > length_ + 1 || std::ssize(ids) < 2) {
      if (options_.too_long == "error" || std::ssize(ids) < 2 || std::ssize(prompt) > length_) {
        throw FormatError(
            fmt::format("{}: {} tokens, {} of them the prompt's; expected 2 to {}: raise "
                        "data.seq_length, shorten the "
                        "text, or cut off ends of completions with the option too_long: truncate",
                        table_.place(example), ids.size(), prompt.size(), length_ + 1));
      }
      ids.resize(length_ + 1);
    }
    const int64_t inputs = std::ssize(ids) - 1;
    std::copy_n(ids.begin() + 1, inputs, row[2].ids);
    std::fill(row[2].ids + inputs, row[2].ids + length_, kIgnoreLabel);
    if (!options_.prompt_loss)
      std::fill_n(row[2].ids, std::max<int64_t>(std::ssize(prompt) - 1, 0), kIgnoreLabel);
    ids.pop_back();
    put(row[0], ids, length_, pad_);
    put_ones(row[1], inputs);
  }

 private:
  Table table_;
  FinetuneOptions options_;
  TextTools tools_;
  int64_t length_;
  std::string settings_;
  int64_t eod_ = 0, pad_ = 0;
};

struct ClassificationOptions {
  std::string text = "sentence", text_pair = "", label = "label";
  std::vector<std::string> labels = {};
  bool regression = false, header = true;
  std::optional<int64_t> pad = {};

  template <class Self, class V>
  static void visit(Self& self, V&& v) {
    using base::Field;
    v("text", self.text, Field{"column of the text"});
    v("text_pair", self.text_pair, Field{"column of the second text; empty: there is none"});
    v("label", self.label,
      Field{"column of the class or number; empty: there is none, for predictions"});
    v("labels", self.labels,
      Field{"names of the classes in the order of their numbers; empty: the column holds numbers"});
    v("regression", self.regression, Field{"labels are numbers, not classes"});
    v("header", self.header, Field{"the first row names the columns; else they are 0, 1, ..."});
    v("pad", self.pad, Field{"id; null: the tokenizer's", 0});
  }
};

class ClassificationExamples : public Examples {
 public:
  ClassificationExamples(const std::string& path, const ClassificationOptions& options,
                         TextTools tools, int64_t length, std::string settings)
      : table_(path, options.header),
        options_(options),
        tools_(std::move(tools)),
        length_(length),
        settings_(std::move(settings)),
        pad_(tools_.id("pad", options.pad, {"[PAD]", "<pad>", "<|endoftext|>"})) {
    columns_.push_back(options_.text);
    if (!options_.text_pair.empty()) columns_.push_back(options_.text_pair);
    if (!options_.label.empty()) columns_.push_back(options_.label);
    if (table_.rows() > 0)
      table_.cells(0, columns_);  // names a missing column before the run begins
  }
  int64_t size() const override { return table_.rows(); }
  std::string description() const override {
    return fmt::format("{}: {} rows", table_.path(), size());
  }
  std::vector<FieldSpec> fields() const override {
    std::vector<FieldSpec> fields{
        {"input_ids", {length_}}, {"token_type_ids", {length_}}, {"attention_mask", {length_}}};
    if (!options_.label.empty())
      fields.push_back({"labels", {}, options_.regression ? base::DType::f32 : base::DType::i64});
    return fields;
  }
  SourceIdentity identity() const override {
    return {.path = table_.path(),
            .documents = size(),
            .fingerprint = table_.fingerprint(),
            .samples = settings_};
  }
  void read(int64_t example, Draws&, Row row) const override {
    const auto cells = table_.cells(example, columns_);
    std::optional<std::string_view> pair;
    if (!options_.text_pair.empty()) pair = cells[1];
    const auto encoding =
        tools_.tokenizer()->encoding(cells[0], pair, text::Truncation{.max_length = length_});
    put(row[0], {encoding.ids.begin(), encoding.ids.end()}, length_, pad_);
    std::copy(encoding.type_ids.begin(), encoding.type_ids.end(), row[1].ids);
    put_ones(row[2], std::ssize(encoding.ids));
    if (options_.label.empty()) return;
    if (options_.regression) {
      *row[3].reals = number<float>(cells.back(), example, "a number");
    } else if (options_.labels.empty()) {
      *row[3].ids = number<int64_t>(cells.back(), example, "the number of a class");
    } else {
      const auto at = std::ranges::find(options_.labels, cells.back());
      if (at == options_.labels.end())
        throw FormatError(fmt::format("{}: label \"{}\"; expected one of {}", table_.place(example),
                                      cells.back(), fmt::join(options_.labels, ", ")));
      *row[3].ids = at - options_.labels.begin();
    }
  }

 private:
  template <class T>
  T number(const std::string& cell, int64_t example, const char* expected) const {
    T value{};
    const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
    if (error != std::errc() || end != cell.data() + cell.size())
      throw FormatError(
          fmt::format("{}: label \"{}\"; expected {}{}", table_.place(example), cell, expected,
                      std::is_integral_v<T> ? " (name classes with the option labels)" : ""));
    return value;
  }

  Table table_;
  ClassificationOptions options_;
  TextTools tools_;
  int64_t length_;
  std::string settings_;
  int64_t pad_;
  std::vector<std::string> columns_;
};

struct SyntheticOptions {
  int64_t samples = 1024, factor = 5, step = 7, high = 0;
  template <class Self, class V>
  static void visit(Self& self, V&& v) {
    using base::Field;
    v("samples", self.samples, Field{"of an epoch", 1});
    v("factor", self.factor, Field{"the next id is factor x id + step, modulo high", 1});
    v("step", self.step, Field{"", 0});
    v("high", self.high, Field{"ids are below it; 0: the vocabulary", 0});
  }
};

class SyntheticExamples : public Examples {
 public:
  SyntheticExamples(const SyntheticOptions& options, int64_t length, std::string settings)
      : options_(options), length_(length), settings_(std::move(settings)) {}
  int64_t size() const override { return options_.samples; }
  std::string description() const override {
    return fmt::format("synthetic: {} samples of ids below {}", size(), options_.high);
  }
  std::vector<FieldSpec> fields() const override { return causal_fields(length_); }
  SourceIdentity identity() const override {
    return {.path = "synthetic", .documents = size(), .samples = settings_};
  }
  void read(int64_t example, Draws&, Row row) const override {
    int64_t id = example % options_.high;
    for (int64_t i = 0; i < length_; ++i) {
      row[0].ids[i] = id;
      id = (id * options_.factor + options_.step) % options_.high;
      row[1].ids[i] = id;
    }
  }

 private:
  SyntheticOptions options_;
  int64_t length_;
  std::string settings_;
};

}  // namespace

std::shared_ptr<const Examples> open_finetune(const std::string& path, const base::Json& options,
                                              const SampleOptions& run) {
  FinetuneOptions own;
  read_options(options, "options of sft", own);
  return std::make_shared<FinetuneExamples>(path, own, TextTools(run, "sft", true), run.seq_length,
                                            "sft " + options.dump());
}

std::shared_ptr<const Examples> open_classification(const std::string& path,
                                                    const base::Json& options,
                                                    const SampleOptions& run) {
  ClassificationOptions own;
  read_options(options, "options of classification", own);
  return std::make_shared<ClassificationExamples>(path, own, TextTools(run, "classification", true),
                                                  run.seq_length,
                                                  "classification " + options.dump());
}

std::shared_ptr<const Examples> open_synthetic(const std::string&, const base::Json& options,
                                               const SampleOptions& run) {
  SyntheticOptions own;
  read_options(options, "options of synthetic", own);
  if (own.high == 0) own.high = run.vocab_size;
  if (own.high < 1 || (run.vocab_size > 0 && own.high > run.vocab_size))
    throw ConfigError(
        fmt::format("options of synthetic.high: {}; expected 1 to the vocabulary's {}", own.high,
                    run.vocab_size));
  return std::make_shared<SyntheticExamples>(own, run.seq_length, "synthetic " + options.dump());
}

}  // namespace trireme::data
