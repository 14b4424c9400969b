// Samples of BERT's pretraining: one or two runs of sentences, some words masked.

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/hash.h"
#include "trireme/data/dataset_kinds.h"
#include "trireme/data/indexed.h"
#include "trireme/data/masking.h"
#include "trireme/data/options.h"
#include "trireme/data/sentence_spans.h"

namespace trireme::data {
namespace {

using base::ConfigError;

struct BertOptions : MaskingOptions {
  std::string pair = "nsp", access = "mmap";
  double short_seq_prob = 0.1;
  std::optional<int64_t> cls = {}, sep = {}, pad = {};

  template <class Self, class V>
  static void visit(Self& self, V&& v) {
    using base::Field;
    MaskingOptions::visit(self, v);
    v("pair", self.pair,
      Field{.help = "the second segment: nsp, half the time from another document; sop, half the "
                    "time swapped with the first; none",
            .choices = {"nsp", "sop", "none"}});
    v("access", self.access, Field{.help = "", .choices = {"mmap", "lazy", "cached"}});
    v("short_seq_prob", self.short_seq_prob,
      Field{"share of samples of a random, shorter length", 0, 1});
    v("cls", self.cls, Field{"ids of special tokens; null: the tokenizer's", 0});
    v("sep", self.sep, Field{"", 0});
    v("pad", self.pad, Field{"", 0});
  }
};

class BertExamples : public Examples {
 public:
  BertExamples(IndexedDataset sentences, const BertOptions& options, const TextTools& tools,
               const SampleOptions& run, std::string settings)
      : sentences_(std::move(sentences)),
        options_(options),
        length_(run.seq_length),
        paired_(options.pair != "none"),
        settings_(std::move(settings)),
        masking_(options, tools),
        cls_(tools.id("cls", options.cls, {"[CLS]", "<s>"})),
        sep_(tools.id("sep", options.sep, {"[SEP]", "</s>"})),
        pad_(tools.id("pad", options.pad, {"[PAD]", "<pad>"})) {
    const int64_t specials = paired_ ? 3 : 2;
    if (length_ < specials + 2)
      throw ConfigError(fmt::format("data.seq_length {} leaves no room beside {} special tokens",
                                    length_, specials));
    spans_ = sentence_spans(sentences_, length_ - specials, options_.short_seq_prob,
                            paired_ ? 2 : 1, static_cast<uint32_t>(run.run_seed));
    if (spans_.empty()) {
      throw ConfigError(fmt::format(
          "dataset {}: no document has {} sentences; expected one sequence a sentence: preprocess "
          "with --split-sentences, or take pair: none",
          sentences_.prefix(), paired_ ? 2 : 1));
    }
    if (options_.pair == "nsp" && spans_.front().document == spans_.back().document)
      throw ConfigError(fmt::format("dataset {}: pair: nsp needs two documents at least; take sop",
                                    sentences_.prefix()));
  }

  int64_t size() const override { return std::ssize(spans_); }
  std::string description() const override {
    return fmt::format("{}: {} documents, {} sentences, {} samples of up to {} tokens",
                       sentences_.prefix(), sentences_.documents(), sentences_.sequences(),
                       spans_.size(), length_);
  }
  std::vector<FieldSpec> fields() const override {
    std::vector<FieldSpec> fields{{"input_ids", {length_}},
                                  {"token_type_ids", {length_}},
                                  {"attention_mask", {length_}},
                                  {"labels", {length_}}};
    if (paired_) fields.push_back({"next_sentence_label"});
    return fields;
  }
  SourceIdentity identity() const override {
    return {.path = sentences_.prefix(),
            .documents = sentences_.documents(),
            .tokens = sentences_.tokens(),
            .fingerprint = sentences_.fingerprint(),
            .samples = settings_};
  }

  void read(int64_t example, Draws& draws, Row row) const override {
    const SentenceSpan& span = spans_[example];
    std::vector<int64_t> first, second;
    bool other = false;
    if (paired_) {
      const int64_t pivot =
          span.begin + 1 + draws.below(std::max<int64_t>(span.end - span.begin - 1, 1));
      first = tokens(span.begin, pivot);
      other = draws.chance(0.5);
      if (other && options_.pair == "nsp") {
        second = foreign(span, span.target - std::ssize(first), draws);
      } else {
        second = tokens(pivot, span.end);
        if (other) std::swap(first, second);
      }
    } else {
      first = tokens(span.begin, span.end);
    }
    trim(first, second, std::min(span.target, length_ - (paired_ ? 3 : 2)), draws);

    std::vector<int64_t> ids{cls_};
    ids.insert(ids.end(), first.begin(), first.end());
    ids.push_back(sep_);
    const auto behind_first = std::ssize(ids);
    if (paired_) {
      ids.insert(ids.end(), second.begin(), second.end());
      ids.push_back(sep_);
      std::fill(row[1].ids + behind_first, row[1].ids + std::ssize(ids), int64_t{1});
      *row[4].ids = other;
    }
    std::vector<bool> maskable(ids.size(), true);
    maskable[0] = maskable[behind_first - 1] = maskable.back() = false;
    masking_.apply(ids, maskable, row[3].ids, draws);
    std::fill(row[3].ids + std::ssize(ids), row[3].ids + length_, kIgnoreLabel);
    put(row[0], ids, length_, pad_);
    put_ones(row[2], std::ssize(ids));
  }

 private:
  std::vector<int64_t> tokens(int64_t begin, int64_t end) const {
    const int64_t from = sentences_.begin(begin), count = sentences_.begin(end) - from;
    std::vector<int64_t> ids(count);
    sentences_.read(from, count, ids.data());
    return ids;
  }

  /// Sentences from anywhere in another document, `wanted` tokens where it has as many.
  std::vector<int64_t> foreign(const SentenceSpan& span, int64_t wanted, Draws& draws) const {
    int64_t from = draws.below(size());
    while (spans_[from].document == span.document) from = (from + 1) % size();
    const int64_t end = sentences_.first_sequence(spans_[from].document + 1);
    const int64_t begin = spans_[from].begin + draws.below(end - spans_[from].begin);
    int64_t last = begin;
    for (int64_t count = 0; last < end && count < wanted; ++last) count += sentences_.length(last);
    return tokens(begin, std::max(last, begin + 1));
  }

  /// Cuts tokens off the longer one, at either end, until both fit.
  static void trim(std::vector<int64_t>& first, std::vector<int64_t>& second, int64_t room,
                   Draws& draws) {
    int64_t skipped[2] = {0, 0};
    std::vector<int64_t>* both[2] = {&first, &second};
    auto size = [&](int i) { return std::ssize(*both[i]) - skipped[i]; };
    while (size(0) + size(1) > room) {
      const int longer = size(0) > size(1) ? 0 : 1;
      draws.chance(0.5) ? void(++skipped[longer]) : both[longer]->pop_back();
    }
    for (int i : {0, 1}) both[i]->erase(both[i]->begin(), both[i]->begin() + skipped[i]);
  }

  IndexedDataset sentences_;
  BertOptions options_;
  int64_t length_;
  bool paired_;
  std::string settings_;
  Masking masking_;
  int64_t cls_, sep_, pad_;
  std::vector<SentenceSpan> spans_;
};

}  // namespace

std::shared_ptr<const Examples> open_bert(const std::string& path, const base::Json& options,
                                          const SampleOptions& run) {
  BertOptions own;
  read_options(options, "options of bert", own);
  return std::make_shared<BertExamples>(IndexedDataset(path, access_of(own.access)), own,
                                        TextTools(run, "bert", false), run,
                                        "bert " + options.dump() + identity_of(own));
}

}  // namespace trireme::data
