#pragma once
// choose: all schedules side by side under given costs, and the best one: of the fastest that fit into memory the one
// that needs the least. Pure and deterministic: ranks that ask the same question get the same answer, so they agree
// without a word.

#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/json.h"
#include "trireme/schedule/generators.h"
#include "trireme/schedule/simulate.h"

namespace trireme::schedule {

struct Question {
  int ranks = 1, micro_batches = 1;
  /// The costs where the model is cut into that many chunks. What it throws as a ConfigError (fewer layers than chunks)
  /// rules the candidates with that many out.
  std::function<Costs(int chunks)> costs = {};
  /// Only schedules with that many chunks a rank; nothing: each with its own number.
  std::optional<int> chunks = {};
  /// Numbers of chunks a rank to try for interleaved, which has none of its own.
  std::vector<int> interleaved = {2, 4};
  /// What a rank's activations may take, in the unit of the costs (see Costs::chunks). The zero-bubble schedules are
  /// planned to stay below it.
  double memory = std::numeric_limits<double>::infinity();
  /// Steps longer by no more than this share count as equally fast: what the costs are uncertain by.
  double margin = 0.001;
  double message = 0;           // what one message carries, in the unit of the costs' memory; 0: not known
  int64_t search = 20'000'000;  // for each candidate; see Request::search
};

struct Candidate {
  std::string name;
  int chunks_per_rank = 1;
  Schedule schedule = {};
  Simulation simulation = {};  // without its timeline
  double peak = 0;             // the largest of the ranks' peak activations
  int64_t messages = 0;        // between ranks in one step, both ways
  std::string why_not = {};    // why it fell out; empty where it may run
};

struct Choice {
  std::vector<Candidate> candidates = {};  // in the order of names()
  int best = -1;                           // index; -1 where none may run
  double memory = std::numeric_limits<double>::infinity();  // the question's, and
  double message = 0;
};

/// Among every schedule but forward-only: of the steps within `margin` of the shortest one that may run the one with the
/// lowest peak; the plainer one wins a draw.
Choice choose(const Question& question);
/// One table row's figures for any schedule.
Candidate candidate_of(Schedule schedule, const Costs& costs);

/// What a table's times and activations are in, such as ms and MiB; empty: in the units of the costs.
struct Units {
  std::string time = {}, memory = {};
};
/// A table of at most 80 columns; the best one is marked, those that fell out say why. The last column counts messages, or
/// what they carry in all where the size of one is known.
std::string to_text(const Choice& choice, const Units& units = {});
/// What the limit on memory would have to be at least, where it ruled all of them out: a line, else nothing.
std::string shortfall(const Choice& choice, const Units& units = {});
/// [{"schedule", "chunks", "makespan", "bubble", "bubble_own", "peak_activations", "messages", "volume", "chosen", "why_not"}];
/// "volume" (what the messages carry) where the size of one is known.
base::Json to_json(const Choice& choice);

/// A model's costs layer by layer (embedding, blocks, head), as measured or planned.
struct Profile {
  std::vector<ChunkCosts> layers;
  double comm = 0;  // of one message
};
/// The costs of chunks that hold that many layers each, in chain order; ConfigError where they hold another number than
/// there are.
Costs cut(const Profile& profile, const std::vector<int>& layers_per_chunk);

}  // namespace trireme::schedule
