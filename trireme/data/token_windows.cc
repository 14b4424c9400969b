// Samples cut from the concatenation of all documents: masked words (RoBERTa), span corruption
// (T5), prefix language models.

#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/data/dataset_kinds.h"
#include "trireme/data/indexed.h"
#include "trireme/data/masking.h"
#include "trireme/data/options.h"

namespace trireme::data {
namespace {

using base::ConfigError;
using Ids = std::vector<int64_t>;

/// Window `i` is tokens [i * step, i * step + length) of all documents laid end to end.
class Windows : public Examples {
 public:
  Windows(IndexedDataset tokens, int64_t length, int64_t step, std::string settings)
      : tokens_(std::move(tokens)), length_(length), step_(step), settings_(std::move(settings)) {
    count_ = tokens_.tokens() < length ? 0 : (tokens_.tokens() - length) / step + 1;
    if (length < 1 || count_ == 0) {
      throw ConfigError(
          fmt::format("dataset {} has {} tokens; a sample of {} needs {}: give more text or a "
                      "shorter data.seq_length",
                      tokens_.prefix(), tokens_.tokens(), settings_, length));
    }
  }
  int64_t size() const override { return count_; }
  std::string description() const override {
    return fmt::format("{}: {} documents, {} tokens, {} samples ({})", tokens_.prefix(),
                       tokens_.documents(), tokens_.tokens(), count_, settings_);
  }
  SourceIdentity identity() const override {
    return {.path = tokens_.prefix(),
            .documents = tokens_.documents(),
            .tokens = tokens_.tokens(),
            .fingerprint = tokens_.fingerprint(),
            .samples = settings_};
  }

 protected:
  Ids window(int64_t i) const {
    Ids ids(length_);
    tokens_.read(i * step_, length_, ids.data());
    return ids;
  }

 private:
  IndexedDataset tokens_;
  int64_t length_, step_, count_;
  std::string settings_;
};

struct MlmOptions : MaskingOptions {
  std::string access = "mmap";
  std::optional<int64_t> bos = {}, eos = {};

  template <class Self, class V>
  static void visit(Self& self, V&& v) {
    using base::Field;
    MaskingOptions::visit(self, v);
    v("access", self.access, Field{.help = "", .choices = {"mmap", "lazy", "cached"}});
    v("bos", self.bos, Field{"ids around a sample; null: the tokenizer's", 0});
    v("eos", self.eos, Field{"", 0});
  }
};

class MlmExamples : public Windows {
 public:
  MlmExamples(IndexedDataset tokens, const MlmOptions& options, const TextTools& tools,
              int64_t length, const std::string& settings)
      : Windows(std::move(tokens), length - 2, std::max<int64_t>(length - 2, 1), settings),
        length_(length),
        masking_(options, tools),
        bos_(tools.id("bos", options.bos, {"<s>", "[CLS]"})),
        eos_(tools.id("eos", options.eos, {"</s>", "[SEP]"})) {}
  std::vector<FieldSpec> fields() const override {
    return {{"input_ids", {length_}}, {"attention_mask", {length_}}, {"labels", {length_}}};
  }
  void read(int64_t example, Draws& draws, Row row) const override {
    Ids ids = window(example);
    ids.insert(ids.begin(), bos_);
    ids.push_back(eos_);
    std::vector<bool> maskable(ids.size(), true);
    maskable.front() = maskable.back() = false;
    masking_.apply(ids, maskable, row[2].ids, draws);
    put(row[0], ids, length_, 0);
    put_ones(row[1], length_);
  }

 private:
  int64_t length_;
  Masking masking_;
  int64_t bos_, eos_;
};

struct T5Options {
  double noise_density = 0.15, mean_span_length = 3;
  int64_t decoder_seq_length = 0;
  std::string access = "mmap";
  std::optional<int64_t> sentinel = {}, eos = {}, pad = {}, decoder_start = {};

  template <class Self, class V>
  static void visit(Self& self, V&& v) {
    using base::Field;
    v("noise_density", self.noise_density, Field{"share of the tokens to guess", 0.01, 0.9});
    v("mean_span_length", self.mean_span_length, Field{"tokens of a span on average", 1, 100});
    v("decoder_seq_length", self.decoder_seq_length,
      Field{"of the decoder; 0: what the spans take", 0});
    v("access", self.access, Field{.help = "", .choices = {"mmap", "lazy", "cached"}});
    v("sentinel", self.sentinel,
      Field{"id of the first sentinel, the others count down; null: <extra_id_0>", 0});
    v("eos", self.eos, Field{"ids of special tokens; null: the tokenizer's", 0});
    v("pad", self.pad, Field{"", 0});
    v("decoder_start", self.decoder_start, Field{"null: pad", 0});
  }
};

/// How many of `length` tokens are noise, in how many spans, and what encoder and decoder get.
struct T5Lengths {
  T5Lengths(const T5Options& o, int64_t length) : raw(length) {
    noise = std::clamp<int64_t>(std::lround(static_cast<double>(length) * o.noise_density), 1,
                                std::max<int64_t>(length - 1, 1));
    spans = std::clamp<int64_t>(std::lround(static_cast<double>(noise) / o.mean_span_length), 1,
                                std::max<int64_t>(std::min(noise, length - noise), 1));
    encoder = length - noise + spans + 1;
    decoder = noise + spans + 1;
  }
  int64_t raw, noise, spans, encoder, decoder;
};

/// The longest stretch of text whose encoder input fits.
T5Lengths longest(const T5Options& options, int64_t encoder) {
  T5Lengths best(options, 2);
  for (int64_t raw = 2; raw <= 4 * encoder + 16; ++raw) {
    if (T5Lengths next(options, raw); next.encoder <= encoder) best = next;
  }
  return best;
}

class T5Examples : public Windows {
 public:
  T5Examples(IndexedDataset tokens, const T5Options& options, const TextTools& tools,
             int64_t length, const T5Lengths& lengths, const std::string& settings)
      : Windows(std::move(tokens), lengths.raw, lengths.raw, settings),
        lengths_(lengths),
        encoder_(length),
        decoder_(options.decoder_seq_length > 0 ? options.decoder_seq_length : lengths.decoder),
        eos_(tools.id("eos", options.eos, {"</s>"})),
        pad_(tools.id("pad", options.pad, {"<pad>", "[PAD]"})),
        start_(options.decoder_start.value_or(pad_)) {
    if (lengths_.encoder > encoder_ || lengths_.decoder > decoder_) {
      throw ConfigError(
          fmt::format("t5: {} tokens of text take {} in the encoder and {} in the decoder; "
                      "data.seq_length is {}, decoder_seq_length {}: raise them",
                      lengths_.raw, lengths_.encoder, lengths_.decoder, encoder_, decoder_));
    }
    const int64_t first = tools.id("sentinel", options.sentinel, {"<extra_id_0>"});
    for (int64_t k = 0; k < lengths_.spans; ++k) {
      const auto known = options.sentinel || !tools.tokenizer()
                             ? std::nullopt
                             : tools.tokenizer()->find(fmt::format("<extra_id_{}>", k));
      sentinels_.push_back(known ? *known : first - k);
    }
    if (sentinels_.back() < 0)
      throw ConfigError(
          fmt::format("t5: {} spans need as many sentinels; from id {} down there are {}",
                      lengths_.spans, first, first + 1));
  }
  std::vector<FieldSpec> fields() const override {
    return {{"input_ids", {encoder_}},
            {"attention_mask", {encoder_}},
            {"decoder_input_ids", {decoder_}},
            {"decoder_attention_mask", {decoder_}},
            {"labels", {decoder_}}};
  }
  void read(int64_t example, Draws& draws, Row row) const override {
    const Ids ids = window(example);
    const Ids noise = cut(lengths_.noise, draws), kept = cut(lengths_.raw - lengths_.noise, draws);
    Ids source, target;
    size_t at = 0;
    const auto take = [&](int64_t count, Ids& out) {
      out.insert(out.end(), ids.begin() + static_cast<int64_t>(at),
                 ids.begin() + static_cast<int64_t>(at) + count);
      at += static_cast<size_t>(count);
    };
    for (int64_t k = 0; k < lengths_.spans; ++k) {
      take(kept[k], source);
      source.push_back(sentinels_[k]);
      target.push_back(sentinels_[k]);
      take(noise[k], target);
    }
    source.push_back(eos_);
    target.push_back(eos_);
    put(row[0], source, encoder_, pad_);
    put_ones(row[1], std::ssize(source));
    put(row[4], target, decoder_, kIgnoreLabel);
    put_ones(row[3], std::ssize(target));
    target.pop_back();
    target.insert(target.begin(), start_);
    put(row[2], target, decoder_, pad_);
  }

 private:
  /// `count` tokens in as many spans as there are, none empty, every way to do so equally likely.
  Ids cut(int64_t count, Draws& draws) const {
    std::vector<bool> starts(count - 1, false);
    std::fill_n(starts.begin(), lengths_.spans - 1, true);
    for (int64_t i = count - 2; i > 0; --i) {
      const int64_t j = draws.below(i + 1);
      const bool held = starts[i];
      starts[i] = starts[j];
      starts[j] = held;
    }
    Ids lengths{1};
    for (bool start : starts) start ? lengths.push_back(1) : void(++lengths.back());
    return lengths;
  }

  T5Lengths lengths_;
  int64_t encoder_, decoder_, eos_, pad_, start_;
  Ids sentinels_;
};

struct PrefixOptions {
  double min_prefix = 0.1, max_prefix = 0.9;
  std::string access = "mmap";
  template <class Self, class V>
  static void visit(Self& self, V&& v) {
    using base::Field;
    v("min_prefix", self.min_prefix,
      Field{"share of a sample that the prefix takes, at least", 0, 1});
    v("max_prefix", self.max_prefix, Field{"and at most", 0, 1});
    v("access", self.access, Field{.help = "", .choices = {"mmap", "lazy", "cached"}});
  }
};

class PrefixExamples : public Windows {
 public:
  PrefixExamples(IndexedDataset tokens, const PrefixOptions& options, int64_t length,
                 const std::string& settings)
      : Windows(std::move(tokens), length + 1, length, settings),
        options_(options),
        length_(length) {
    if (options.min_prefix > options.max_prefix)
      throw ConfigError(fmt::format("prefix_lm: min_prefix {} is more than max_prefix {}",
                                    options.min_prefix, options.max_prefix));
  }
  std::vector<FieldSpec> fields() const override {
    return {{"input_ids", {length_}}, {"labels", {length_}}, {"prefix_mask", {length_}}};
  }
  void read(int64_t example, Draws& draws, Row row) const override {
    const Ids ids = window(example);
    const double share =
        options_.min_prefix + (options_.max_prefix - options_.min_prefix) * draws.uniform();
    const auto prefix =
        std::clamp<int64_t>(std::lround(share * static_cast<double>(length_)), 0, length_ - 1);
    std::copy(ids.begin(), ids.end() - 1, row[0].ids);
    std::copy(ids.begin() + 1, ids.end(), row[1].ids);
    // The prefix's last token guesses the first behind it.
    std::fill_n(row[1].ids, std::max<int64_t>(prefix - 1, 0), kIgnoreLabel);
    put_ones(row[2], prefix);
  }

 private:
  PrefixOptions options_;
  int64_t length_;
};

}  // namespace

std::shared_ptr<const Examples> open_mlm(const std::string& path, const base::Json& options,
                                         const SampleOptions& run) {
  MlmOptions own;
  read_options(options, "options of mlm", own);
  return std::make_shared<MlmExamples>(IndexedDataset(path, access_of(own.access)), own,
                                       TextTools(run, "mlm", false), run.seq_length,
                                       "mlm " + options.dump() + identity_of(own));
}

std::shared_ptr<const Examples> open_t5(const std::string& path, const base::Json& options,
                                        const SampleOptions& run) {
  T5Options own;
  read_options(options, "options of t5", own);
  return std::make_shared<T5Examples>(IndexedDataset(path, access_of(own.access)), own,
                                      TextTools(run, "t5", false), run.seq_length,
                                      longest(own, run.seq_length), "t5 " + options.dump());
}

std::shared_ptr<const Examples> open_prefix_lm(const std::string& path, const base::Json& options,
                                               const SampleOptions& run) {
  PrefixOptions own;
  read_options(options, "options of prefix_lm", own);
  return std::make_shared<PrefixExamples>(IndexedDataset(path, access_of(own.access)), own,
                                          run.seq_length, "prefix_lm " + options.dump());
}

}  // namespace trireme::data
