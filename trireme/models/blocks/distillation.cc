#include "trireme/models/blocks/distillation.h"

#include <ATen/ATen.h>


namespace trireme::models {
namespace {

using layout::Init;
using nn::Batch;
using nn::Builder;
using nn::Context;
using nn::State;

class Head : public nn::Layer {
 public:
  Head(const Builder& b, const DistillationSpec& spec)
      : spec_(spec),
        builder_(b),
        norm_(b.whole() / spec.norm, spec.hidden, spec.norm_kind),
        first_(b.whole() / "cls_classifier", spec.hidden, spec.labels,
               {.init = Init::normal(spec.deviation)}),
        second_(b.whole() / "distillation_classifier", spec.hidden, spec.labels,
                {.init = Init::normal(spec.deviation)}) {
    if (!spec.teacher) return;
    Builder companion = b.companion(kTeacher, spec.teacher->policy);
    for (const nn::LayerDef& link : spec.teacher->layers) teacher_.push_back(link.make(companion));
  }

  State forward(State in, const Context& given) override {
    const Context context = given.over(spec_.positions.of(given.batch.shape()));
    at::Tensor x = whole_stream(builder_, in.at("hidden"), context);
    x = norm_.forward(x.narrow(1, 0, 2), context);
    const at::Tensor first = first_.forward(x.select(1, 0), context),
                     second = second_.forward(x.select(1, 1), context);
    State out{{"scores", (first + second) / 2}, {"first", first}, {"second", second}};
    if (!teacher_.empty()) out.set("teacher", taught(given));
    return out;
  }

  nn::StateSpec describe(const nn::StateSpec&, const nn::BatchShape& shape) const override {
    nn::StateSpec out;
    for (const char* name : {"scores", "first", "second", "teacher"})
      if (std::string_view(name) != "teacher" || !teacher_.empty())
        out.push_back({name,
                       {shape.rows, spec_.labels},
                       builder_.options().dtype,
                       std::string_view(name) != "teacher"});
    return out;
  }

  double flops(int64_t seq) const override {
    double sum = 4.0 * static_cast<double>(spec_.hidden * spec_.labels);
    for (const auto& layer : teacher_) sum += layer->flops(seq);
    return sum;
  }

 private:
  /// The teacher's scores of what the batch shows, without dropout.
  at::Tensor taught(const Context& given) const {
    at::NoGradGuard no_grad;
    Context context = given;
    context.mode = nn::Mode::eval;
    State state;
    for (const auto& layer : teacher_) state = layer->forward(std::move(state), context);
    return state.at("scores").detach();
  }

  DistillationSpec spec_;
  Builder builder_;
  AnyNorm norm_;
  nn::Linear first_, second_;
  std::vector<std::unique_ptr<nn::Layer>> teacher_;
};

at::Tensor cross_entropy(const at::Tensor& scores, const at::Tensor& labels) {
  // Labels may be shares of the classes, as mixed images have them.
  return at::cross_entropy_loss(scores.to(at::kDouble),
                                labels.is_floating_point() ? labels.to(at::kDouble) : labels, {},
                                at::Reduction::Sum);
}

}  // namespace

void add_distillation(const DistillationSpec& spec, nn::ModelDef& def) {
  def.generates = false;
  def.trains_on = {{"pixel_values", 3}, {"labels", -1}};
  def.layers.push_back(
      {"head", false, [spec](Builder& b) { return std::make_unique<Head>(b, spec); }});
  if (spec.teacher) def.layers.back().inputs = {"pixel_values"};
  def.loss = [spec](const State& out, const Batch& batch, const comm::Comm&) {
    const at::Tensor labels = batch.tensors.at("labels"), &second = out.at("second");
    at::Tensor from_teacher;
    if (!out.has("teacher")) {
      from_teacher = cross_entropy(second, labels);
    } else if (spec.soft) {
      // As its authors: a mean over classes too.
      const auto shares = [&](const at::Tensor& scores) {
        return (scores.to(at::kDouble) / spec.temperature).log_softmax(-1);
      };
      const at::Tensor wanted = shares(out.at("teacher"));
      from_teacher = (wanted.exp() * (wanted - shares(second))).sum() *
                     (spec.temperature * spec.temperature / static_cast<double>(spec.labels));
    } else {
      from_teacher = cross_entropy(second, out.at("teacher").argmax(-1));
    }
    return (1 - spec.alpha) * cross_entropy(out.at("first"), labels) + spec.alpha * from_teacher;
  };
  def.loss_weight = [](const Batch& batch) { return batch.rows; };
}

}  // namespace trireme::models
