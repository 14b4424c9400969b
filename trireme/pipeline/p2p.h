#pragma once
// P2P: carries a State along an edge of the pipeline, from chunk to chunk.
//
// Both ends derive what travels (names, shapes, dtypes, which tensors carry a gradient) from the
// layers' descriptions and the micro-batch's shape, so nothing is negotiated and receives are
// posted ahead. One message is a header (64 bytes, the 64-bit hash of that schema first) and the
// tensors, each at a multiple of 64 bytes. On a device the hash travels beside it, from host to host.
// What does not fit the schema is a CommError that names the edge, the transfer and both schemas.

#include <map>
#include <tuple>

#include "trireme/comm/comm.h"
#include "trireme/nn/builder.h"
#include "trireme/schedule/schedule.h"

namespace trireme::pipeline {

class P2P {
 public:
  /// `pp` is the pipeline axis' communicator, its ranks the schedule's. `gradients`: a backward
  /// pass follows, so both ends must agree on what carries a gradient. `model` outlives this.
  /// Tensors are on `device`, where that is not the host collective over pp.
  P2P(const nn::Model& model, const comm::Comm& pp, const schedule::Schedule& schedule,
      bool gradients, c10::Device device = c10::kCPU);

  /// Starts an action SendF or SendB; never blocks. Of a SendB the gradients that are absent are
  /// zeros.
  void send(const schedule::Action& action, const nn::State& state, const nn::Batch& batch);
  /// Posts the receive of an action RecvF or RecvB.
  void post(const schedule::Action& action, const nn::Batch& batch);
  /// Waits for what was posted.
  nn::State receive(const schedule::Action& action, const nn::Batch& batch);
  /// Waits until all that was sent is on its way.
  void finish();

 private:
  // Memory first: it outlives the operation on it.
  struct Outgoing {
    at::Tensor bytes;
    at::Tensor hash = {};  // of the host, where `bytes` are not
    comm::Work work = {}, hash_work = {};
  };
  struct Incoming {
    at::Tensor bytes;
    at::Tensor hash = {};
    comm::Work work = {}, hash_work = {};
  };
  /// Where an action's message goes or comes from.
  struct Edge {
    int chunk;  // the State that travels is the one that enters this chunk, or its gradient
    bool gradient;
    int peer;  // stage
    uint64_t tag;
  };
  Edge edge(const schedule::Action& action) const;
  std::string name(const schedule::Action& action) const;
  const nn::StateSpec& spec(const Edge& edge, const nn::Batch& batch);
  /// Memory for a message to send.
  at::Tensor buffer(int64_t bytes);

  const nn::Model& model_;
  comm::Comm pp_;
  std::vector<int> rank_of_chunk_, first_layer_;
  bool gradients_;
  c10::Device device_;
  std::map<std::tuple<int, bool, nn::BatchShape>, nn::StateSpec> specs_;
  std::map<uint64_t, Incoming> incoming_;  // by tag
  std::vector<Outgoing> outgoing_;
};

}  // namespace trireme::pipeline
