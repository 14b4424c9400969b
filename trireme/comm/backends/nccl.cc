#include "trireme/comm/backends/nccl.h"

#include <algorithm>
#include <cstring>
#include <list>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/comm/backends/nccl_channel.h"
#include "trireme/comm/collective.h"

namespace trireme::comm {
namespace {

constexpr uint64_t kHeaders = ~uint64_t{0};  // tag of the host's messages that announce the device's

ncclUniqueId make_id() {
  ncclUniqueId id;
  if (ncclResult_t code = ncclGetUniqueId(&id); code != ncclSuccess)
    throw base::CommError(fmt::format("NCCL could not start: {}", ncclGetErrorString(code)));
  return id;
}

bool on_device(const void* address) {
  if (address == nullptr) return false;
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, address) != cudaSuccess) {
    cudaGetLastError();  // an address that CUDA does not know is the host's
    return false;
  }
  return attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
}

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f64: return ncclFloat64;
    case DType::f32: return ncclFloat32;
    case DType::bf16: return ncclBfloat16;
    case DType::f16: return ncclFloat16;
    case DType::i64: return ncclInt64;
    case DType::i32: return ncclInt32;
    case DType::i8: return ncclInt8;
    case DType::u8:
    case DType::boolean: return ncclUint8;
    default:
      throw base::ConfigError(fmt::format("NCCL has no {}; use int32", base::name_of(dtype)));
  }
}

ncclRedOp_t op_of(DType dtype, Reduce reduce) {
  return reduce == Reduce::max || dtype == DType::boolean ? ncclMax : ncclSum;
}

/// Several calls as one operation; `calls` yields the code of the first that failed.
template <class Calls>
ncclResult_t grouped(const Calls& calls) {
  if (ncclResult_t code = ncclGroupStart(); code != ncclSuccess) return code;
  const ncclResult_t code = calls(), ended = ncclGroupEnd();
  return code != ncclSuccess && code != ncclInProgress ? code : ended;
}

template <class T>
T* advanced(T* data, int64_t elements, DType dtype) {
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  return static_cast<Byte*>(data) + elements * base::size_of(dtype);
}

class ChannelWork : public Work::State {
 public:
  ChannelWork(std::shared_ptr<Channel> channel, std::shared_ptr<Flight> flight)
      : channel_(std::move(channel)), flight_(std::move(flight)) {}
  void wait() override { channel_->land(*flight_); }
  bool done() override { return channel_->landed(*flight_); }
  void abandon() override {}

 private:
  std::shared_ptr<Channel> channel_;
  std::shared_ptr<Flight> flight_;
};

/// What a sender says of its next message.
struct Header {
  uint64_t tag = 0;
  int64_t bytes = 0;
};

/// The messages to one neighbour.
class Outbox {
 public:
  Outbox(Comm host, int peer, std::shared_ptr<Channel> channel)
      : host_(std::move(host)), peer_(peer), channel_(std::move(channel)) {}

  Work send(const void* data, int64_t bytes, uint64_t tag) {
    while (!announced_.empty() && announced_.front().second.done()) announced_.pop_front();
    auto& [header, work] = announced_.emplace_back(Header{tag, bytes}, Work());
    work = host_.isend(&header, sizeof(Header), peer_, kHeaders);
    const Moment ready(cudaStreamLegacy);
    auto flight = channel_->run(
        fmt::format("a message of {} bytes to rank {}", bytes, host_.ranks()[peer_]), ready,
        [&](ncclComm_t comm, cudaStream_t stream) {
          return ncclSend(data, static_cast<size_t>(bytes), ncclUint8, 1, comm, stream);
        });
    return Work(std::make_shared<ChannelWork>(channel_, std::move(flight)));
  }

 private:
  Comm host_;
  int peer_;
  std::shared_ptr<Channel> channel_;
  std::list<std::pair<Header, Work>> announced_;
};

/// The messages from one neighbour. They come in the order in which it sends them, and go to
/// whoever asks for their tag.
class Inbox {
 public:
  struct Receive {
    void* data = nullptr;
    int64_t bytes = 0;
    uint64_t tag = 0;
    std::unique_ptr<Moment> ready = {};      // the memory is free
    std::shared_ptr<Flight> flight = {};     // once it is on its way
    std::unique_ptr<Moment> copied = {};     // where it came before it was asked for
  };

  Inbox(Comm host, int peer, std::shared_ptr<Channel> channel)
      : host_(std::move(host)), peer_(peer), channel_(std::move(channel)) {}

  std::shared_ptr<Receive> post(void* data, int64_t bytes, uint64_t tag) {
    auto receive = std::make_shared<Receive>(Receive{data, bytes, tag});
    advance();
    const auto early = std::ranges::find(early_, tag, &Receive::tag);
    if (early == early_.end()) {
      receive->ready = std::make_unique<Moment>(cudaStreamLegacy);
      posted_.push_back(receive);
      return receive;
    }
    expect_size(*early, bytes);
    channel_->land(*early->flight);
    const auto size = static_cast<size_t>(bytes);
    expect_cuda(cudaMemcpyAsync(data, early->data, size, cudaMemcpyDeviceToDevice, cudaStreamLegacy),
                "copy a message");
    expect_cuda(cudaFreeAsync(early->data, cudaStreamLegacy), "free a message");
    receive->copied = std::make_unique<Moment>(cudaStreamLegacy);
    early_.erase(early);
    return receive;
  }

  /// Takes what has been announced until now.
  void advance() {
    while (next().done()) take();
  }

  /// Sees to it that the message is on its way, and holds the default stream back until it is here.
  void land(const Receive& receive) {
    if (receive.copied) return;
    while (!receive.flight) {
      next().wait();
      take();
    }
    channel_->land(*receive.flight);
  }

  bool landed(const Receive& receive) {
    advance();
    return receive.copied ? receive.copied->passed()
                          : receive.flight != nullptr && channel_->landed(*receive.flight);
  }

 private:
  /// The header that comes next.
  Work& next() {
    if (!header_work_) header_work_ = host_.irecv(&header_, sizeof(Header), peer_, kHeaders);
    return *header_work_;
  }

  void take() {
    next().wait();
    header_work_.reset();
    const Header header = header_;
    const auto asked = std::ranges::find_if(
        posted_, [&](const auto& receive) { return receive->tag == header.tag; });
    if (asked != posted_.end()) {
      const std::shared_ptr<Receive> receive = *asked;
      posted_.erase(asked);
      expect_size({nullptr, header.bytes, header.tag}, receive->bytes);
      receive->flight = start(receive->data, header.bytes, *receive->ready);
      return;
    }
    Receive& early = early_.emplace_back(Receive{nullptr, header.bytes, header.tag});
    expect_cuda(cudaMallocAsync(&early.data, static_cast<size_t>(std::max<int64_t>(1, header.bytes)),
                                channel_->stream()),
                "take memory for a message");
    early.flight = start(early.data, header.bytes, Moment(channel_->stream()));
  }

  std::shared_ptr<Flight> start(void* data, int64_t bytes, const Moment& ready) {
    return channel_->run(
        fmt::format("a message of {} bytes from rank {}", bytes, host_.ranks()[peer_]), ready,
        [&](ncclComm_t comm, cudaStream_t stream) {
          return ncclRecv(data, static_cast<size_t>(bytes), ncclUint8, 0, comm, stream);
        });
  }

  void expect_size(const Receive& sent, int64_t wanted) const {
    if (sent.bytes != wanted)
      throw base::CommError(
          fmt::format("a message from rank {} in group '{}' has {} bytes where {} are expected",
                      host_.ranks()[peer_], host_.name(), sent.bytes, wanted));
  }

  Comm host_;
  int peer_;
  std::shared_ptr<Channel> channel_;
  Header header_;
  std::optional<Work> header_work_;
  std::list<std::shared_ptr<Receive>> posted_;
  std::list<Receive> early_;
};

class InboxWork : public Work::State {
 public:
  InboxWork(std::shared_ptr<Inbox> inbox, std::shared_ptr<Inbox::Receive> receive)
      : inbox_(std::move(inbox)), receive_(std::move(receive)) {}
  void wait() override { inbox_->land(*receive_); }
  bool done() override { return inbox_->landed(*receive_); }
  void abandon() override {}

 private:
  std::shared_ptr<Inbox> inbox_;
  std::shared_ptr<Inbox::Receive> receive_;
};

class NcclGroup : public Group {
 public:
  NcclGroup(std::shared_ptr<Watch> watch, Comm host)
      : watch_(std::move(watch)), host_(std::move(host)) {
    ncclUniqueId id{};
    if (host_.rank() == 0) id = make_id();
    host_.broadcast(&id, sizeof(id), DType::u8, 0).wait();
    collectives_ = open(id, host_.rank(), host_.size(), host_.name(), host_.ranks());
  }

  bool takes_device_memory() const override { return true; }

  Work all_reduce(void* data, int64_t count, DType dtype, Reduce reduce) override {
    if (!on_device(data)) return host_.all_reduce(data, count, dtype, reduce);
    return run(CollectiveKind::all_reduce, count, dtype, [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclAllReduce(data, data, static_cast<size_t>(count), type_of(dtype),
                           op_of(dtype, reduce), comm, stream);
    });
  }

  Work reduce_scatter(const void* in, void* out, std::span<const int64_t> counts, DType dtype,
                      Reduce reduce) override {
    if (!on_device(in)) return host_.reduce_scatter(in, out, counts, dtype, reduce);
    const bool even = std::ranges::adjacent_find(counts, std::not_equal_to<>()) == counts.end();
    const auto issue = [&](ncclComm_t comm, cudaStream_t stream) {
      if (even)
        return ncclReduceScatter(in, out, static_cast<size_t>(counts[0]), type_of(dtype),
                                 op_of(dtype, reduce), comm, stream);
      return grouped([&] {
        ncclResult_t code = ncclSuccess;
        int64_t begin = 0;
        for (int r = 0; r < host_.size() && code == ncclSuccess; begin += counts[r++])
          if (counts[r] > 0)
            code = ncclReduce(advanced(in, begin, dtype), r == host_.rank() ? out : nullptr,
                              static_cast<size_t>(counts[r]), type_of(dtype),
                              op_of(dtype, reduce), r, comm, stream);
        return code;
      });
    };
    return run(CollectiveKind::reduce_scatter, std::reduce(counts.begin(), counts.end()), dtype,
               issue);
  }

  Work all_gather(const void* in, void* out, std::span<const int64_t> counts,
                  DType dtype) override {
    if (!on_device(out)) return host_.all_gather(in, out, counts, dtype);
    const bool even = std::ranges::adjacent_find(counts, std::not_equal_to<>()) == counts.end();
    const auto issue = [&](ncclComm_t comm, cudaStream_t stream) {
      if (even)
        return ncclAllGather(in, out, static_cast<size_t>(counts[0]), type_of(dtype), comm, stream);
      return grouped([&] {
        ncclResult_t code = ncclSuccess;
        int64_t begin = 0;
        for (int r = 0; r < host_.size() && code == ncclSuccess; begin += counts[r++]) {
          if (counts[r] == 0) continue;
          void* part = advanced(out, begin, dtype);
          code = ncclBroadcast(r == host_.rank() ? in : part, part, static_cast<size_t>(counts[r]),
                               type_of(dtype), r, comm, stream);
        }
        return code;
      });
    };
    return run(CollectiveKind::all_gather, std::reduce(counts.begin(), counts.end()), dtype, issue);
  }

  Work broadcast(void* data, int64_t count, DType dtype, int root) override {
    if (!on_device(data)) return host_.broadcast(data, count, dtype, root);
    return run(CollectiveKind::broadcast, count, dtype, [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclBroadcast(data, data, static_cast<size_t>(count), type_of(dtype), root, comm,
                           stream);
    });
  }

  Work all_to_all(const void* in, std::span<const int64_t> send_counts, void* out,
                  std::span<const int64_t> recv_counts, DType dtype) override {
    if (!on_device(in) && !on_device(out))
      return host_.all_to_all(in, send_counts, out, recv_counts, dtype);
    const auto issue = [&](ncclComm_t comm, cudaStream_t stream) {
      return grouped([&] {
        ncclResult_t code = ncclSuccess;
        int64_t sent = 0, received = 0;
        for (int r = 0; r < host_.size() && code == ncclSuccess; ++r) {
          if (send_counts[r] > 0)
            code = ncclSend(advanced(in, sent, dtype), static_cast<size_t>(send_counts[r]),
                            type_of(dtype), r, comm, stream);
          if (recv_counts[r] > 0 && code == ncclSuccess)
            code = ncclRecv(advanced(out, received, dtype), static_cast<size_t>(recv_counts[r]),
                            type_of(dtype), r, comm, stream);
          sent += send_counts[r];
          received += recv_counts[r];
        }
        return code;
      });
    };
    return run(CollectiveKind::all_to_all, std::reduce(send_counts.begin(), send_counts.end()),
               dtype, issue);
  }

  Work isend(const void* data, int64_t bytes, int peer, uint64_t tag) override {
    if (!on_device(data)) return host_.isend(data, bytes, peer, tag);
    return neighbour(out_, peer)->send(data, bytes, tag);
  }

  Work irecv(void* data, int64_t bytes, int peer, uint64_t tag) override {
    if (!on_device(data)) return host_.irecv(data, bytes, peer, tag);
    const std::shared_ptr<Inbox>& inbox = neighbour(in_, peer);
    return Work(std::make_shared<InboxWork>(inbox, inbox->post(data, bytes, tag)));
  }

  SharedBuffer alloc(size_t bytes) override { return host_.alloc(bytes); }

  void connect() override {
    if (!out_.empty()) return;
    const int size = host_.size(), me = host_.rank();
    // Each rank names the channels to the next rank and to the one before it, which may be the same.
    std::vector<ncclUniqueId> ids(2 * static_cast<size_t>(size));
    ids[2 * me] = make_id();
    ids[2 * me + 1] = make_id();
    host_.all_gather(&ids[2 * me], ids.data(),
                     std::vector<int64_t>(size, 2 * sizeof(ncclUniqueId)), DType::u8)
        .wait();
    // All ranks go through the edges in one order, so that each finds its peer at the same edge.
    for (int from = 0; from < size; ++from)
      for (int way = 0; way < (size > 2 ? 2 : 1); ++way) {
        const int to = (from + (way == 0 ? 1 : size - 1)) % size;
        if (from != me && to != me) continue;
        const std::string name = fmt::format("{}, from rank {} to {}", host_.name(),
                                             host_.ranks()[from], host_.ranks()[to]);
        auto channel = open(ids[2 * from + way], to == me ? 1 : 0, 2, name,
                            {host_.ranks()[to == me ? from : to]});
        if (from == me)
          out_[to] = std::make_shared<Outbox>(host_, to, std::move(channel));
        else
          in_[from] = std::make_shared<Inbox>(host_, from, std::move(channel));
      }
  }

 private:
  std::shared_ptr<Channel> open(const ncclUniqueId& id, int rank, int size,
                                const std::string& name, std::vector<int> peers) {
    std::erase(peers, host_.ranks()[host_.rank()]);
    auto channel = std::make_shared<Channel>(watch_, id, rank, size, name,
                                             fmt::format("{}", fmt::join(peers, " ")));
    watch_->add(channel);
    return channel;
  }

  Work run(CollectiveKind kind, int64_t count, DType dtype, const Channel::Issue& issue) {
    watch_->use_device();
    const Moment ready(cudaStreamLegacy);
    return Work(std::make_shared<ChannelWork>(
        collectives_, collectives_->run(describe(kind, count, dtype), ready, issue)));
  }

  template <class Box>
  const std::shared_ptr<Box>& neighbour(const std::map<int, std::shared_ptr<Box>>& boxes,
                                        int peer) {
    watch_->use_device();
    base::check(!out_.empty(), "group '{}': messages of device memory before connect()",
                host_.name());
    const auto found = boxes.find(peer);
    if (found == boxes.end())
      throw base::ConfigError(fmt::format(
          "group '{}': rank {} is no neighbour of rank {}; messages of GPU memory go between "
          "neighbours",
          host_.name(), host_.ranks()[peer], host_.ranks()[host_.rank()]));
    return found->second;
  }

  std::shared_ptr<Watch> watch_;
  Comm host_;
  std::shared_ptr<Channel> collectives_;
  std::map<int, std::shared_ptr<Outbox>> out_;
  std::map<int, std::shared_ptr<Inbox>> in_;
};

class NcclBackend : public Backend {
 public:
  NcclBackend(std::unique_ptr<Backend> host, int device, std::chrono::milliseconds timeout)
      : host_(std::move(host)), watch_(std::make_shared<Watch>(*host_, device, timeout)) {
    watch_->use_device();
  }
  ~NcclBackend() override { watch_->stop(); }
  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  int host(int rank) const override { return host_->host(rank); }
  Comm make(std::vector<int> ranks, const std::string& name) override {
    Comm plain = host_->make(ranks, name);
    if (ranks.size() == 1) return plain;
    auto group = std::make_shared<NcclGroup>(watch_, plain);
    return {std::move(ranks), plain.rank(), name, std::move(group)};
  }
  void abort(const std::string& why) override { watch_->fail(why); }
  std::string failure() const override { return host_->failure(); }

 private:
  std::unique_ptr<Backend> host_;
  std::shared_ptr<Watch> watch_;
};

}  // namespace

std::string nccl_version() {
  int version = 0;
  ncclGetVersion(&version);
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::unique_ptr<Backend> make_nccl_backend(std::unique_ptr<Backend> host, int device,
                                           std::chrono::milliseconds timeout) {
  return std::make_unique<NcclBackend>(std::move(host), device, timeout);
}

}  // namespace trireme::comm
