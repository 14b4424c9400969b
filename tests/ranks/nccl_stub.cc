#include "tests/ranks/nccl_stub.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace {

thread_local int current = 0;
std::mutex mutex;  // of everything here
std::condition_variable changed;
std::map<const void*, size_t> allocated;  // with their sizes

struct Stream {
  std::deque<std::function<void(std::unique_lock<std::mutex>&)>> queue;
  bool busy = false, stop = false;
  std::thread thread;
  Stream() {
    thread = std::thread([this] {
      std::unique_lock lock(mutex);
      while (true) {
        changed.wait(lock, [this] { return stop || !queue.empty(); });
        if (queue.empty()) return;
        auto work = std::move(queue.front());
        queue.pop_front();
        busy = true;
        work(lock);
        busy = false;
        changed.notify_all();
      }
    });
  }
  bool idle() const { return queue.empty() && !busy; }
};

struct Event {
  int64_t recorded = 0, done = 0;
};

struct Operation {
  enum Kind { all_reduce, reduce_scatter, all_gather, broadcast, reduce, send, receive } kind;
  const void* in;
  void* out;
  size_t count;
  ncclDataType_t type;
  ncclRedOp_t op;
  int peer;  // or the root
};

struct Parcel {
  const void* data;
  size_t bytes;
  bool taken = false;
};

struct Joint {  // a communicator as all its ranks share it
  int size = 0, joined = 0;
  bool aborted = false;
  struct Round {
    std::vector<Operation> ranks;
    int arrived = 0;
    bool done = false;
  };
  std::map<int64_t, std::shared_ptr<Round>> rounds;
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Parcel>>> parcels;
};
std::map<std::string, std::shared_ptr<Joint>> joints;

size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclFloat64:
    case ncclInt64:
    case ncclUint64: return 8;
    case ncclFloat32:
    case ncclInt32:
    case ncclUint32: return 4;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    default: return 1;
  }
}

template <class T>
void sum_into(T* out, const T* in, size_t count, ncclRedOp_t op) {
  for (size_t i = 0; i < count; ++i) out[i] = op == ncclMax ? std::max(out[i], in[i]) : static_cast<T>(out[i] + in[i]);
}

void add(void* out, const void* in, size_t count, ncclDataType_t type, ncclRedOp_t op) {
  switch (type) {
    case ncclFloat64: return sum_into(static_cast<double*>(out), static_cast<const double*>(in), count, op);
    case ncclFloat32: return sum_into(static_cast<float*>(out), static_cast<const float*>(in), count, op);
    case ncclInt64: return sum_into(static_cast<int64_t*>(out), static_cast<const int64_t*>(in), count, op);
    case ncclInt32: return sum_into(static_cast<int32_t*>(out), static_cast<const int32_t*>(in), count, op);
    default: return sum_into(static_cast<uint8_t*>(out), static_cast<const uint8_t*>(in), count, op);
  }
}

// All ranks' operations of one kind are there.
void perform(std::vector<Operation>& ranks) {
  const Operation& first = ranks[0];
  const size_t size = bytes_of(first.type), count = first.count;
  auto sum = [&](size_t begin, size_t number) {
    std::vector<std::byte> total(number * size);
    for (size_t r = 0; r < ranks.size(); ++r) {
      const auto* in = static_cast<const std::byte*>(ranks[r].in) + begin * size;
      r == 0 ? static_cast<void>(std::memcpy(total.data(), in, total.size())) : add(total.data(), in, number, first.type, first.op);
    }
    return total;
  };
  auto give = [](void* out, const std::vector<std::byte>& bytes) { std::memcpy(out, bytes.data(), bytes.size()); };
  if (first.kind == Operation::all_reduce) {
    const auto total = sum(0, count);
    for (Operation& rank : ranks) give(rank.out, total);
  } else if (first.kind == Operation::reduce) {
    give(ranks[static_cast<size_t>(first.peer)].out, sum(0, count));
  } else if (first.kind == Operation::reduce_scatter) {
    std::vector<std::vector<std::byte>> totals;
    for (size_t r = 0; r < ranks.size(); ++r) totals.push_back(sum(r * count, count));
    for (size_t r = 0; r < ranks.size(); ++r) give(ranks[r].out, totals[r]);
  } else if (first.kind == Operation::all_gather) {
    std::vector<std::byte> all;
    for (const Operation& rank : ranks) {
      const auto* in = static_cast<const std::byte*>(rank.in);
      all.insert(all.end(), in, in + count * size);
    }
    for (Operation& rank : ranks) give(rank.out, all);
  } else {
    const auto* in = static_cast<const std::byte*>(ranks[static_cast<size_t>(first.peer)].in);
    const std::vector<std::byte> bytes(in, in + count * size);
    for (Operation& rank : ranks) give(rank.out, bytes);
  }
}

struct Pending {
  ncclComm_t comm;
  cudaStream_t stream;
  Operation operation;
};
thread_local int depth = 0;
thread_local std::vector<Pending> pending;

}  // namespace

struct ncclComm {
  std::shared_ptr<Joint> joint;
  int rank = 0;
  int64_t next = 0;  // round of the next collective
  std::shared_ptr<bool> aborted = std::make_shared<bool>(false);
};

namespace {

std::map<int, Stream*>& default_streams() {
  static auto* streams = new std::map<int, Stream*>;
  return *streams;
}

Stream& stream_of(cudaStream_t stream) {
  if (stream != nullptr && stream != cudaStreamLegacy) return *reinterpret_cast<Stream*>(stream);
  Stream*& own = default_streams()[current];
  if (own == nullptr) own = new Stream;
  return *own;
}

void collective(std::unique_lock<std::mutex>& lock, Joint& joint, int rank, int64_t number, const Operation& operation,
                const bool& aborted) {
  auto& round = joint.rounds[number];
  if (!round) round = std::make_shared<Joint::Round>(), round->ranks.resize(static_cast<size_t>(joint.size));
  const std::shared_ptr<Joint::Round> own = round;
  own->ranks[static_cast<size_t>(rank)] = operation;
  if (++own->arrived == joint.size) {
    perform(own->ranks);
    own->done = true;
    changed.notify_all();
  }
  changed.wait(lock, [&] { return own->done || aborted; });
}

ncclResult_t run(std::vector<Pending> operations) {
  if (operations.empty()) return ncclSuccess;
  std::unique_lock guard(mutex);
  ncclComm* comm = operations.front().comm;
  std::vector<std::pair<int64_t, Operation>> numbered;
  for (const Pending& entry : operations) {
    const bool message = entry.operation.kind == Operation::send || entry.operation.kind == Operation::receive;
    numbered.emplace_back(message ? -1 : comm->next++, entry.operation);
  }
  stream_of(operations.front().stream)
      .queue.push_back([joint = comm->joint, rank = comm->rank, aborted = comm->aborted, numbered](auto& lock) {
        std::vector<std::shared_ptr<Parcel>> sent;
        for (const auto& [number, op] : numbered)
          if (op.kind == Operation::send) {
            sent.push_back(std::make_shared<Parcel>(Parcel{op.in, op.count * bytes_of(op.type)}));
            joint->parcels[{rank, op.peer}].push_back(sent.back());
            changed.notify_all();
          }
        for (const auto& [number, op] : numbered) {
          if (op.kind == Operation::receive) {
            auto& box = joint->parcels[{op.peer, rank}];
            changed.wait(lock, [&, &flag = *aborted] { return flag || !box.empty(); });
            if (*aborted) return;
            std::memcpy(op.out, box.front()->data, std::min(box.front()->bytes, op.count * bytes_of(op.type)));
            box.front()->taken = true;
            box.pop_front();
            changed.notify_all();
          } else if (op.kind != Operation::send) {
            collective(lock, *joint, rank, number, op, *aborted);
          }
        }
        for (const auto& parcel : sent) changed.wait(lock, [&, &flag = *aborted] { return flag || parcel->taken; });
      });
  changed.notify_all();
  return ncclInProgress;  // as a communicator that does not block may say
}

ncclResult_t enqueue(ncclComm_t comm, cudaStream_t stream, Operation operation) {
  pending.push_back({comm, stream, operation});
  if (depth > 0) return ncclSuccess;
  return run(std::exchange(pending, {}));
}

}  // namespace

namespace trireme::test {

void* stub_alloc(size_t bytes) {
  void* memory = std::malloc(bytes);
  std::lock_guard guard(mutex);
  allocated[memory] = bytes;
  return memory;
}

void stub_free(void* memory) {
  std::lock_guard guard(mutex);
  allocated.erase(memory);
  std::free(memory);
}

void stub_synchronize() {
  std::unique_lock lock(mutex);
  Stream& stream = stream_of(nullptr);
  changed.wait(lock, [&] { return stream.idle(); });
}

}  // namespace trireme::test

extern "C" {

cudaError_t cudaSetDevice(int device) {
  current = device;
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t) { return "an error of the stub"; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  std::lock_guard guard(mutex);
  auto found = allocated.upper_bound(address);
  bool known = false;
  if (found != allocated.begin()) {
    --found;
    known = static_cast<const std::byte*>(address) < static_cast<const std::byte*>(found->first) + std::max<size_t>(1, found->second);
  }
  attributes->type = known ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = reinterpret_cast<cudaStream_t>(new Stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  auto* stream = reinterpret_cast<Stream*>(handle);
  {
    std::lock_guard guard(mutex);
    stream->stop = true;
    changed.notify_all();
  }
  stream->thread.join();
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  std::lock_guard guard(mutex);
  return stream_of(stream).idle() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(new std::shared_ptr<Event>(std::make_shared<Event>()));
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<std::shared_ptr<Event>*>(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream) {
  std::lock_guard guard(mutex);
  auto event = *reinterpret_cast<std::shared_ptr<Event>*>(handle);
  const int64_t version = ++event->recorded;
  stream_of(stream).queue.push_back([event, version](auto&) { event->done = version; });
  changed.notify_all();
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t handle) {
  std::lock_guard guard(mutex);
  const auto& event = *reinterpret_cast<std::shared_ptr<Event>*>(handle);
  return event->done == event->recorded ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t handle, unsigned) {
  std::lock_guard guard(mutex);
  auto event = *reinterpret_cast<std::shared_ptr<Event>*>(handle);
  stream_of(stream).queue.push_back([event, version = event->recorded](auto& lock) {
    changed.wait(lock, [&] { return event->done >= version; });
  });
  changed.notify_all();
  return cudaSuccess;
}
cudaError_t cudaMallocAsync(void** memory, size_t bytes, cudaStream_t) {
  *memory = trireme::test::stub_alloc(bytes);
  return cudaSuccess;
}
cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  std::lock_guard guard(mutex);
  stream_of(stream).queue.push_back([memory](auto&) {
    allocated.erase(memory);
    std::free(memory);
  });
  changed.notify_all();
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  std::lock_guard guard(mutex);
  stream_of(stream).queue.push_back([=](auto&) { std::memcpy(to, from, bytes); });
  changed.notify_all();
  return cudaSuccess;
}

ncclResult_t ncclGetVersion(int* version) {
  *version = 10203;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<int> next{1};
  std::memset(id, 0, sizeof(*id));
  const int number = next++;
  std::memcpy(id->internal, &number, sizeof(number));
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t) { return "an error of the stub"; }
const char* ncclGetLastError(ncclComm_t) { return ""; }
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t*) {
  std::lock_guard guard(mutex);
  auto& joint = joints[std::string(id.internal, sizeof(id.internal))];
  if (!joint) joint = std::make_shared<Joint>();
  joint->size = size;
  ++joint->joined;
  *comm = new ncclComm{.joint = joint, .rank = rank};
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* code) {
  std::lock_guard guard(mutex);
  *code = comm->joint->joined < comm->joint->size ? ncclInProgress : ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  std::lock_guard guard(mutex);
  *comm->aborted = true;
  changed.notify_all();
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclGroupStart() {
  ++depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (--depth > 0) return ncclSuccess;
  return run(std::exchange(pending, {}));
}
ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream) {
  return enqueue(comm, stream, {Operation::all_reduce, in, out, count, type, op, 0});
}
ncclResult_t ncclReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return enqueue(comm, stream, {Operation::reduce, in, out, count, type, op, root});
}
ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return enqueue(comm, stream, {Operation::reduce_scatter, in, out, count, type, op, 0});
}
ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return enqueue(comm, stream, {Operation::all_gather, in, out, count, type, ncclSum, 0});
}
ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return enqueue(comm, stream, {Operation::broadcast, in, out, count, type, ncclSum, root});
}
ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return enqueue(comm, stream, {Operation::send, in, nullptr, count, type, ncclSum, peer});
}
ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return enqueue(comm, stream, {Operation::receive, nullptr, out, count, type, ncclSum, peer});
}

}  // extern "C"
