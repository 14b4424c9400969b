#pragma once
// Executor: runs a schedule on a model. For each action of this rank's program it waits for the
// receive it needs, runs, and posts the send; receives are posted ahead. Gradients end up in the
// model's ParamStore, not yet summed over data-parallel ranks or holders of a tie: that is the
// optimizer's, which may listen as a StepObserver.
//
//   Executor executor(schedule::generate("1f1b", {stages, micro_batches}), model, mesh);
//   StepResult step = executor.run(batches, {.seed = seed, .step = step}, nn::Mode::train);
//
// A loop of one's own takes each micro-batch when its backward pass is due:
//
//   Step step = executor.begin(batches, random);
//   while (MicroBatch* micro = step.next()) micro->backward(scale(micro->loss()));
//   StepResult result = step.finish();

#include <limits>
#include <optional>
#include <span>

#include "trireme/dist/device.h"
#include "trireme/pipeline/p2p.h"
#include "trireme/pipeline/stage.h"
#include "trireme/schedule/simulate.h"

namespace trireme::pipeline {

struct RunOptions {
  bool loss = true;                    // needs labels
  bool outputs = false;                // keep what the last chunk returns
  bool record = false;                 // note what ran and when
  double loss_scale = 1;               // gradients are those of the loss times this
  std::span<nn::KvCache> caches = {};  // one for each micro-batch, or none
};

/// The loss of some items, by term: sums over the counted ones, and their numbers.
struct LossTerms {
  std::vector<double> sums;
  std::vector<int64_t> weights;
  /// The sum of the terms' means; a term of which nothing counts adds nothing, and NaN if that is all of them.
  double mean() const;
  /// Of all terms; 0: nothing counts.
  int64_t weight() const;
  void add(const LossTerms& more);
};

struct StepResult {
  LossTerms terms = {};  // over the global batch; the same on every rank; with weight 0 the gradients are zero: skip
                         // the step
  double loss() const { return terms.mean(); }
  std::vector<nn::State> outputs;        // on the last stage, by micro-batch
  std::vector<schedule::Span> executed;  // seconds since the start of the step, on the rank's device
  double forward_seconds = 0, backward_seconds = 0;  // what this rank computed in its passes; the rest is waiting
  int64_t peak_live = 0;                 // most chunk activations kept at once
};

/// A micro-batch whose backward pass is due. Every stage and tensor rank sees the same; all of them
/// must decide alike, and so must data ranks that share out experts.
class MicroBatch {
 public:
  int index() const { return index_; }  // among those the step was given
  /// Sums over its counted items, and their numbers.
  const LossTerms& terms() const { return terms_; }
  /// Mean over its counted items; NaN where none counts.
  double loss() const { return terms_.mean(); }
  /// What the last chunk returned; null on other stages, or without RunOptions::outputs.
  const nn::State* outputs() const { return outputs_; }
  /// Lets its backward pass run, with its share of the gradient of the mean over the global batch
  /// times `scale`. Without this call it contributes nothing.
  void backward(double scale = 1) { scale_ = scale; }

 private:
  friend class Step;
  int index_ = 0;
  LossTerms terms_;
  const nn::State* outputs_ = nullptr;
  std::optional<double> scale_;
};

class Step;

class Executor {
 public:
  /// Checks the schedule and adds its transfers; ConfigError where it does not fit mesh or model.
  /// `model`, `mesh` and `observer` (may be null) outlive the executor. Not collective.
  Executor(const schedule::Schedule& schedule, nn::Model& model, const dist::DeviceMesh& mesh,
           const StageOptions& options = {}, StepObserver* observer = nullptr);

  /// Runs one step. Every stage and tensor rank is given the same micro-batches, as many as the
  /// schedule has; those without rows take part in nothing (ConfigError where data ranks share out experts). With a backward pass the gradients are
  /// zeroed first and made for the mean over all counted items of the global batch. Collective over
  /// the world.
  StepResult run(std::span<const nn::Batch> micro_batches, const nn::Random& random, nn::Mode mode,
                 const RunOptions& options = {});
  /// The same step in the caller's hands, in training mode. `micro_batches` outlive it; one step at
  /// a time.
  Step begin(std::span<const nn::Batch> micro_batches, const nn::Random& random,
             const RunOptions& options = {});

 private:
  friend class Step;
  const std::vector<schedule::Action>& program() const { return schedule_.program[mesh_.coord.pp]; }
  bool is_last(int chunk) const { return chunk + 1 == schedule_.chunks; }
  /// What a forward pass must keep.
  Keep keep(int chunk, int micro_batch) const;

  schedule::Schedule schedule_;
  nn::Model& model_;
  const dist::DeviceMesh& mesh_;
  bool trains_;
  std::vector<int> local_chunk_;  // by global chunk; -1 where another stage holds it
  std::vector<bool> splits_;      // by chunk and micro-batch: weight gradients wait for W
  Stage stage_;
  P2P p2p_;
};

class Step {
 public:
  /// Runs up to the next micro-batch whose backward pass is due on this rank, in the schedule's
  /// order; null when the rank's program has come to its end. All ranks see the same sequence.
  /// Valid until the next call.
  MicroBatch* next();
  /// Runs what is left. Collective over the world.
  StepResult finish();

 private:
  friend class Executor;
  Step(Executor& executor, std::span<const nn::Batch> batches, const nn::Random& random,
       nn::Mode mode, const RunOptions& options, bool stepped);
  enum class Decision : uint8_t { open, runs, skipped };

  /// Has the action nothing to do: its micro-batch has no rows, or no backward pass?
  bool idle(const schedule::Action& action) const;
  MicroBatch* present(int micro_batch);
  void decide(int micro_batch, std::optional<double> scale);
  void run(const schedule::Action& action);
  /// Reads how long actions took.
  void read_times();
  void pass_over(const schedule::Action& action);
  void forward(const schedule::Action& action);
  void backward(const schedule::Action& action);
  void post_receives();
  nn::Context context(int micro_batch) const;
  /// A State on its way to the action that needs it.
  nn::State take(schedule::Op op, int chunk, int micro_batch);

  Executor& executor_;
  std::span<const nn::Batch> batches_;
  nn::Random random_;
  nn::Mode mode_;
  RunOptions options_;
  bool stepped_;
  struct Timed {
    schedule::Action action = {};
    dist::DeviceClock::Mark begin = 0, end = 0;
    double waited = 0;  // between them
  };
  dist::DeviceClock clock_;
  dist::DeviceClock::Mark start_ = 0;
  std::vector<Timed> timed_;
  StepResult result_;
  std::map<std::tuple<schedule::Op, int, int>, nn::State> waiting_;  // by the action that takes it
  std::vector<at::Tensor> losses_;     // by micro-batch, on the last stage
  std::vector<std::vector<double>> shared_losses_;  // by micro-batch and term, on every stage of a stepped run
  std::vector<comm::Work> sends_;
  std::vector<Decision> decisions_;  // by micro-batch
  std::vector<double> scales_;       // by micro-batch
  comm::Work weight_known_;
  MicroBatch current_;
  bool presented_ = false;
  size_t position_ = 0;  // of the next action in the program
  size_t posted_ = 0;    // position up to which receives are posted
  size_t open_ = 0;      // receives posted and not yet taken
};

}  // namespace trireme::pipeline
