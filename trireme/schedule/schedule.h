#pragma once
// Schedule: a pipeline as data. Each rank's program is a list of actions; nothing here knows a tensor.
//
// Text form, one row a rank: "0F0 0F1 0B0 0B1" (global chunk, op, micro-batch). Backward kinds follow the
// zero-bubble paper (Qi et al., 2023): I is the gradient of the input, W that of the weights, B both.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::schedule {

// A transfer is named after its own rank's chunk: SendF of chunk c meets RecvF of chunk c + 1, SendB of chunk c
// meets RecvB of chunk c - 1.
enum class Op : uint8_t { F, B, I, W, SendF, RecvF, SendB, RecvB };
std::string_view name_of(Op op);
constexpr bool is_compute(Op op) { return op <= Op::W; }

struct Action {
  Op op = Op::F;
  int chunk = 0;        // global chunk
  int micro_batch = 0;
  bool operator==(const Action&) const = default;
};
std::string to_string(const Action& action);

struct Schedule {
  std::string name;
  int ranks = 1, chunks = 1, micro_batches = 1;  // chunks: global, over all ranks
  std::vector<int> rank_of_chunk = {};           // size chunks
  std::vector<std::vector<Action>> program = {};  // per rank
  /// Has no backward actions at all.
  bool forward_only() const;
  /// Has transfers, not compute actions alone.
  bool communicates() const;
  /// Are both chunks there, on two ranks?
  bool crosses(int chunk, int other) const {
    return other >= 0 && other < chunks && rank_of_chunk[chunk] != rank_of_chunk[other];
  }
};

/// Text, one row a rank. `parse` skips empty lines and what follows a '#', and throws FormatError naming row and
/// cell; rank_of_chunk follows from which row holds a chunk's actions.
std::string to_text(const Schedule& schedule);
Schedule parse(std::string_view text, const std::string& source);
/// Reads, parses and checks a file; `key` is what the user named it with. ConfigError where it cannot be read.
Schedule read(const std::string& path, std::string_view key);

/// Inserts SendF/RecvF/SendB/RecvB around compute actions wherever neighbouring chunks lie on two ranks: a
/// receive right before its use, a send right after its making. A schedule that has transfers stays as it is.
Schedule with_communication(Schedule schedule);

}  // namespace trireme::schedule
