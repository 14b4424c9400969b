#include "trireme/comm/comm.h"

#include <atomic>
#include <cstring>
#include <numeric>

#include "trireme/base/error.h"

namespace trireme::comm {

struct Comm::Shared {
  std::vector<int> ranks;
  int rank = 0;
  std::string name;
  std::shared_ptr<Group> group;  // null: a group of one
  std::atomic<int64_t> all_reduce{0}, reduce_scatter{0}, all_gather{0}, broadcast{0}, all_to_all{0},
      p2p{0};

  template <class... A>
  void expect(bool condition, const char* op, fmt::format_string<A...> what, A&&... args) const {
    if (!condition)
      throw base::ConfigError(fmt::format("{} in group '{}' of {} ranks: {}", op, name,
                                          ranks.size(),
                                          fmt::format(what, std::forward<A>(args)...)));
  }
  void expect_buffer(const char* op, const void* data, int64_t count) const {
    expect(count >= 0, op, "{} elements", count);
    expect(data != nullptr || count == 0, op, "no buffer for {} elements", count);
  }
  /// The sum of `counts`, one a rank.
  int64_t total(const char* op, std::span<const int64_t> counts) const {
    expect(counts.size() == ranks.size(), op, "{} counts; expected one a rank", counts.size());
    for (int64_t count : counts) expect(count >= 0, op, "a count of {}", count);
    return std::accumulate(counts.begin(), counts.end(), int64_t{0});
  }
  void expect_peer(const char* op, int peer) const {
    expect(peer >= 0 && peer < static_cast<int>(ranks.size()) && peer != rank, op,
           "peer {}; expected another index below the group's size (own: {})", peer, rank);
  }
};

namespace {
Work copy(const void* in, void* out, int64_t bytes) {
  if (in != out && bytes > 0) std::memmove(out, in, static_cast<size_t>(bytes));
  return {};
}
}  // namespace

Comm::Comm() : Comm({0}, 0, "self", nullptr) {}

Comm::Comm(std::vector<int> ranks, int rank, std::string name, std::shared_ptr<Group> group)
    : shared_(std::make_shared<Shared>()) {
  base::check(group != nullptr || ranks.size() == 1, "a group of {} ranks without a backend",
              ranks.size());
  shared_->ranks = std::move(ranks);
  shared_->rank = rank;
  shared_->name = std::move(name);
  shared_->group = std::move(group);
}

int Comm::rank() const {
  return shared_->rank;
}
int Comm::size() const {
  return static_cast<int>(shared_->ranks.size());
}
const std::vector<int>& Comm::ranks() const {
  return shared_->ranks;
}
const std::string& Comm::name() const {
  return shared_->name;
}

Work Comm::all_reduce(void* data, int64_t count, DType dtype, Reduce reduce) const {
  shared_->expect_buffer("all_reduce", data, count);
  if (!shared_->group) return {};
  shared_->all_reduce += count * base::size_of(dtype);
  return shared_->group->all_reduce(data, count, dtype, reduce);
}

Work Comm::reduce_scatter(const void* in, void* out, std::span<const int64_t> counts, DType dtype,
                          Reduce reduce) const {
  int64_t total = shared_->total("reduce_scatter", counts), bytes = total * base::size_of(dtype);
  shared_->expect_buffer("reduce_scatter", in, total);
  shared_->expect_buffer("reduce_scatter", out, counts[rank()]);
  if (!shared_->group) return copy(in, out, bytes);
  shared_->reduce_scatter += bytes;
  return shared_->group->reduce_scatter(in, out, counts, dtype, reduce);
}

Work Comm::all_gather(const void* in, void* out, std::span<const int64_t> counts,
                      DType dtype) const {
  int64_t total = shared_->total("all_gather", counts), bytes = total * base::size_of(dtype);
  shared_->expect_buffer("all_gather", in, counts[rank()]);
  shared_->expect_buffer("all_gather", out, total);
  if (!shared_->group) return copy(in, out, bytes);
  shared_->all_gather += bytes;
  return shared_->group->all_gather(in, out, counts, dtype);
}

Work Comm::broadcast(void* data, int64_t count, DType dtype, int root) const {
  shared_->expect_buffer("broadcast", data, count);
  shared_->expect(root >= 0 && root < size(), "broadcast",
                  "root {}; expected an index in the group", root);
  if (!shared_->group) return {};
  shared_->broadcast += count * base::size_of(dtype);
  return shared_->group->broadcast(data, count, dtype, root);
}

Work Comm::all_to_all(const void* in, std::span<const int64_t> send_counts, void* out,
                      std::span<const int64_t> recv_counts, DType dtype) const {
  int64_t sent = shared_->total("all_to_all", send_counts),
          received = shared_->total("all_to_all", recv_counts);
  shared_->expect_buffer("all_to_all", in, sent);
  shared_->expect_buffer("all_to_all", out, received);
  shared_->expect(send_counts[rank()] == recv_counts[rank()], "all_to_all",
                  "sends {} elements to itself, expects {}", send_counts[rank()],
                  recv_counts[rank()]);
  int64_t bytes = sent * base::size_of(dtype);
  if (!shared_->group) return copy(in, out, bytes);
  shared_->all_to_all += bytes;
  return shared_->group->all_to_all(in, send_counts, out, recv_counts, dtype);
}

void Comm::barrier() const {
  if (shared_->group) shared_->group->all_reduce(nullptr, 0, DType::u8, Reduce::max).wait();
}

Work Comm::isend(const void* data, int64_t bytes, int peer, uint64_t tag) const {
  shared_->expect_buffer("isend", data, bytes);
  shared_->expect_peer("isend", peer);
  shared_->p2p += bytes;
  return shared_->group->isend(data, bytes, peer, tag);
}

Work Comm::irecv(void* data, int64_t bytes, int peer, uint64_t tag) const {
  shared_->expect_buffer("irecv", data, bytes);
  shared_->expect_peer("irecv", peer);
  return shared_->group->irecv(data, bytes, peer, tag);
}

bool Comm::takes_device_memory() const {
  return shared_->group != nullptr && shared_->group->takes_device_memory();
}

void Comm::connect() const {
  if (shared_->group) shared_->group->connect();
}

SharedBuffer Comm::alloc(size_t bytes) const {
  if (shared_->group) return shared_->group->alloc(bytes);
  constexpr std::align_val_t kAlignment{64};
  std::shared_ptr<void> owner(::operator new(bytes, kAlignment),
                              [](void* block) { ::operator delete(block, kAlignment); });
  return {static_cast<std::byte*>(owner.get()), bytes, owner};
}

Traffic Comm::traffic() const {
  return {.all_reduce = shared_->all_reduce,
          .reduce_scatter = shared_->reduce_scatter,
          .all_gather = shared_->all_gather,
          .broadcast = shared_->broadcast,
          .all_to_all = shared_->all_to_all,
          .p2p = shared_->p2p};
}

}  // namespace trireme::comm
