#pragma once
// Generator: continues prompts with a model on any tensor x pipeline layout, keys and values cached. The last stage
// chooses each token and tells the others.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/generate/beams.h"
#include "trireme/generate/sampling.h"
#include "trireme/nn/builder.h"
#include "trireme/pipeline/observer.h"

namespace trireme::generate {

struct Request {
  std::vector<std::vector<int64_t>> prompts = {};  // ids
  int64_t max_new_tokens = 32;
  std::optional<int64_t> end_token = {};  // stops a sequence; kept as its last id
  Sampling sampling = {};
  Beams beams = {};  // with more than one nothing is drawn
};

struct Continuation {
  std::vector<int64_t> new_ids;
  std::string finish_reason;  // "stop": the end token; "length"
};

/// ConfigError where the model makes no text.
void check_generates(const nn::ModelDef& def);

/// Collective over the mesh; every rank returns the same. ConfigError for an empty prompt, an id outside the
/// vocabulary, or a length that exceeds the model's positions. The model needs no gradients. `observer` (may be null)
/// hears of each layer that runs: with ZeRO 3 it gathers parameters. With that, and with experts that data ranks share out,
/// all of them must continue the same prompts.
std::vector<Continuation> generate(nn::Model& model, const dist::DeviceMesh& mesh, const Request& request,
                                   pipeline::StepObserver* observer = nullptr);

}  // namespace trireme::generate
