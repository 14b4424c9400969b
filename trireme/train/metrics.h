#pragma once
// Metrics: the numbers of a run, a JSON line a step in metrics.jsonl and TensorBoard scalars beside
// it, on request metrics.csv too. Rank 0 owns the writer; nothing here knows a tensor.
//
// Steps in the files are unique: a run that resumes at step n first drops the lines of later steps,
// which an interrupted run had written beyond its last checkpoint.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/formats/tfevents.h"

namespace trireme::train {

/// Where the time of a step went, in seconds; with several ranks, a mean over them.
struct Phases {
  double data = 0;        // waiting for the loader
  double forward = 0, backward = 0;
  double wait = 0;        // for other ranks: messages, bubbles, gradients that compute did not hide
  double optimizer = 0;
  double checkpoint = 0;  // that the step before wrote
};

/// The 2-norms of a layer's gradients, before clipping, and of its parameters, after the step.
struct LayerNorms {
  std::string name;  // "h.0"
  double grad = 0, param = 0;
};

/// A training step. Written in this order; absent values are null, a value that is no number is
/// "nan" or "inf".
struct StepMetrics {
  int64_t step = 0;  // counted from 1: steps done
  double loss = 0;   // mean over the counted tokens of the global batch
  double lr = 0;
  double grad_norm = 0;                   // before clipping
  std::optional<double> loss_scale = {};  // fp16 only
  int64_t tokens = 0, samples = 0;        // consumed since the run began
  double step_seconds = 0, tokens_per_second = 0;
  std::optional<double> model_flops_utilization = {};
  int64_t memory = 0;  // largest peak of live bytes of a rank
  Phases phases = {};
  int slowest_rank = 0;       // the one that computed longest
  double slowest_excess = 0;  // by how much of the median rank's computing time it exceeds that
  std::vector<LayerNorms> layers = {};  // of a step that reports them
};

/// An evaluation after a step.
struct EvalMetrics {
  int64_t step = 0;
  double eval_loss = 0;
  int64_t tokens = 0;  // counted in the loss
  bool of_tokens = true;
  double seconds = 0;
  std::vector<std::pair<std::string, double>> values = {};  // of train.evaluation.metrics
};

/// One line of JSON without its line end. Doubles have the shortest digits that read back as the
/// same double.
std::string to_json_line(const StepMetrics& metrics);
std::string to_json_line(const EvalMetrics& metrics);

/// Prometheus' text exposition format 0.0.4: each number as a gauge "trireme_<name>".
std::string to_prometheus(const StepMetrics& metrics);

class MetricsWriter {
 public:
  /// Opens `directory`/metrics.jsonl to append after the lines of steps up to `resumed_step` (0: a
  /// new run, no line stays). FormatError when an older line cannot be read; a last line cut off by
  /// a crash is dropped.
  /// The same holds for metrics.csv, which has the steps' numbers without the evaluations.
  explicit MetricsWriter(const std::string& directory, int64_t resumed_step = 0, bool csv = false);

  /// Handed to the operating system before it returns, so that a killed process loses no line.
  void write(const StepMetrics& metrics);
  void write(const EvalMetrics& metrics);

 private:
  /// A text file that grows by whole lines.
  class Lines {
   public:
    /// Puts `kept` in place of what is there.
    Lines(std::string path, const std::string& kept);
    ~Lines();
    Lines(const Lines&) = delete;
    Lines& operator=(const Lines&) = delete;
    void append(std::string line);

   private:
    std::string path_;
    int fd_ = -1;
  };
  Lines json_;
  std::optional<Lines> csv_;
  formats::EventWriter events_;
};

}  // namespace trireme::train
