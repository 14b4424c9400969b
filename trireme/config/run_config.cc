#include "trireme/config/run_config.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "trireme/base/error.h"

namespace trireme::config {

using base::ConfigError;

namespace {

constexpr int64_t kMaxCount = int64_t{1} << 53;  // exact as a double, and far from overflow

int64_t ceil_div(int64_t a, int64_t b) {
  return a / b + (a % b != 0);
}

int64_t times(int64_t a, int64_t b, std::string_view what) {
  int64_t product;
  if (__builtin_mul_overflow(a, b, &product) || product > kMaxCount) {
    throw ConfigError(fmt::format("{}: {} x {} is too large", what, a, b));
  }
  return product;
}

}  // namespace

void check_amp(const Train& train) {
  const Amp& amp = train.amp;
  if (!amp.enabled) return;
  if (train.dtype != "fp32") {
    throw ConfigError(fmt::format(
        "train.dtype {} with train.amp.enabled: mixed precision keeps its master weights in fp32; "
        "set train.dtype=fp32 or train.amp.enabled=false",
        train.dtype));
  }
  if (amp.dtype != "fp16" && amp != Amp{.enabled = true, .dtype = amp.dtype, .reduce_dtype = amp.reduce_dtype}) {
    throw ConfigError(
        fmt::format("train.amp: {} has fp32's range and needs no loss scale; remove the keys that "
                    "are about it, or set train.amp.dtype=fp16",
                    amp.dtype));
  }
  if (!(amp.min_scale <= amp.initial_scale && amp.initial_scale <= amp.max_scale)) {
    throw ConfigError(fmt::format(
        "train.amp: expected min_scale <= initial_scale <= max_scale, given {}, {} and {}",
        amp.min_scale, amp.initial_scale, amp.max_scale));
  }
  if (amp.backoff_factor == 0)
    throw ConfigError("train.amp.backoff_factor: 0 would end the scale; give 0.5, for example");
}

void check_consistent(const RunConfig& config) {
  const Train& train = config.train;
  if (!config.model.is_object()) {
    throw ConfigError("model: expected keys such as family: gpt2, or pretrained: DIR");
  }
  int lengths = train.train_iter.has_value() + train.train_epoch.has_value() +
                train.train_samples.has_value() + train.train_tokens.has_value();
  if (lengths > 1) {
    throw ConfigError(
        "train: give one of train_iter, train_epoch, train_samples and train_tokens, and set the "
        "others to null");
  }
  if (train.train_epoch && *train.train_epoch <= 0) {
    throw ConfigError("train.train_epoch: expected more than 0 passes over the data");
  }
  const BatchRampup& rampup = train.batch_rampup;
  if (int given = rampup.start.has_value() + rampup.increment.has_value() + rampup.samples.has_value();
      given != 0 && given != 3) {
    throw ConfigError("train.batch_rampup: give start, increment and samples, or none of them");
  }
  check_amp(train);
  check_scheduler(train.scheduler);
  const Dist& dist = train.dist;
  if (dist.schedule_file && (dist.schedule != Dist{}.schedule || dist.chunks)) {
    throw ConfigError(fmt::format(
        "train.dist: schedule_file {} is the whole schedule, so {} would have no effect; leave one "
        "of them out",
        *dist.schedule_file,
        dist.chunks ? fmt::format("chunks {}", *dist.chunks) : "schedule " + dist.schedule));
  }
  if (dist.auto_memory_mb && dist.schedule != "auto") {
    throw ConfigError(
        fmt::format("train.dist.auto_memory_mb {} is what schedule auto may choose within, but the "
                    "schedule is {}; set it to null, or the schedule to auto",
                    *dist.auto_memory_mb, dist.schedule_file.value_or(dist.schedule)));
  }
  if (dist.auto_choice && dist.schedule != "auto") {
    throw ConfigError(fmt::format("train.dist.auto_choice {} is what schedule auto chose, but the schedule is {}; set it to "
                                  "null, or the schedule to auto",
                                  *dist.auto_choice, dist.schedule_file.value_or(dist.schedule)));
  }
  if (dist.auto_memory_mb && !(*dist.auto_memory_mb > 0)) {
    throw ConfigError("train.dist.auto_memory_mb: 0 would rule every schedule out; null: no limit");
  }
  if (dist.balance == "cost" && dist.custom_pipeline_stage_id) {
    throw ConfigError(
        "train.dist: balance cost would have no effect beside custom_pipeline_stage_id, which "
        "shares the layers out; leave one of them out");
  }
  if (train.evaluation.eval_iter && train.evaluation.eval_samples) {
    throw ConfigError(fmt::format(
        "train.evaluation: eval_iter {} and eval_samples {} both set the length; set one to null",
        *train.evaluation.eval_iter, *train.evaluation.eval_samples));
  }
  if (train.checkpointer.keep_best && (!train.evaluation.enabled || config.data.valid.empty())) {
    throw ConfigError(
        fmt::format("train.checkpointer.keep_best: {}, but the run evaluates nothing; enable "
                    "train.evaluation and name a dataset in data.valid",
                    *train.checkpointer.keep_best));
  }
  if (train.checkpointer.keep_best) {
    std::vector<std::string> measured{"eval_loss"};
    for (const std::string& name : train.evaluation.metrics) measured.push_back("eval_" + name);
    if (std::ranges::find(measured, *train.checkpointer.keep_best) == measured.end())
      throw ConfigError(fmt::format(
          "train.checkpointer.keep_best: {} is not measured; give one of {}, or add its metric to "
          "train.evaluation.metrics",
          *train.checkpointer.keep_best, fmt::join(measured, ", ")));
  }
  if (train.evaluation.ema && !config.optim.ema.decay)
    throw ConfigError(
        "train.evaluation.ema: the run keeps no moving averages of the weights; set optim.ema.decay");
  if (config.optim.betas.size() != 2 || config.optim.betas[0] >= 1 || config.optim.betas[1] >= 1) {
    throw ConfigError(
        fmt::format("optim.betas: expected two numbers of at least 0 and below 1, given [{}]",
                    fmt::join(config.optim.betas, ", ")));
  }
  if (config.optim.clip_grad_max_norm && *config.optim.clip_grad_max_norm == 0) {
    throw ConfigError(
        "optim.clip_grad_max_norm: 0 would remove all gradients; null switches clipping off");
  }
  if (config.optim.clip_grad_value && *config.optim.clip_grad_value == 0) {
    throw ConfigError(
        "optim.clip_grad_value: 0 would remove all gradients; null switches clipping off");
  }
  if (config.optim.ema.decay == 1)
    throw ConfigError("optim.ema.decay: 1 would keep the first weights; give less");
  for (const ParamGroup& group : config.optim.groups) {
    if (group.pattern.empty())
      throw ConfigError("optim.groups: a group without a pattern; give one, such as '*.bias'");
    if (group.freeze && (group.lr_scale != 1 || group.weight_decay)) {
      throw ConfigError(
          fmt::format("optim.groups: '{}' is frozen, so lr_scale and weight_decay would have no "
                      "effect; remove them or freeze",
                      group.pattern));
    }
  }
  for (const auto* sources : {&config.data.train, &config.data.valid}) {
    double sum = 0;
    for (const DataSource& source : *sources) {
      if (source.path.empty() && source.type.value_or(config.data.dataset.value("name", "tokens")) == "tokens") throw ConfigError("data: a dataset without a path");
      sum += source.weight;
    }
    if (!sources->empty() && sum <= 0) {
      throw ConfigError(
          "data: the weights of the datasets add up to 0; give at least one a weight above 0");
    }
  }
}

void check_scheduler(const Scheduler& scheduler) {
  const auto refuse = [&](std::string_view key, std::string_view what) {
    throw ConfigError(fmt::format("train.scheduler.{}: {}", key, what));
  };
  if (scheduler.warmup_iter && scheduler.warmup_ratio != 0) {
    throw ConfigError(fmt::format(
        "train.scheduler: warmup_iter {} and warmup_ratio {} both set the warm-up; give one",
        *scheduler.warmup_iter, scheduler.warmup_ratio));
  }
  if (scheduler.warmup_ratio >= 1)
    refuse("warmup_ratio", "expected less than 1, so that the warm-up ends");
  if (scheduler.name == "warmup_step" && !scheduler.step_size)
    refuse("step_size", "warmup_step needs it: the steps between two drops of the rate");
  if (scheduler.name == "warmup_exponential" && !scheduler.gamma)
    refuse("gamma", "warmup_exponential needs it: the factor of each step, for example 0.999");
  if (scheduler.name == "warmup_multistep") {
    if (!scheduler.milestones || scheduler.milestones->empty())
      refuse("milestones", "warmup_multistep needs the steps at which the rate drops");
    if (std::ranges::adjacent_find(*scheduler.milestones, std::greater_equal<>()) !=
        scheduler.milestones->end())
      refuse("milestones", fmt::format("expected ascending steps, given [{}]",
                                       fmt::join(*scheduler.milestones, ", ")));
  }
  if (scheduler.name == "inverse_sqrt" && scheduler.warmup_ratio == 0 &&
      scheduler.warmup_iter.value_or(0) == 0)
    refuse("name",
           "inverse_sqrt needs a warm-up, whose end the rate falls from; give warmup_iter or "
           "warmup_ratio");
  if (scheduler.name == "one_cycle" && scheduler.warmup_method != "linear")
    refuse("warmup_method", "one_cycle rises along a cosine; leave it at linear");
}

Degrees resolve_degrees(const Dist& dist, int ranks) {
  int64_t tp = dist.tensor_parallel_size, pp = dist.pipeline_parallel_size;
  int64_t inner = times(tp, pp, "train.dist: tensor_parallel_size x pipeline_parallel_size");
  if (!dist.data_parallel_size && ranks % inner != 0) {
    throw ConfigError(
        fmt::format("train.dist: {0} ranks cannot be shared out: tensor_parallel_size {1} x "
                    "pipeline_parallel_size {2} = {3} "
                    "does not divide {0}; start a multiple of {3} ranks or change the factors",
                    ranks, tp, pp, inner));
  }
  int64_t dp = dist.data_parallel_size ? *dist.data_parallel_size : ranks / inner;
  int64_t product = times(dp, inner, "train.dist: the parallel sizes");
  if (product != ranks) {
    throw ConfigError(
        fmt::format("train.dist: data_parallel_size {} x tensor_parallel_size {} x "
                    "pipeline_parallel_size {} = {}, but there "
                    "{} {} rank{}; start {} (--ranks {}), or set data_parallel_size to null to use "
                    "what is left",
                    dp, tp, pp, product, ranks == 1 ? "is" : "are", ranks, ranks == 1 ? "" : "s",
                    product, product));
  }
  return {static_cast<int>(dp), static_cast<int>(tp), static_cast<int>(pp)};
}

BatchPlan resolve_batch(const Train& train, int dp) {
  const auto &micro = train.train_micro_batch_size, &steps = train.num_accumulation_steps,
             &global = train.global_batch_size;
  if (!micro && !global) {
    throw ConfigError("train: give train_micro_batch_size or global_batch_size");
  }
  auto undivided = [&](std::string_view wanted, std::string_view name, int64_t value) {
    return ConfigError(
        fmt::format("train: no {0} fits: global_batch_size {1} / ({2} {3} x data_parallel_size {4} "
                    "= {5}) is {6} with a remainder of {7}; "
                    "change one of them, for example global_batch_size={8}",
                    wanted, *global, name, value, dp, value * dp, *global / (value * dp),
                    *global % (value * dp), ceil_div(*global, value * dp) * value * dp));
  };
  BatchPlan plan;
  if (!global) {
    plan.micro_batch_size = *micro;
    plan.micro_batches = steps.value_or(1);
    plan.global_batch_size =
        times(times(*micro, dp, "train: the batch"), plan.micro_batches, "train: the batch");
    return plan;
  }
  plan.global_batch_size = *global;
  if (!micro) {
    plan.micro_batches = steps.value_or(1);
    int64_t share = times(plan.micro_batches, dp, "train: the batch");
    if (*global % share != 0) {
      throw undivided("train_micro_batch_size", "num_accumulation_steps", plan.micro_batches);
    }
    plan.micro_batch_size = *global / share;
    return plan;
  }
  plan.micro_batch_size = *micro;
  int64_t share = times(*micro, dp, "train: the batch");
  if (steps) {
    plan.micro_batches = *steps;
    int64_t product = times(share, *steps, "train: the batch");
    if (product != *global) {
      throw ConfigError(
          fmt::format("train: train_micro_batch_size {} x data_parallel_size {} x "
                      "num_accumulation_steps {} = {}, but "
                      "global_batch_size is {}; set one of the three to null to have it computed",
                      *micro, dp, *steps, product, *global));
    }
    return plan;
  }
  if (*global % share != 0)
    throw undivided("num_accumulation_steps", "train_micro_batch_size", *micro);
  plan.micro_batches = *global / share;
  return plan;
}

int64_t batch_size_at(const BatchRampup& rampup, int64_t global_batch_size, int64_t consumed) {
  if (!rampup.start) return global_batch_size;
  const int64_t rise = global_batch_size - *rampup.start, step = *rampup.increment;
  if (rise < 0 || rise % step != 0) {
    throw ConfigError(
        fmt::format("train.batch_rampup: rises of {} from {} do not lead to the {} samples of a step; "
                    "choose an increment that divides {}",
                    step, *rampup.start, global_batch_size, std::max<int64_t>(rise, 0)));
  }
  if (consumed >= *rampup.samples) return global_batch_size;
  const double done = static_cast<double>(consumed) / static_cast<double>(*rampup.samples);
  return *rampup.start + step * static_cast<int64_t>(done * static_cast<double>(rise / step));
}

namespace {

/// Goes through the steps of a ramp-up until `samples` are consumed or `steps` are done; whole steps after it by
/// arithmetic.
RunLength length_of(const Train& train, int64_t global_batch_size, std::optional<int64_t> steps,
                    std::optional<int64_t> samples, bool drop_last = false) {
  RunLength length, before;  // `before`: without the last step
  const auto over = [&] {
    return (steps && length.steps >= *steps) || (samples && length.samples >= *samples);
  };
  for (int64_t batch; !over() && (batch = batch_size_at(train.batch_rampup, global_batch_size,
                                                        length.samples)) < global_batch_size;
       ++length.steps) {
    before = length;
    length.samples += batch;
  }
  if (steps) {
    length.samples += times(*steps - length.steps, global_batch_size, "train.train_iter x global_batch_size");
    length.steps = *steps;
  } else if (!drop_last) {
    length.steps += ceil_div(std::max<int64_t>(*samples - length.samples, 0), global_batch_size);
    length.samples = *samples;
  } else if (length.samples > *samples) {
    length = before;
  } else {
    const int64_t whole = (*samples - length.samples) / global_batch_size;
    length = {length.steps + whole, length.samples + whole * global_batch_size};
  }
  if (drop_last && length.steps == 0) {
    throw ConfigError(fmt::format(
        "data.last_batch: drop leaves no step of {} samples, which are fewer than the {} of one; give more "
        "data, smaller batches or last_batch: shorter",
        *samples, batch_size_at(train.batch_rampup, global_batch_size, 0)));
  }
  return length;
}

}  // namespace

RunLength resolve_length(const RunConfig& config, int64_t global_batch_size,
                         int64_t epoch_samples) {
  const Train& train = config.train;
  if (train.train_iter) return length_of(train, global_batch_size, train.train_iter, {});
  int64_t samples = 0;
  if (train.train_samples) {
    samples = *train.train_samples;
  } else if (train.train_tokens) {
    samples = ceil_div(*train.train_tokens, config.data.seq_length);
  } else if (train.train_epoch) {
    double exact = std::ceil(static_cast<double>(epoch_samples) * *train.train_epoch);
    if (!(exact >= 1 && exact <= static_cast<double>(kMaxCount))) {
      throw ConfigError(fmt::format(
          "train.train_epoch: {} passes over {} samples are {} samples; expected 1 to 2^53",
          *train.train_epoch, epoch_samples, exact));
    }
    samples = static_cast<int64_t>(exact);
  } else {
    throw ConfigError(
        "train: give the run's length: train_iter, train_epoch, train_samples or train_tokens");
  }
  return length_of(train, global_batch_size, {}, samples, config.data.last_batch == "drop");
}

std::optional<std::vector<int>> resolve_stage_layers(const Dist& dist, int layers, int stages) {
  if (dist.pipeline_num_layers && *dist.pipeline_num_layers != layers) {
    throw ConfigError(fmt::format(
        "train.dist.pipeline_num_layers: {}, but the model has {} layers; set it to null",
        *dist.pipeline_num_layers, layers));
  }
  if (!dist.custom_pipeline_stage_id) return std::nullopt;
  const std::vector<int>& ids = *dist.custom_pipeline_stage_id;
  auto refuse = [&](const std::string& why) {
    return ConfigError(
        fmt::format("train.dist.custom_pipeline_stage_id [{}]: {}", fmt::join(ids, ", "), why));
  };
  if (static_cast<int>(ids.size()) != layers) {
    throw refuse(fmt::format("{} entries, but the model has {} layers; give one a layer",
                             ids.size(), layers));
  }
  std::vector<int> counts(stages, 0);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= stages) {
      throw refuse(
          fmt::format("layer {} is on stage {}, but the pipeline's are 0 to {} (stages x chunks)",
                      i, ids[i], stages - 1));
    }
    if (i > 0 && ids[i] < ids[i - 1]) {
      throw refuse(fmt::format("layer {} goes back from stage {} to {}; stages ascend", i,
                               ids[i - 1], ids[i]));
    }
    ++counts[ids[i]];
  }
  for (int s = 0; s < stages; ++s) {
    if (counts[s] == 0) throw refuse(fmt::format("stage {} of {} has no layer", s, stages));
  }
  return counts;
}

std::optional<int64_t> resolve_eval_samples(const Train& train) {
  const Evaluation& evaluation = train.evaluation;
  if (!evaluation.eval_iter) return evaluation.eval_samples;
  int64_t batch = train.global_batch_size.value_or(0);
  if (batch == 0) {
    batch = times(train.train_micro_batch_size.value_or(1),
                  train.num_accumulation_steps.value_or(1), "train: the batch");
  }
  return times(*evaluation.eval_iter, batch, "train.evaluation.eval_iter x the batch");
}

RunConfig resolved(RunConfig config, int ranks) {
  config.train.evaluation.eval_samples = resolve_eval_samples(config.train);
  config.train.evaluation.eval_iter.reset();
  Degrees degrees = resolve_degrees(config.train.dist, ranks);
  BatchPlan batch = resolve_batch(config.train, degrees.dp);
  config.train.dist.data_parallel_size = degrees.dp;
  config.train.train_micro_batch_size = batch.micro_batch_size;
  config.train.num_accumulation_steps = batch.micro_batches;
  config.train.global_batch_size = batch.global_batch_size;
  return config;
}

}  // namespace trireme::config
