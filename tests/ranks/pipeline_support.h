#pragma once
// A small chain model whose State holds all that may travel: a hidden stream, a skip connection
// that passes every stage, integers, a mask, a scalar, an empty tensor. Tied table, dropout, uneven labels.

#include <ATen/ATen.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trireme/nn/builder.h"
#include "trireme/pipeline/executor.h"
#include "trireme/schedule/generators.h"

namespace trireme::pipeline::testing {

struct ChainOptions {
  int blocks = 8;
  double dropout = 0.1;
  bool tied = true;
  std::string hidden = "hidden";  // the stream's name
  bool lie = false;               // describe a shape that is not made
};
nn::ModelDef chain(const ChainOptions& options = {});

/// Encoder blocks, then decoder blocks that look at the encoder's output on whatever stage they
/// are. One table serves the encoder's and the decoder's embedding and the head; one bias serves
/// every block. The encoder's padding mask is made anew from the batch wherever it is needed.
/// Source and target differ in length.
struct EncoderDecoderOptions {
  int encoder = 4, decoder = 4;
  double dropout = 0.1;
};
nn::ModelDef encoder_decoder(const EncoderDecoderOptions& options = {});
std::vector<nn::Batch> make_pairs(int count, int64_t rows);

/// Distinct micro-batches of `rows` rows with uneven counts of ignored labels; sequence lengths
/// differ. Sample indices begin at `first_sample`.
std::vector<nn::Batch> make_batches(int count, int64_t rows, int64_t first_sample = 0);

using Gradients = std::map<std::string, at::Tensor>;

struct Outcome {
  StepResult result;           // of the last stage's first rank
  std::vector<double> losses;  // of every rank
  Gradients gradients;         // summed over data-parallel ranks and holders of a tie
  std::vector<std::vector<schedule::Action>> executed;
  std::vector<int64_t> peak_live;
};

struct Job {
  schedule::Schedule schedule;
  int dp = 1;
  ChainOptions chain = {};
  std::optional<EncoderDecoderOptions> pair = {};         // in place of `chain`
  std::optional<std::vector<int>> blocks_per_chunk = {};  // nothing: an even split
  StageOptions stage = {};
  nn::Mode mode = nn::Mode::train;
  RunOptions run = {};
};
/// Runs one step on threads. `batches`: one list for each data-parallel rank.
Outcome run(const Job& job, const std::vector<std::vector<nn::Batch>>& batches);

/// Largest |a - b| / max(|b|, 1e-3 rms sqrt(n)) over tensors; architecture section 12.
double error(const Gradients& a, const Gradients& b);

}  // namespace trireme::pipeline::testing
