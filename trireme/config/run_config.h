#pragma once
// RunConfig: everything that a run depends on, as plain structs. Each describes itself once
// (base/fields.h); the reader, the overrides, the resolved file, --help-config and docs/config.md
// follow from that.
//
// A RunConfig is data: it holds no rank, no file handle and no tensor. `model` stays a free tree,
// which the registry in models checks against the family. What several keys say together is settled
// here, by pure functions:
//
//   RunConfig config = load("configs/gpt2_tiny.yaml", {"train.dist.tensor_parallel_size=2"});
//   Degrees degrees = resolve_degrees(config.train.dist, ranks);
//   BatchPlan batch = resolve_batch(config.train, degrees.dp);

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/dtype.h"
#include "trireme/base/fields.h"
#include "trireme/base/json.h"

namespace trireme::config {

using base::Field;
using base::Json;

struct DataSource {
  std::string path = {};
  double weight = 1.0;
  std::optional<std::string> type = {};
  Json options = Json::object();

  template <class Self, class V>
  static void visit(Self& self, V&& v) {
    v("path", self.path, Field{"indexed dataset, without .idx or .bin; or what the type reads"});
    v("weight", self.weight, Field{"share of the samples, relative to the other sources", 0});
    v("type", self.type, Field{"what samples are made of it; null: data.dataset.name"});
    v("options", self.options, Field{"of the type; they go before those of data.dataset"});
  }
  bool operator==(const DataSource&) const = default;
};

struct Data {
  std::vector<DataSource> train = {}, valid = {};
  Json dataset = Json::object({{"name", "tokens"}});
  std::string blend = "exact";
  int64_t seq_length = 1024;
  int prefetch = 2, workers = 1;
  std::string last_batch = "shorter";

  template <class Self, class V>
  static void visit(Self& self, V&& v) {
    v("train", self.train, Field{"datasets to train on"});
    v("valid", self.valid, Field{"datasets to evaluate on; empty: no evaluation"});
    v("dataset", self.dataset,
      Field{"what samples are made of the sources: `name` and its options (docs/data.md)"});
    v("blend", self.blend,
      Field{.help = "how sources are mixed: each within one sample of its share, or in Megatron-LM's order",
            .choices = {"exact", "megatron"}});
    v("seq_length", self.seq_length, Field{"tokens of a sample", 1});
    v("prefetch", self.prefetch, Field{"steps that the loader reads ahead", 1, 1024});
    v("workers", self.workers,
      Field{"threads of a rank that make samples, for images and tokenizing; no sample depends on it", 1, 1024});
    v("last_batch", self.last_batch,
      Field{.help = "a last step of training with fewer samples than the others (train_epoch, train_samples, "
                    "train_tokens): shorter, left out, or filled up with samples that count for nothing",
            .choices = {"shorter", "drop", "pad"}});
  }
  bool operator==(const Data&) const = default;
};

struct Dist {
  std::optional<int> data_parallel_size = {};
  int tensor_parallel_size = 1, pipeline_parallel_size = 1;
  std::string schedule = "1f1b";
  std::optional<std::string> schedule_file = {};
  std::optional<int> chunks = {};
  std::string balance = "layers";
  std::optional<double> auto_memory_mb = {};
  std::optional<std::string> auto_choice = {};
  bool sequence_parallel = false;
  std::string expert_parallel = "tp";
  std::optional<int> pipeline_num_layers = {};
  std::optional<std::vector<int>> custom_pipeline_stage_id = {};
  double timeout_s = 600;

  template <class Self, class V>
  static void visit(Self& self, V&& v) {
    v("data_parallel_size", self.data_parallel_size,
      Field{"replicas of the model; null: what is left of the ranks", 1});
    v("tensor_parallel_size", self.tensor_parallel_size, Field{"ranks that share each layer", 1});
    v("pipeline_parallel_size", self.pipeline_parallel_size,
      Field{"stages, each with a part of the layers", 1});
    v("schedule", self.schedule,
      Field{.help = "order of the micro-batches in the pipeline",
            .choices = {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-2p", "zb-v", "v-half", "v-min",
                        "auto"}});
    v("schedule_file", self.schedule_file, Field{"a schedule of your own, in place of `schedule`"});
    v("chunks", self.chunks,
      Field{"virtual stages of each stage; null: the schedule's own number", 1});
    v("balance", self.balance,
      Field{.help = "what the virtual stages share evenly: the number of layers, or their cost, "
                    "that of the first and the last stage's embedding and head included",
            .choices = {"layers", "cost"}});
    v("auto_memory_mb", self.auto_memory_mb,
      Field{"schedule auto: MiB of activations that a rank may hold; null: no limit", 0, 1e9});
    v("auto_choice", self.auto_choice,
      Field{"schedule auto: the schedule.txt of an earlier run, taken where it was chosen for the same layout, batch and "
            "limits; null: choose"});
    v("sequence_parallel", self.sequence_parallel,
      Field{"split the residual stream along the sequence over the tensor-parallel ranks"});
    v("expert_parallel", self.expert_parallel,
      Field{.help = "what of a mixture's experts a data-parallel rank holds: its tensor-parallel ranks' parts of all of "
                    "them, or of its own share, to which the tokens of all data ranks travel",
            .choices = {"tp", "dp"}});
    v("pipeline_num_layers", self.pipeline_num_layers,
      Field{"layers that the stages share; null: the model's. Any other number is refused", 1});
    v("custom_pipeline_stage_id", self.custom_pipeline_stage_id,
      Field{"the virtual stage (of stages x chunks) of each layer, ascending, for example "
            "[0, 0, 0, 1]; null: as `balance` says",
            0});
    v("timeout_s", self.timeout_s,
      Field{"seconds after which a waiting communication counts as failed", 0.001, 1e9});
  }
  bool operator==(const Dist&) const = default;
};

struct Amp {
  bool enabled = false;
  std::string dtype = "bf16";
  std::string reduce_dtype = "fp32";
  std::optional<double> loss_scale = {};
  double initial_scale = 65536, growth_factor = 2, backoff_factor = 0.5;
  int64_t growth_interval = 1000, hysteresis = 2;
  double min_scale = 1, max_scale = 4294967296;
  bool report_overflow = false;

  template <class Self, class V>
  static void visit(Self& self, V&& v) {
    v("enabled", self.enabled,
      Field{"mixed precision: low-precision arithmetic, fp32 master weights"});
    v("dtype", self.dtype,
      Field{.help = "the low precision; given without `enabled` it switches the feature on",
            .choices = {"bf16", "fp16"}});
    v("reduce_dtype", self.reduce_dtype,
      Field{.help = "what gradients travel as between data-parallel ranks; sums add in fp32",
            .choices = {"fp32", "bf16"}});
    v("loss_scale", self.loss_scale,
      Field{"fp16: a fixed factor of the loss; null: one that moves with the overflows", 1});
    v("initial_scale", self.initial_scale, Field{"fp16: the moving factor's first value", 1});
    v("growth_factor", self.growth_factor, Field{"fp16: how far it rises at a time", 1});
    v("backoff_factor", self.backoff_factor, Field{"fp16: how far it falls at a time", 0, 1});
    v("growth_interval", self.growth_interval,
      Field{"fp16: steps in a row without overflow after which it rises", 1});
    v("hysteresis", self.hysteresis,
      Field{"fp16: it falls from this many overflows on; rising starts the count anew", 1});
    v("min_scale", self.min_scale, Field{"fp16: its smallest value", 1});
    v("max_scale", self.max_scale, Field{"fp16: its largest value", 1});
    v("report_overflow", self.report_overflow,
      Field{"fp16: name the first gradient that overflowed"});
  }
  /// reduce_dtype where it is not the gradients' own.
  std::optional<base::DType> travel_dtype() const {
    return enabled && reduce_dtype == "bf16" ? std::optional(base::DType::bf16) : std::nullopt;
  }
  bool operator==(const Amp&) const = default;
};

struct Divergence {
  std::string action = "stop";
  int64_t limit = 10;

  template <class Self, class V>
  static void visit(Self& self, V&& v) {
    v("action", self.action,
      Field{.help = "what follows on a loss or gradient that is not finite: the run stops, the step "
                    "is skipped, or it is taken as it is",
            .choices = {"stop", "skip", "ignore"}});
    v("limit", self.limit, Field{"skip: steps in a row, after which the run stops", 1});
  }
  bool operator==(const Divergence&) const = default;
};

struct ActivationCheckpoint {
  bool enabled = false;
  std::string mode = "full";
  int every = 1;
  std::optional<std::vector<int>> per_stage = {};

  template <class Self, class V>
  static void visit(Self& self, V&& v) {
    v("enabled", self.enabled, Field{"recompute activations in the backward pass to save memory"});
    v("mode", self.mode,
      Field{.help = "full: whole layers; selective: attention, whose inputs alone are kept",
            .choices = {"full", "selective"}});
    v("every", self.every, Field{"full: recompute every k-th layer", 1});
    v("per_stage", self.per_stage,
      Field{"full: how many blocks each pipeline stage recomputes, its first ones, for example [4, 2]; null: as "
            "`every` says",
            0});
  }
  bool operator==(const ActivationCheckpoint&) const = default;
};

struct ZeroOptimization {
  bool enabled = false;
  int stage = 1;

  template <class Self, class V>
  static void visit(Self& self, V&& v) {
    v("enabled", self.enabled,
      Field{"split the optimizer's work and memory over the replicas (ZeRO)"});
    v("stage", self.stage,
      Field{"0: nothing, 1: optimizer state, 2: and gradients, 3: and parameters; given without "
            "`enabled` it switches the feature on",
            0, 3});
  }
  /// The stage in force: 0 where the feature is off.
  int effective_stage() const { return enabled ? stage : 0; }
  bool operator==(const ZeroOptimization&) const = default;
};

struct Checkpointer {
  int64_t period = 1000;
  std::optional<int> max_to_keep = 3;
  std::optional<std::string> keep_best = {};
  std::string format = "split";
  bool async = false;

  template <class Self, class V>
  static void visit(Self& self, V&& v) {
    v("period", self.period,
      Field{"steps between checkpoints; the last step always writes one", 1});
    v("max_to_keep", self.max_to_keep, Field{"newest checkpoints that stay; null: all", 1});
    v("keep_best", self.keep_best,
      Field{"save after an evaluation where this is the best so far and keep that checkpoint, "
            "whatever max_to_keep; checkpoints/best names it: eval_loss, or eval_NAME of a NAME "
            "among train.evaluation.metrics"});
    v("format", self.format,
      Field{.help = "split: each rank writes its slices; merged: one Hugging Face folder",
            .choices = {"split", "merged"}});
    v("async", self.async,
      Field{"write files while training goes on: it waits for a copy of the state only, which takes "
            "a rank's share of the checkpoint in memory"});
  }
  bool operator==(const Checkpointer&) const = default;
};

struct Evaluation {
  bool enabled = true;
  int64_t eval_period = 1000;
  std::optional<int64_t> eval_iter = {}, eval_samples = {};
  std::vector<std::string> metrics = {};
  bool ema = false;

  template <class Self, class V>
  static void visit(Self& self, V&& v) {
    v("enabled", self.enabled, Field{"evaluate on data.valid, where that is given"});
    v("eval_period", self.eval_period,
      Field{"steps between evaluations; one follows the last step", 1});
    v("eval_iter", self.eval_iter,
      Field{"length of an evaluation in batches of global_batch_size samples; where that is not "
            "given, of train_micro_batch_size x num_accumulation_steps, whatever the layout",
            1});
    v("eval_samples", self.eval_samples,
      Field{"the same in samples, in place of eval_iter; both null: all of data.valid", 1});
    v("metrics", self.metrics, Field{"what to measure beside the loss: `accuracy`, a plugin's"});
    v("ema", self.ema, Field{"evaluate the weights' moving averages (optim.ema) in their place"});
  }
  bool operator==(const Evaluation&) const = default;
};

struct BatchRampup {
  std::optional<int64_t> start = {}, increment = {}, samples = {};

  template <class Self, class V>
  static void visit(Self& self, V&& v) {
    v("start", self.start, Field{"samples of the first step; null: no ramp-up", 1});
    v("increment", self.increment, Field{"samples that each rise adds, up to global_batch_size", 1});
    v("samples", self.samples,
      Field{"consumed samples over which the rises are spread evenly; from then on steps are whole",
            1});
  }
  bool operator==(const BatchRampup&) const = default;
};

struct Trace {
  std::optional<std::vector<int>> steps = {};

  template <class Self, class V>
  static void visit(Self& self, V&& v) {
    v("steps", self.steps,
      Field{"steps whose measured timeline is written to output_dir/trace, for example [10, 12]",
            1});
  }
  bool covers(int64_t step) const { return steps && std::ranges::count(*steps, step) > 0; }
  bool operator==(const Trace&) const = default;
};

struct Telemetry {
  bool csv = false;
  std::optional<int> prometheus_port = {};
  std::optional<double> peak_tflops = {};
  std::optional<int64_t> layer_norms = {};

  template <class Self, class V>
  static void visit(Self& self, V&& v) {
    v("csv", self.csv, Field{"write metrics.csv beside metrics.jsonl"});
    v("prometheus_port", self.prometheus_port,
      Field{"serve the latest metrics at http://0.0.0.0:PORT/metrics in Prometheus' text format, on "
            "rank 0's host; null: no server",
            1, 65535});
    v("peak_tflops", self.peak_tflops,
      Field{"what a rank could reach at most, in 10^12 operations a second, for the utilisation; "
            "null: measured with a matrix product at the start",
            1e-6, 1e6});
    v("layer_norms", self.layer_norms,
      Field{"steps between two reports of the 2-norms of each layer's gradients and parameters, in metrics.jsonl and "
            "TensorBoard; null: none",
            1});
  }
  bool operator==(const Telemetry&) const = default;
};

struct Scheduler {
  std::string name = "warmup_cosine";
  double warmup_ratio = 0;
  std::optional<int64_t> warmup_iter = {};
  double warmup_factor = 0.001;
  std::string warmup_method = "linear";
  double alpha = 0, eta_min = 0;
  std::optional<int64_t> step_size = {};
  std::optional<std::vector<int64_t>> milestones = {};
  std::optional<double> gamma = {};
  double end_learning_rate = 1e-4, power = 1;
  bool cycle = false;
  double decay_ratio = 0.1;
  std::string decay_method = "linear";
  Json options = Json::object();

  template <class Self, class V>
  static void visit(Self& self, V&& v) {
    v("name", self.name,
      Field{.help = "how the learning rate moves; steps count from 0, those of the warm-up too",
            .choices = {"warmup_constant", "warmup_linear", "warmup_cosine",
                        "warmup_cosine_annealing", "warmup_step", "warmup_multistep",
                        "warmup_exponential", "warmup_polynomial", "wsd", "inverse_sqrt",
                        "one_cycle"},
            .open = true});
    v("warmup_ratio", self.warmup_ratio, Field{"share of the run's steps that warm up", 0, 1});
    v("warmup_iter", self.warmup_iter, Field{"steps that warm up, in place of warmup_ratio", 0});
    v("warmup_factor", self.warmup_factor,
      Field{"the first step's learning rate over optim.lr", 0, 1});
    v("warmup_method", self.warmup_method,
      Field{.help = "linear: rises to where the curve is when the warm-up ends; constant: stays at "
                    "warmup_factor; one_cycle rises along a cosine",
            .choices = {"linear", "constant"}});
    v("alpha", self.alpha,
      Field{"warmup_cosine, warmup_linear, wsd, one_cycle: the end's learning rate over optim.lr",
            0, 1});
    v("eta_min", self.eta_min, Field{"warmup_cosine_annealing: the end's learning rate", 0});
    v("step_size", self.step_size, Field{"warmup_step: steps between two drops", 1});
    v("milestones", self.milestones,
      Field{"warmup_multistep: the steps at which the rate drops, ascending", 1});
    v("gamma", self.gamma,
      Field{"warmup_step, warmup_multistep: factor of a drop, null: 0.1; warmup_exponential: factor "
            "of each step",
            0, 1});
    v("end_learning_rate", self.end_learning_rate,
      Field{"warmup_polynomial: the end's learning rate", 0});
    v("power", self.power, Field{"warmup_polynomial: exponent, 1 is a line", 0, 100});
    v("cycle", self.cycle,
      Field{"warmup_polynomial: past the run's length, rise and fall again instead of staying"});
    v("decay_ratio", self.decay_ratio,
      Field{"wsd (warm-up, stable, decay): share of the run's steps that decay", 0, 1});
    v("decay_method", self.decay_method,
      Field{.help = "wsd: the decay's shape; sqrt: 1 minus the root of the share that is done",
            .choices = {"linear", "cosine", "sqrt"}});
    v("options", self.options, Field{"for a plugin's curve"});
  }
  bool operator==(const Scheduler&) const = default;
};

struct Train {
  std::string output_dir = "out/run";
  int64_t seed = 1234;
  std::optional<int64_t> train_iter = {};
  std::optional<double> train_epoch = {};
  std::optional<int64_t> train_samples = {}, train_tokens = {};
  std::optional<int64_t> train_micro_batch_size = {}, num_accumulation_steps = {},
                         global_batch_size = {};
  BatchRampup batch_rampup = {};
  Dist dist = {};
  Amp amp = {};
  Divergence divergence = {};
  ActivationCheckpoint activation_checkpoint = {};
  ZeroOptimization zero_optimization = {};
  Checkpointer checkpointer = {};
  Evaluation evaluation = {};
  Trace trace = {};
  Telemetry telemetry = {};
  Scheduler scheduler = {};
  std::vector<std::string> hooks = {};
  int64_t log_period = 20;
  std::string dtype = "fp32", fuse = "auto", device = "cpu";

  template <class Self, class V>
  static void visit(Self& self, V&& v) {
    v("output_dir", self.output_dir,
      Field{"folder of the run: configuration, metrics, logs, checkpoints"});
    v("seed", self.seed,
      Field{"draws the weights, dropout and the order of the data on any layout", 0});
    v("train_iter", self.train_iter, Field{"length of the run in steps (one length is given)", 1});
    v("train_epoch", self.train_epoch,
      Field{"length in passes over data.train; fractions allowed", 0, 1e9});
    v("train_samples", self.train_samples, Field{"length in samples", 1});
    v("train_tokens", self.train_tokens, Field{"length in tokens", 1});
    v("train_micro_batch_size", self.train_micro_batch_size,
      Field{"samples of a micro-batch on a data-parallel rank", 1});
    v("num_accumulation_steps", self.num_accumulation_steps,
      Field{"micro-batches of a step, those of the pipeline too", 1});
    v("global_batch_size", self.global_batch_size,
      Field{"samples of a step = train_micro_batch_size x data_parallel_size x "
            "num_accumulation_steps; "
            "the third of these follows from two, and one alone means no accumulation",
            1});
    v("batch_rampup", self.batch_rampup, Field{"smaller steps at the start of the run"});
    v("dist", self.dist, Field{"how the ranks are used"});
    v("amp", self.amp, Field{"mixed precision"});
    v("divergence", self.divergence, Field{"the watch over losses and gradients"});
    v("activation_checkpoint", self.activation_checkpoint, Field{"recomputation"});
    v("zero_optimization", self.zero_optimization, Field{"ZeRO"});
    v("checkpointer", self.checkpointer, Field{"checkpoints"});
    v("evaluation", self.evaluation, Field{"evaluation during training"});
    v("trace", self.trace, Field{"measured timelines of the pipeline"});
    v("telemetry", self.telemetry, Field{"where the time goes, and who else may read it"});
    v("scheduler", self.scheduler, Field{"learning rate over the run"});
    v("hooks", self.hooks, Field{"a plugin's hooks, called in this order"});
    v("log_period", self.log_period,
      Field{"steps between lines of the log, where no progress bar shows", 1});
    v("dtype", self.dtype,
      Field{.help = "type of weights and arithmetic where amp is off",
            .choices = {"fp32", "fp64"}});
    v("fuse", self.fuse,
      Field{.help = "fused kernels where they help (attention, norms, rotary positions, the head with "
                    "its cross entropy), or the plain operations that they stand for",
            .choices = {"auto", "off"}});
    v("device", self.device,
      Field{.help = "where tensors live; cuda gives each rank a GPU of its own (docs/clusters.md)",
            .choices = {"cpu", "cuda"}});
  }
  /// The type of weights and activations.
  const std::string& working_dtype() const { return amp.enabled ? amp.dtype : dtype; }
  bool operator==(const Train&) const = default;
};

struct ParamGroup {
  std::string pattern = {};
  double lr_scale = 1;
  std::optional<double> weight_decay = {};
  bool freeze = false;

  template <class Self, class V>
  static void visit(Self& self, V&& v) {
    v("pattern", self.pattern,
      Field{"the parameters' full names; * stands for any text, ? for a character, [ab] for one of "
            "these"});
    v("lr_scale", self.lr_scale, Field{"factor of their learning rate", 0});
    v("weight_decay", self.weight_decay, Field{"their decay; null: as for the others", 0});
    v("freeze", self.freeze, Field{"keep them as they are: no gradient, no optimizer state"});
  }
  bool operator==(const ParamGroup&) const = default;
};

struct Ema {
  std::optional<double> decay = {};

  template <class Self, class V>
  static void visit(Self& self, V&& v) {
    v("decay", self.decay,
      Field{"keep average = decay x average + (1 - decay) x weights after each step; null: none", 0,
            1});
  }
  bool operator==(const Ema&) const = default;
};

struct Optim {
  std::string name = "adamw";
  double lr = 1e-4;
  std::vector<double> betas = {0.9, 0.999};
  double eps = 1e-8;
  std::optional<double> momentum = {};
  std::optional<bool> nesterov = {};
  std::vector<std::string> muon_exclude = {"*wte*", "*wpe*", "*embed*", "*lm_head*"};
  double weight_decay = 0.01, weight_decay_norm = 0, weight_decay_bias = 0;
  std::vector<ParamGroup> groups = {};
  std::optional<double> clip_grad_max_norm = 1.0;
  double clip_grad_norm_type = 2.0;
  std::optional<double> clip_grad_value = {};
  Json options = Json::object();
  Ema ema = {};
  std::optional<std::string> offload = {};

  template <class Self, class V>
  static void visit(Self& self, V&& v) {
    v("name", self.name,
      Field{.help = "the optimizer; muon orthogonalises the steps of matrices and leaves the rest "
                    "to adamw",
            .choices = {"adamw", "adam", "sgd", "lion", "lamb", "adafactor", "muon"},
            .open = true});
    v("lr", self.lr, Field{"peak learning rate", 0});
    v("betas", self.betas,
      Field{"adamw, adam, lamb, muon: decay of the first and the second moment; lion: of the step's "
            "and of the state's momentum",
            0, 1});
    v("eps", self.eps,
      Field{"adamw, adam, lamb, muon: added to the root of the second moment", 0});
    v("momentum", self.momentum, Field{"sgd, muon: momentum; null: 0 for sgd, 0.95 for muon", 0, 1});
    v("nesterov", self.nesterov,
      Field{"sgd, muon: look ahead along the momentum; null: false for sgd, true for muon"});
    v("muon_exclude", self.muon_exclude,
      Field{"muon: matrices that are left to adamw, as patterns of full names"});
    v("weight_decay", self.weight_decay, Field{"decay of the weights", 0});
    v("weight_decay_norm", self.weight_decay_norm,
      Field{"decay of normalization weights and biases", 0});
    v("weight_decay_bias", self.weight_decay_bias, Field{"decay of the other biases", 0});
    v("groups", self.groups,
      Field{"parameters to treat otherwise, by pattern; the first that matches counts"});
    v("clip_grad_max_norm", self.clip_grad_max_norm,
      Field{"largest norm of all gradients together; null: no clipping", 0});
    v("clip_grad_norm_type", self.clip_grad_norm_type,
      Field{"which norm: 1, 2 or .inf", 1, std::numeric_limits<double>::infinity()});
    v("clip_grad_value", self.clip_grad_value,
      Field{"largest magnitude of a gradient's element, before the norm is taken; null: any", 0});
    v("options", self.options, Field{"for a plugin's optimizer"});
    v("ema", self.ema, Field{"exponential moving average of the weights, for use after training"});
    v("offload", self.offload,
      Field{"folder on a fast local disk for the optimizer's state, masters and averages, in place of memory: for models "
            "larger than it. Slower; the file is gone with the process; null: in memory"});
  }
  bool operator==(const Optim&) const = default;
};

struct RunConfig {
  std::vector<std::string> plugins = {};
  Json model = Json::object();
  std::optional<std::string> tokenizer = {};
  Data data = {};
  Train train = {};
  Optim optim = {};

  template <class Self, class V>
  static void visit(Self& self, V&& v) {
    v("plugins", self.plugins, Field{"shared libraries that add models, datasets, optimizers, ... by name; an empty list where the "
            "program itself does"});
    v("model", self.model, Field{"`family` and its Hugging Face keys, or `pretrained: DIR`"});
    v("tokenizer", self.tokenizer,
      Field{"tokenizer folder, which checkpoints carry along; null: none"});
    v("data", self.data, Field{"datasets"});
    v("train", self.train, Field{"the run"});
    v("optim", self.optim, Field{"optimizer"});
  }
  bool operator==(const RunConfig&) const = default;
};

/// Refuses keys that contradict each other whatever the ranks and the data are. `load` calls it.
void check_consistent(const RunConfig& config);
/// The part of it that the learning-rate schedule needs: keys that its shape lacks.
void check_scheduler(const Scheduler& scheduler);

/// Sizes of the mesh's axes.
struct Degrees {
  int dp = 1, tp = 1, pp = 1;
  bool operator==(const Degrees&) const = default;
};
/// Fills in data_parallel_size; ConfigError with the factors when they do not make `ranks`.
Degrees resolve_degrees(const Dist& dist, int ranks);

/// The samples of a step: micro_batch_size x dp x micro_batches = global_batch_size.
struct BatchPlan {
  int64_t micro_batch_size = 1, micro_batches = 1, global_batch_size = 1;
  bool operator==(const BatchPlan&) const = default;
};
/// Any two of the three keys give the third; micro or global alone means no accumulation.
/// ConfigError with the arithmetic when they contradict or do not divide.
BatchPlan resolve_batch(const Train& train, int dp);

/// Samples of the step that begins after `consumed` samples: a function of the keys alone, any number of them
/// on any layout. ConfigError where the ramp-up does not lead to `global_batch_size`.
int64_t batch_size_at(const BatchRampup& rampup, int64_t global_batch_size, int64_t consumed);

/// Samples of an evaluation: a function of the keys alone, so every layout evaluates the same ones.
/// Nothing: all. `train` as it was given, before `resolved`.
std::optional<int64_t> resolve_eval_samples(const Train& train);

/// The run's length. The last step may be ragged, those of a ramp-up are small: `samples` <= `steps` x
/// global_batch_size.
struct RunLength {
  int64_t steps = 0, samples = 0;
  bool operator==(const RunLength&) const = default;
};
/// From whichever of train_iter, train_epoch, train_samples and train_tokens is given;
/// `epoch_samples`: samples of one pass over the data. Where `data.last_batch` is `drop`, whole steps alone;
/// ConfigError where there is none.
RunLength resolve_length(const RunConfig& config, int64_t global_batch_size, int64_t epoch_samples);

/// Layers of each stage from custom_pipeline_stage_id; nothing when that is null. ConfigError
/// unless it names each of the `layers` once, ascending, and leaves no stage empty.
std::optional<std::vector<int>> resolve_stage_layers(const Dist& dist, int layers, int stages);

/// `config` with degrees, batch sizes and the length of an evaluation filled in for `ranks`: what a
/// run's config.yaml holds.
RunConfig resolved(RunConfig config, int ranks);

}  // namespace trireme::config
