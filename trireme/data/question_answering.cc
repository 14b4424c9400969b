// Samples of questions on a text whose answer is a span of it (SQuAD). A text that is longer than a
// sample is cut into windows that overlap; where the answer is not in a window, both positions are
// that of the first token, as in Hugging Face's examples.

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/hash.h"
#include "trireme/base/io.h"
#include "trireme/base/threads.h"
#include "trireme/data/dataset_kinds.h"
#include "trireme/data/options.h"

namespace trireme::data {
namespace {

using base::ConfigError;
using base::FormatError;
using base::Json;

struct QaOptions {
  int64_t stride = 128;
  std::optional<int64_t> pad = {};
  template <class Self, class V>
  static void visit(Self& self, V&& v) {
    using base::Field;
    v("stride", self.stride, Field{"tokens that neighbouring windows of a text share", 0});
    v("pad", self.pad, Field{"id; null: the tokenizer's", 0});
  }
};

struct Question {
  std::string question, context;
  int64_t begin = -1, end = -1;  // characters of the answer; -1: there is none
};

int64_t characters(const std::string& text) {
  return std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; });
}

/// `answers`: a list of {text, answer_start}, or lists of both as Hugging Face's datasets have
/// them.
void set_answer(const Json& answers, Question& question) {
  const bool columns = answers.is_object();
  const Json& texts = columns ? answers.at("text") : answers;
  if (texts.empty()) return;
  const auto text = (columns ? texts.at(0) : texts.at(0).at("text")).get<std::string>();
  question.begin =
      (columns ? answers.at("answer_start").at(0) : texts.at(0).at("answer_start")).get<int64_t>();
  question.end = question.begin + characters(text);
}

std::vector<Question> read_questions(const std::string& path) {
  std::vector<Question> questions;
  std::string place = path;
  try {
    if (!path.ends_with(".jsonl") && !path.ends_with(".ndjson")) {
      const Json file = base::read_json(path);
      for (const Json& article : file.at("data")) {
        for (const Json& paragraph : article.at("paragraphs")) {
          for (const Json& qa : paragraph.at("qas")) {
            Question& question =
                questions.emplace_back(Question{qa.at("question"), paragraph.at("context")});
            if (!qa.value("is_impossible", false)) set_answer(qa.at("answers"), question);
          }
        }
      }
      return questions;
    }
    const std::string text = base::read_file(path);
    for (size_t at = 0, line = 1; at < text.size(); ++line) {
      const size_t end = std::min(text.find('\n', at), text.size());
      place = fmt::format("{}:{}", path, line);
      if (text.find_first_not_of(" \r\t", at) < end) {
        const Json json = base::parse_json(std::string_view(text).substr(at, end - at), place);
        Question& question =
            questions.emplace_back(Question{json.at("question"), json.at("context")});
        set_answer(json.at("answers"), question);
      }
      at = end + 1;
    }
  } catch (const nlohmann::json::exception& e) {
    throw FormatError(
        fmt::format("{}: {}; expected question, context and answers as SQuAD has them", place,
                    base::message_of(e)));
  }
  return questions;
}

class QaExamples : public Examples {
 public:
  QaExamples(const std::string& path, const QaOptions& options, TextTools tools, int64_t length,
             std::string settings)
      : path_(path),
        questions_(read_questions(path)),
        tools_(std::move(tools)),
        length_(length),
        settings_(std::move(settings)),
        truncation_{.max_length = length,
                    .stride = options.stride,
                    .strategy = text::Truncation::Strategy::only_second},
        pad_(tools_.id("pad", options.pad, {"[PAD]", "<pad>"})) {
    std::vector<int64_t> windows(questions_.size());
    base::parallel_for(std::ssize(questions_), base::available_cores(),
                       [&](int64_t i) { windows[i] = 1 + std::ssize(encode(i).overflowing); });
    for (size_t i = 0; i < windows.size(); ++i)
      for (int64_t w = 0; w < windows[i]; ++w) places_.emplace_back(static_cast<int64_t>(i), w);
  }
  int64_t size() const override { return std::ssize(places_); }
  std::string description() const override {
    return fmt::format("{}: {} questions, {} samples", path_, questions_.size(), size());
  }
  std::vector<FieldSpec> fields() const override {
    return {{"input_ids", {length_}},
            {"token_type_ids", {length_}},
            {"attention_mask", {length_}},
            {"start_positions"},
            {"end_positions"}};
  }
  SourceIdentity identity() const override {
    return {.path = path_,
            .documents = std::ssize(questions_),
            .fingerprint = base::hash_text(base::read_file(path_)),
            .samples = settings_};
  }
  void read(int64_t example, Draws&, Row row) const override {
    const auto [number, window] = places_[example];
    const text::Encoding all = encode(number);
    const text::Encoding& encoding = window == 0 ? all : all.overflowing[window - 1];
    put(row[0], {encoding.ids.begin(), encoding.ids.end()}, length_, pad_);
    std::copy(encoding.type_ids.begin(), encoding.type_ids.end(), row[1].ids);
    put_ones(row[2], std::ssize(encoding.ids));
    const auto [first, last] = span(encoding, questions_[number]);
    *row[3].ids = first;
    *row[4].ids = last;
  }

 private:
  text::Encoding encode(int64_t number) const {
    const Question& q = questions_[number];
    try {
      return tools_.tokenizer()->encoding(q.question, q.context, truncation_);
    } catch (const ConfigError& e) {
      throw ConfigError(
          fmt::format("{}: question {} (\"{}\"): {}; raise data.seq_length or lower the stride",
                      path_, number, q.question, e.what()));
    }
  }

  /// The tokens of the answer; (0, 0) where the window does not hold all of it.
  static std::pair<int64_t, int64_t> span(const text::Encoding& encoding, const Question& q) {
    int64_t first = -1, last = -1, begin = -1, end = -1;
    for (int64_t i = 0; i < std::ssize(encoding.ids); ++i) {
      if (encoding.sequences[i] != 1) continue;
      if (begin < 0) begin = encoding.offsets[i].begin;
      end = encoding.offsets[i].end;
      if (encoding.offsets[i].begin <= q.begin) first = i;
      if (last < 0 && encoding.offsets[i].end >= q.end) last = i;
    }
    if (q.begin < 0 || begin < 0 || q.begin < begin || q.end > end) return {0, 0};
    return {first, last};
  }

  std::string path_;
  std::vector<Question> questions_;
  TextTools tools_;
  int64_t length_;
  std::string settings_;
  text::Truncation truncation_;
  int64_t pad_;
  std::vector<std::pair<int64_t, int64_t>> places_;  // question and window of each example
};

}  // namespace

std::shared_ptr<const Examples> open_question_answering(const std::string& path,
                                                        const base::Json& options,
                                                        const SampleOptions& run) {
  QaOptions own;
  read_options(options, "options of squad", own);
  return std::make_shared<QaExamples>(path, own, TextTools(run, "squad", true), run.seq_length,
                                      "squad " + options.dump());
}

}  // namespace trireme::data
