#include "trireme/pipeline/p2p.h"

#include <ATen/ATen.h>

#include <cstring>

#include "trireme/base/error.h"
#include "trireme/dist/device.h"
#include "trireme/dist/redistribute.h"
#include "trireme/layout/stage_manager.h"

namespace trireme::pipeline {

using schedule::Action;
using schedule::Op;

namespace {

constexpr int64_t kAlignment = 64;  // of the header and of each tensor
constexpr uint64_t kHash = uint64_t{1} << 61;  // in the tag of a schema that travels by itself

int64_t aligned(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

int64_t bytes_of(const nn::TensorSpec& spec) {
  return layout::element_count(spec.shape) * base::size_of(spec.dtype);
}

int64_t message_bytes(const nn::StateSpec& spec) {
  int64_t bytes = kAlignment;
  for (const nn::TensorSpec& tensor : spec) bytes += aligned(bytes_of(tensor));
  return bytes;
}

/// The schema that a State really has.
nn::StateSpec spec_of(const nn::State& state, bool gradients) {
  nn::StateSpec spec;
  for (const auto& [name, tensor] : state.tensors())
    spec.push_back({name, tensor.sizes().vec(), dist::dtype_of(tensor),
                    gradients ? tensor.requires_grad() : tensor.is_floating_point()});
  return spec;
}

}  // namespace

P2P::P2P(const nn::Model& model, const comm::Comm& pp, const schedule::Schedule& schedule,
         bool gradients, c10::Device device)
    : model_(model),
      pp_(pp),
      rank_of_chunk_(schedule.rank_of_chunk),
      first_layer_(layout::accumulate_layers(model.layers_per_chunk)),
      gradients_(gradients),
      device_(device) {
  if (!device.is_cpu()) pp_.connect();
}

void P2P::send(const Action& action, const nn::State& state, const nn::Batch& batch) {
  const Edge edge = this->edge(action);
  const nn::StateSpec& spec = this->spec(edge, batch);
  Outgoing out{.bytes = buffer(message_bytes(spec))};
  const uint64_t hash = nn::schema_hash(spec);
  if (device_.is_cpu())
    std::memcpy(out.bytes.mutable_data_ptr(), &hash, sizeof(hash));
  else
    out.hash = at::full({}, static_cast<int64_t>(hash), at::kLong);
  auto refuse = [&](const nn::StateSpec& given) {
    throw base::CommError(fmt::format("{}: the layers describe {}, but made {}", name(action),
                                      nn::to_string(spec), nn::to_string(given)));
  };

  if (!edge.gradient) {
    // Without a backward pass nothing tells which floating tensors would carry a gradient.
    nn::StateSpec given = spec_of(state, gradients_);
    if (!gradients_ && given.size() == spec.size())
      for (size_t i = 0; i < spec.size(); ++i) given[i].requires_grad = spec[i].requires_grad;
    if (nn::schema_hash(given) != hash) refuse(given);
  }
  int64_t offset = kAlignment;
  for (const nn::TensorSpec& tensor : spec) {
    if (const int64_t bytes = bytes_of(tensor); bytes > 0) {
      at::Tensor place = out.bytes.narrow(0, offset, bytes)
                             .view(dist::scalar_type(tensor.dtype))
                             .view(tensor.shape);
      if (!state.has(tensor.name)) {
        place.zero_();
      } else {
        const at::Tensor& value = state.at(tensor.name);
        if (value.sizes() != at::IntArrayRef(tensor.shape) ||
            value.scalar_type() != place.scalar_type())
          refuse(spec_of(state, false));
        place.copy_(value.detach());
      }
      offset += aligned(bytes);
    }
  }
  if (out.hash.defined())
    out.hash_work = pp_.isend(out.hash.const_data_ptr(), sizeof(hash), edge.peer, edge.tag | kHash);
  out.work = pp_.isend(dist::pointer(out.bytes, pp_), message_bytes(spec), edge.peer, edge.tag);
  outgoing_.push_back(std::move(out));
}

void P2P::post(const Action& action, const nn::Batch& batch) {
  const Edge edge = this->edge(action);
  const int64_t bytes = message_bytes(spec(edge, batch));
  Incoming in{.bytes = at::empty({bytes}, at::TensorOptions(at::kByte).device(device_))};
  if (!device_.is_cpu()) {
    in.hash = at::empty({}, at::kLong);
    in.hash_work = pp_.irecv(in.hash.mutable_data_ptr(), sizeof(uint64_t), edge.peer, edge.tag | kHash);
  }
  in.work = pp_.irecv(dist::pointer(in.bytes, pp_), bytes, edge.peer, edge.tag);
  incoming_[edge.tag] = std::move(in);
}

nn::State P2P::receive(const Action& action, const nn::Batch& batch) {
  const Edge edge = this->edge(action);
  const nn::StateSpec& spec = this->spec(edge, batch);
  auto entry = incoming_.find(edge.tag);
  base::check(entry != incoming_.end(), "{}: nothing was posted", name(action));
  Incoming incoming = std::move(entry->second);
  incoming_.erase(entry);
  try {
    incoming.hash_work.wait();
    incoming.work.wait();
  } catch (const base::CommError& e) {
    throw base::CommError(fmt::format("{}; {}", e.what(), name(action)));
  }
  uint64_t hash = 0;
  std::memcpy(&hash, (incoming.hash.defined() ? incoming.hash : incoming.bytes).const_data_ptr(), sizeof(hash));
  if (hash != nn::schema_hash(spec))
    throw base::CommError(fmt::format(
        "{}: expected {} (schema {:016x}), but the message has schema {:016x}; both stages must be "
        "given the same model and the same micro-batches",
        name(action), nn::to_string(spec), nn::schema_hash(spec), hash));

  nn::State state;
  int64_t offset = kAlignment;
  for (const nn::TensorSpec& tensor : spec) {
    const int64_t bytes = bytes_of(tensor);
    const at::ScalarType type = dist::scalar_type(tensor.dtype);
    at::Tensor value = bytes == 0
                           ? at::empty(tensor.shape, at::TensorOptions(type).device(device_))
                           : incoming.bytes.narrow(0, offset, bytes).view(type).view(tensor.shape);
    offset += aligned(bytes);
    if (gradients_ && tensor.requires_grad && !edge.gradient) value.requires_grad_(true);
    state.set(tensor.name, std::move(value));
  }
  return state;
}

void P2P::finish() {
  for (Outgoing& out : outgoing_) {
    out.hash_work.wait();
    out.work.wait();
  }
}

P2P::Edge P2P::edge(const Action& action) const {
  const auto [op, chunk, micro_batch] = action;
  const bool gradient = op == Op::SendB || op == Op::RecvB;
  const bool up = op == Op::SendF || op == Op::RecvB;
  const int other = up ? chunk + 1 : chunk - 1;
  const int entered = std::max(chunk, other);
  const uint64_t tag = (static_cast<uint64_t>(gradient) << 62) |
                       (static_cast<uint64_t>(entered) << 32) | static_cast<uint32_t>(micro_batch);
  return {entered, gradient, rank_of_chunk_[other], tag};
}

std::string P2P::name(const Action& action) const {
  const Edge edge = this->edge(action);
  const bool sends = action.op == Op::SendF || action.op == Op::SendB;
  const int own = pp_.rank(), from = sends ? own : edge.peer, to = sends ? edge.peer : own;
  return fmt::format(
      "pipeline edge from stage {} to stage {} (chunks {} and {}), {} of micro-batch {}", from, to,
      edge.chunk - 1, edge.chunk, schedule::name_of(action.op), action.micro_batch);
}

const nn::StateSpec& P2P::spec(const Edge& edge, const nn::Batch& batch) {
  auto [entry, added] = specs_.try_emplace({edge.chunk, edge.gradient, batch.shape()});
  if (added) {
    entry->second = model_.entering(first_layer_[edge.chunk], batch.shape());
    if (edge.gradient)
      std::erase_if(entry->second, [](const nn::TensorSpec& t) { return !t.requires_grad; });
  }
  return entry->second;
}

at::Tensor P2P::buffer(int64_t bytes) {
  for (size_t i = 0; i < outgoing_.size(); ++i)
    if (Outgoing& out = outgoing_[i]; out.bytes.numel() == bytes && out.work.done() && out.hash_work.done()) {
      at::Tensor free = out.bytes;
      outgoing_.erase(outgoing_.begin() + static_cast<std::ptrdiff_t>(i));
      return free;
    }
  if (!device_.is_cpu()) return at::empty({bytes}, at::TensorOptions(at::kByte).device(device_));
  comm::SharedBuffer shared = pp_.alloc(static_cast<size_t>(bytes));
  return at::from_blob(shared.data(), {bytes}, [shared](void*) {}, at::kByte);
}

}  // namespace trireme::pipeline
