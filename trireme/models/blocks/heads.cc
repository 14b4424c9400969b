#include "trireme/models/blocks/heads.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/dist/redistribute.h"
#include "trireme/models/blocks/sites.h"
#include "trireme/nn/loss.h"

namespace trireme::models {
namespace {

using layout::Init;
using layout::Sbp;
using nn::Batch;
using nn::Builder;
using nn::Context;
using nn::State;

struct KindNames {
  HeadKind kind;
  const char *name, *suffix, *words;
};
constexpr KindNames kKinds[] = {
    {HeadKind::masked_lm, "masked_lm", "ForMaskedLM", "masked LM"},
    {HeadKind::pretraining, "pretraining", "ForPreTraining", "pretraining"},
    {HeadKind::sequence_classification, "sequence_classification", "ForSequenceClassification", "classes of rows"},
    {HeadKind::token_classification, "token_classification", "ForTokenClassification", "classes of tokens"},
    {HeadKind::multiple_choice, "multiple_choice", "ForMultipleChoice", "choices"},
    {HeadKind::question_answering, "question_answering", "ForQuestionAnswering", "answers"},
    {HeadKind::embedding, "embedding", "Model", "embedding"},
    {HeadKind::image_classification, "image_classification", "ForImageClassification", "images"},
    {HeadKind::seq2seq, "seq2seq", "ForConditionalGeneration", "sequence to sequence"},
    {HeadKind::causal_lm, "causal_lm", "ForCausalLM", "causal LM"},
    {HeadKind::distillation, "distillation", "ForImageClassificationWithTeacher", "distillation"},
};

const KindNames& names_of(HeadKind kind) {
  return *std::ranges::find_if(kKinds, [kind](const KindNames& names) { return names.kind == kind; });
}

class Vocab {
 public:
  Vocab(const Builder& b, const HeadSpec& head, const VocabScores& spec)
      : spec_(spec),
        table_(b / spec.table, spec.vocab, spec.features, Init::normal(spec.deviation)) {
    if (!spec.dense.empty()) {
      dense_.emplace(b / spec.dense, head.features(), spec.features,
                     nn::Linear::Options{.init = Init::normal(head.deviation)});
      activation_ = nn::find_activation(spec.activation);
      norm_.emplace(b / spec.norm, spec.features, spec.norm_kind);
    }
    if (spec.fixed_bias)
      bias_ = b.buffer(spec.bias, {1, spec.vocab}, Init::zeros(), Sbp::split(1));
    else if (!spec.bias.empty())
      bias_ = b.param(spec.bias, {spec.vocab}, Init::zeros(), Sbp::split(0));
  }

  /// Logits, or the loss where that is requested.
  at::Tensor forward(at::Tensor x, const Context& context) const {
    if (dense_) x = norm_->forward(activation_(dense_->forward(x, context)), context);
    if (spec_.scale != 1) x = x * spec_.scale;
    if (context.loss_request) return table_.loss(x, context.batch.tensors.at("labels"), context, bias_, spec_.cap);
    const at::Tensor logits = table_.logits(x, context, bias_);
    return spec_.cap > 0 ? at::tanh(logits / spec_.cap) * spec_.cap : logits;
  }

 private:
  VocabScores spec_;
  nn::VocabTable table_;
  nn::Param* bias_ = nullptr;
  std::optional<nn::Linear> dense_;
  nn::Activation activation_ = nullptr;
  std::optional<AnyNorm> norm_;
};

/// Dense, activation, dropout, out.
class Classifier {
 public:
  Classifier(const Builder& b, const HeadSpec& head, const std::string& dense,
             const std::string& activation, double dropout, const std::string& out, int64_t labels, bool bias = true)
      : layer_(b.layer_index()),
        dropout_(dropout),
        out_(b / out, head.features(), labels, {.init = Init::normal(head.deviation), .bias = bias}) {
    if (dense.empty()) return;
    dense_.emplace(b / dense, head.features(), head.features(),
                   nn::Linear::Options{.init = Init::normal(head.deviation)});
    activation_ = nn::find_activation(activation);
  }

  /// x [rows, places, hidden], the first of them at `begin`.
  at::Tensor forward(at::Tensor x, int64_t begin, const Context& context) const {
    if (dense_) x = activation_(dense_->forward(x, context));
    return out_.forward(nn::dropout(x, dropout_, layer_, kHead, begin, context), context);
  }

 private:
  int layer_;
  double dropout_;
  std::optional<nn::Linear> dense_;
  nn::Activation activation_ = nullptr;
  nn::Linear out_;
};

class Head : public nn::Layer {
 public:
  // What looks at whole rows takes them from every rank; the rest stays on the stream.
  Head(const Builder& b, const HeadSpec& spec) : spec_(spec), builder_(b) {
    if (!spec.norm.empty()) norm_.emplace(b / spec.norm, spec.hidden, spec.norm_kind);
    if (!spec.projection.empty())
      projection_.emplace(b / spec.projection, spec.hidden, spec.projected,
                          nn::Linear::Options{.init = Init::normal(spec.deviation), .bias = false});
    if (spec.vocab) vocab_.emplace(b, spec, *spec.vocab);
    if (const auto& rows = spec.rows)
      rows_.emplace(b.whole(), spec, rows->dense, rows->activation, rows->dropout, rows->out, rows->labels, rows->bias);
    if (const auto& tokens = spec.tokens)
      tokens_.emplace(b, spec, tokens->dense, tokens->activation, tokens->dropout, tokens->out,
                      tokens->labels);
  }

  State forward(State in, const Context& given) override {
    const Context context = given.over(spec_.positions.of(given.batch.shape()));
    const int64_t begin = nn::stream_range(builder_, context.seq).begin;
    at::Tensor x = in.at("hidden");
    if (norm_)
      x = nn::dropout(norm_->forward(x, context), spec_.norm_dropout, builder_.layer_index(), kNorm,
                      begin, context);
    if (projection_) x = projection_->forward(x, context);
    State out = std::move(in);  // what travels beside the stream goes on
    out.erase("hidden");
    out.erase("memory");
    if (vocab_) out.set(context.loss_request ? "loss" : "logits", vocab_->forward(x, context));
    if (tokens_) out.set("scores", whole_stream(builder_, tokens_->forward(x, begin, context), context));
    if (rows_) {
      at::Tensor pooled = pool(whole_stream(builder_, x, context), spec_.rows->pool, context);
      pooled = nn::dropout(pooled, spec_.rows->dropout_first, builder_.layer_index(), kHeadFirst, 0,
                           context);
      at::Tensor scores = rows_->forward(pooled, 0, context).squeeze(1);
      if (spec_.kind == HeadKind::multiple_choice)
        scores = scores.view({-1, context.batch.choices});
      out.set(spec_.rows->name, scores);
    }
    if (spec_.vector) {
      at::Tensor vector = pool(whole_stream(builder_, x, context), spec_.vector->pool, context).squeeze(1);
      if (spec_.vector->normalize) vector = vector / vector.norm(2, {-1}, true).clamp_min(1e-12);
      out.set("embedding", vector);
    }
    return out;
  }

  nn::StateSpec describe(const nn::StateSpec& in, const nn::BatchShape& shape) const override {
    nn::StateSpec out;
    for (const nn::TensorSpec& tensor : in)
      if (tensor.name != "hidden" && tensor.name != "memory") out.push_back(tensor);
    const int64_t seq = spec_.positions.of(shape);
    auto add = [&](const std::string& name, layout::Shape sizes) {
      out.push_back({name, std::move(sizes), builder_.options().dtype, true});
    };
    if (spec_.vocab) {
      const auto local =
          layout::split_range(spec_.vocab->vocab, builder_.tp().size(), builder_.tp().rank());
      add("logits", {shape.rows, seq, local.size()});
    }
    if (spec_.tokens) add("scores", {shape.rows, seq, spec_.tokens->labels});
    if (spec_.rows) add(spec_.rows->name, {shape.rows, spec_.rows->labels});
    if (spec_.vector) add("embedding", {shape.rows, spec_.features()});
    return out;
  }

  double flops(int64_t seq) const override {
    const auto hidden = static_cast<double>(spec_.hidden);
    if (spec_.vocab) return 2.0 * static_cast<double>(seq * spec_.vocab->vocab * spec_.vocab->features);
    return 2.0 * hidden * hidden;
  }

 private:
  /// Of each row the places that may speak for it, [rows, seq].
  at::Tensor candidates(RowPool how, const Context& context) const {
    const State& batch = context.batch.tensors;
    if (how == RowPool::last) return batch.has("attention_mask") ? batch.at("attention_mask").ne(0) : at::Tensor();
    const int64_t end = spec_.rows->end;
    if (how == RowPool::before_end) {
      const at::Tensor texts = batch.at("input_ids").ne(end);
      if (batch.has("attention_mask") && texts.logical_and(batch.at("attention_mask").eq(0)).any().item<bool>())
        throw base::ConfigError(fmt::format(
            "a row is filled up with another token than {} (model.pad_token_id), by which this head knows where a text ends: "
            "give both the same one, by model.pad_token_id or by the option pad of the data",
            end));
      return texts;
    }
    const at::Tensor ends = batch.at("input_ids").eq(end);
    if (!ends.any(1).all().item<bool>())
      throw base::ConfigError(fmt::format(
          "a row without the token {} (model.eos_token_id), at which this head reads it: end each text with it", end));
    return ends;
  }
  /// [rows, seq, hidden] -> [rows, 1, hidden].
  at::Tensor pool(const at::Tensor& x, RowPool how, const Context& context) const {
    if (how == RowPool::first) return x.narrow(1, 0, 1);
    if (how != RowPool::mean) {
      const at::Tensor places = candidates(how, context);
      if (!places.defined()) return x.narrow(1, x.size(1) - 1, 1);
      const at::Tensor last = (places * at::arange(1, places.size(1) + 1, places.options().dtype(at::kLong))).argmax(1);
      return x.gather(1, last.view({-1, 1, 1}).expand({-1, 1, x.size(2)}));
    }
    if (!context.batch.tensors.has("attention_mask")) return x.mean(1, true);
    const at::Tensor counts =
        context.batch.tensors.at("attention_mask").to(x.scalar_type()).unsqueeze(-1);
    return (x * counts).sum(1, true) / counts.sum(1, true).clamp_min(1e-9);
  }

  HeadSpec spec_;
  Builder builder_;
  std::optional<AnyNorm> norm_;
  std::optional<nn::Linear> projection_;
  std::optional<Vocab> vocab_;
  std::optional<Classifier> rows_, tokens_;
};

/// Of scores that every rank holds whole: [..., classes] and labels [...].
at::Tensor cross_entropy(const at::Tensor& scores, const at::Tensor& labels,
                         int64_t ignored = data::kIgnoreLabel) {
  return at::cross_entropy_loss(scores.to(at::kDouble).flatten(0, -2), labels.flatten(), {},
                                at::Reduction::Sum, ignored);
}

at::Tensor binary_entropy(const at::Tensor& scores, const at::Tensor& labels) {
  const at::Tensor x = scores.to(at::kDouble);
  return at::binary_cross_entropy_with_logits(x, labels.to(at::kDouble).view(x.sizes()), {}, {},
                                              at::Reduction::None);
}

at::Tensor labels_in(const Batch& batch, const std::string& name = "labels") {
  return batch.tensors.at(name);
}

void add_vocab_loss(const HeadSpec& spec, nn::ModelDef& def) {
  const int64_t vocab = spec.vocab->vocab;
  auto tokens = [vocab](const State& out, const Batch& batch, const comm::Comm& tp) {
    const int64_t first = layout::split_range(vocab, tp.size(), tp.rank()).begin;
    if (out.has("loss")) return out.at("loss");
    return nn::cross_entropy_sum(out.at("logits"), labels_in(batch), first, tp);
  };
  if (!spec.rows) {
    def.loss = {tokens, true};
    def.loss_weight = [](const Batch& batch) { return nn::count_labels(labels_in(batch)); };
    return;
  }
  def.loss_terms = 2;
  auto both = [tokens, name = spec.rows->name, label = spec.second_label](
                  const State& out, const Batch& batch, const comm::Comm& tp) {
    return at::stack(
        {tokens(out, batch, tp), cross_entropy(out.at(name), labels_in(batch, label))});
  };
  def.loss = {both, true};
  def.loss_weight = [label = spec.second_label](const Batch& batch) {
    return nn::Counts{nn::count_labels(labels_in(batch)),
                      nn::count_labels(labels_in(batch, label))};
  };
}

/// Was a token replaced? Counts those that are no padding.
void add_replaced_loss(nn::ModelDef& def) {
  auto counted = [](const Batch& batch) {
    const at::Tensor labels = labels_in(batch);
    return batch.tensors.has("attention_mask") ? batch.tensors.at("attention_mask").eq(1)
                                               : at::ones_like(labels, at::kBool);
  };
  def.loss = [counted](const State& out, const Batch& batch, const comm::Comm&) {
    const at::Tensor labels = labels_in(batch).masked_select(counted(batch));
    if (labels.ne(0).logical_and(labels.ne(1)).any().item<bool>())
      throw base::ConfigError(fmt::format(
          "head pretraining is trained on labels 0 (an original token) and 1 (a replaced one), but those of a batch go from {} "
          "to {}: take a data.dataset that makes such labels, or head masked_lm",
          labels.min().item<int64_t>(), labels.max().item<int64_t>()));
    const at::Tensor items = binary_entropy(out.at("scores").squeeze(-1), labels_in(batch));
    return items.masked_fill(counted(batch).logical_not(), 0).sum();
  };
  def.loss_weight = [counted](const Batch& batch) { return counted(batch).sum().item<int64_t>(); };
}

/// Half of the first answer's token, half of the last one's; a place outside of the row counts
/// nothing.
void add_span_loss(nn::ModelDef& def) {
  def.loss_terms = 2;
  def.loss = [](const State& out, const Batch& batch, const comm::Comm&) {
    const at::Tensor& scores = out.at("scores");
    auto half = [&](int64_t which, const char* name) {
      const at::Tensor places = labels_in(batch, name).clamp(0, scores.size(1));
      return cross_entropy(scores.select(2, which), places, scores.size(1)) / 2;
    };
    return at::stack({half(0, "start_positions"), half(1, "end_positions")});
  };
  def.loss_weight = [](const Batch& batch) {
    auto count = [&](const char* name) {
      return labels_in(batch, name).lt(batch.seq).sum().item<int64_t>();
    };
    return nn::Counts{count("start_positions"), count("end_positions")};
  };
}

void add_class_loss(const HeadSpec& spec, nn::ModelDef& def) {
  const std::string problem = spec.problem.empty() && spec.rows && spec.rows->labels == 1 &&
                                      spec.kind != HeadKind::multiple_choice
                                  ? "regression"
                                  : spec.problem;
  if (problem == "regression" || problem == "multi_label_classification") {
    const bool squares = problem == "regression";
    def.loss = [squares](const State& out, const Batch& batch, const comm::Comm&) {
      const at::Tensor scores = out.at("scores").to(at::kDouble),
                       labels = labels_in(batch).to(at::kDouble).view(scores.sizes());
      return squares ? (scores - labels).square().sum() : binary_entropy(scores, labels).sum();
    };
    def.loss_weight = [](const Batch& batch) { return labels_in(batch).numel(); };
    return;
  }
  // Labels may be shares of the classes, as mixed images have them.
  def.loss = [](const State& out, const Batch& batch, const comm::Comm&) {
    const at::Tensor& labels = labels_in(batch);
    if (!labels.is_floating_point()) return cross_entropy(out.at("scores"), labels);
    return (out.at("scores").to(at::kDouble).log_softmax(-1) * labels.to(at::kDouble)).sum().neg();
  };
  def.loss_weight = [](const Batch& batch) {
    const at::Tensor& labels = labels_in(batch);
    return labels.is_floating_point() ? labels.size(0) : nn::count_labels(labels);
  };
}

std::vector<nn::BatchTensor> tensors_of(const HeadSpec& spec) {
  switch (spec.kind) {
    case HeadKind::masked_lm: return {{"attention_mask"}, {"labels"}};
    case HeadKind::pretraining:
      return spec.rows ? std::vector<nn::BatchTensor>{{"labels"}, {spec.second_label, 0}}
                       : std::vector<nn::BatchTensor>{{"labels"}};
    case HeadKind::sequence_classification:
    case HeadKind::multiple_choice:
      return {{"labels", spec.problem == "multi_label_classification" ? 1 : 0}};
    case HeadKind::question_answering: return {{"start_positions", 0}, {"end_positions", 0}};
    case HeadKind::embedding: return {};
    case HeadKind::image_classification:
    case HeadKind::distillation: return {{"pixel_values", 3}, {"labels", -1}};
    case HeadKind::seq2seq: return {{"decoder_input_ids"}, {"labels"}};
    case HeadKind::token_classification:
    case HeadKind::causal_lm: return {{"labels"}};
  }
  return {};
}

}  // namespace

void add_head(const HeadSpec& spec, nn::ModelDef& def) {
  for (const nn::BatchTensor& one : tensors_of(spec)) def.trains_on.push_back(one);
  def.generates = spec.kind == HeadKind::seq2seq || spec.kind == HeadKind::causal_lm;
  if (spec.vocab) def.policy.push_back({spec.vocab->table, nn::Style::vocab});
  def.layers.push_back(
      {"head", false, [spec](Builder& b) { return std::make_unique<Head>(b, spec); }});
  const bool reads_ids = spec.rows && (spec.rows->pool == RowPool::last_end || spec.rows->pool == RowPool::before_end);
  if (reads_ids && std::ranges::any_of(def.layers, [](const nn::LayerDef& layer) { return !layer.inputs.empty(); }))
    def.layers.back().inputs = {"input_ids"};
  if (spec.vocab) return add_vocab_loss(spec, def);
  if (spec.kind == HeadKind::pretraining) return add_replaced_loss(def);
  if (spec.kind == HeadKind::question_answering) return add_span_loss(def);
  if (spec.kind != HeadKind::embedding) return add_class_loss(spec, def);
  def.loss = [](const State&, const Batch&, const comm::Comm&) -> at::Tensor {
    throw base::ConfigError(
        "model.head embedding has no loss of its own; give model.head another one to train or "
        "evaluate");
  };
  def.loss_weight = [](const Batch&) { return 0; };
}

std::string name_of(HeadKind kind) { return names_of(kind).name; }
std::string suffix_of(HeadKind kind) { return names_of(kind).suffix; }

std::string in_words(const std::vector<HeadKind>& heads) {
  std::vector<std::string> words;
  for (const HeadKind kind : heads) words.emplace_back(names_of(kind).words);
  return fmt::format("{}", fmt::join(words, ", "));
}

at::Tensor whole_stream(const nn::Builder& b, const at::Tensor& x, const nn::Context& context) {
  if (!b.stream().is_split()) return x;
  return dist::redistribute(x, b.tp(), b.stream(), layout::Sbp::invariant(), context.seq);
}

at::Tensor own_stream(const nn::Builder& b, const at::Tensor& x, const nn::Context& context) {
  if (!b.stream().is_split()) return x;
  return dist::redistribute(x, b.tp(), layout::Sbp::invariant(), b.stream(), context.seq);
}

void add_scores(HeadSpec& head, const FamilyHeads& family, int64_t labels, const base::Json& tree) {
  switch (head.kind) {
    case HeadKind::pretraining:
      if (family.pretraining) {
        head.tokens = family.pretraining;
        return;
      }
      head.rows = family.relation;
      head.rows->name = "relationship";
      head.vocab = family.vocab;
      return;
    case HeadKind::sequence_classification:
    case HeadKind::image_classification:
      head.rows = family.classes;
      head.rows->labels = labels;
      return;
    case HeadKind::multiple_choice:
      head.rows = family.choices;
      head.rows->labels = 1;
      return;
    case HeadKind::token_classification:
      head.tokens = {.dropout = family.token_dropout, .out = family.token_out, .labels = labels};
      return;
    case HeadKind::question_answering:
      head.tokens = {.dropout = family.answer_dropout, .out = "qa_outputs", .labels = 2};
      return;
    case HeadKind::embedding:
      head.vector = vector_of(tree);
      return;
    default:
      head.vocab = family.vocab;
  }
}

HeadKind head_of(const base::Json& tree, const std::string& family,
                 const std::vector<HeadKind>& has, HeadKind otherwise) {
  std::string given, key;
  for (HeadKind kind : has) {
    if (tree.contains("head") && tree["head"] == name_of(kind)) return kind;
    key += (key.empty() ? "" : ", ") + name_of(kind);
  }
  if (tree.contains("head"))
    throw base::ConfigError(
        fmt::format("model.head is {}, which family {} has not; choose one of: {}",
                    tree["head"].dump(), family, key));
  if (!tree.contains("architectures") || !tree["architectures"].is_array() ||
      tree["architectures"].empty())
    return otherwise;
  const std::string named =
      tree["architectures"][0].is_string() ? tree["architectures"][0].get<std::string>() : "";
  if (named.ends_with("LMHeadModel")) return otherwise;
  const bool bare = named.ends_with(suffix_of(HeadKind::embedding)) && named.find("For") == named.npos;
  for (HeadKind kind : has)
    if (kind == HeadKind::embedding ? bare : named.ends_with(suffix_of(kind))) return kind;
  if (bare) return otherwise;
  throw base::ConfigError(fmt::format(
      "model.architectures names {}, which family {} has not; give model.head instead, one of: {}",
      named, family, key));
}

RowVector vector_of(const base::Json& tree) {
  const base::Json pooling = tree.value("pooling", base::Json("mean")),
                   normalize = tree.value("normalize", base::Json(false));
  if (pooling != "mean" && pooling != "cls" && pooling != "last")
    throw base::ConfigError(fmt::format("model.pooling is {}, expected mean, cls or last", pooling.dump()));
  if (!normalize.is_boolean())
    throw base::ConfigError(
        fmt::format("model.normalize is {}, expected true or false", normalize.dump()));
  return {.pool = pooling == "mean" ? RowPool::mean : pooling == "cls" ? RowPool::first : RowPool::last,
          .normalize = normalize.get<bool>()};
}

int64_t labels_of(const base::Json& tree, int64_t otherwise) {
  if (tree.contains("num_labels") && tree["num_labels"].is_number_integer())
    return tree["num_labels"].get<int64_t>();
  if (tree.contains("id2label") && tree["id2label"].is_object())
    return static_cast<int64_t>(tree["id2label"].size());
  return otherwise;
}

void write_head(base::Json& tree, const std::string& family_name, HeadKind kind, int64_t labels) {
  tree.erase("head");
  tree.erase("num_labels");
  tree["architectures"] = {family_name + suffix_of(kind)};
  if (labels_of(tree, -1) == labels) return;
  base::Json names = base::Json::object(), ids = base::Json::object();
  for (int64_t i = 0; i < labels; ++i) {
    names[std::to_string(i)] = fmt::format("LABEL_{}", i);
    ids[fmt::format("LABEL_{}", i)] = i;
  }
  tree["id2label"] = names;
  tree["label2id"] = ids;
}

}  // namespace trireme::models
