#include "trireme/comm/backends/segment_backend.h"

#include <algorithm>
#include <functional>

#include "trireme/base/error.h"
#include "trireme/base/hash.h"
#include "trireme/comm/message_group.h"
#include "trireme/comm/segment_group.h"

namespace trireme::comm {

SegmentBackend::SegmentBackend(std::shared_ptr<Segment> segment, int rank,
                               std::chrono::milliseconds timeout, std::vector<int> hosts,
                               std::shared_ptr<Wire> wire)
    : endpoint_(std::make_shared<Endpoint>(std::move(segment), rank, timeout)),
      hosts_(std::move(hosts)) {
  if (wire != nullptr) endpoint_->attach(std::move(wire));
}

SegmentBackend::~SegmentBackend() {
  endpoint_->close();
}

Comm SegmentBackend::make(std::vector<int> ranks, const std::string& name) {
  auto own = std::find(ranks.begin(), ranks.end(), rank());
  std::vector<int> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  bool valid = own != ranks.end() && sorted.front() >= 0 && sorted.back() < size() &&
               std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
  if (!valid)
    throw base::ConfigError(
        fmt::format("group '{}' of ranks {}: expected distinct ranks below {}, among them {}", name,
                    fmt::join(ranks, " "), size(), rank()));
  int index = static_cast<int>(own - ranks.begin());
  if (ranks.size() == 1) return {std::move(ranks), 0, name, nullptr};

  uint64_t tag = base::hash_bytes(ranks.data(), ranks.size() * sizeof(int), base::hash_text(name));
  std::vector<int> hosts;
  for (int r : ranks) hosts.push_back(host(r));
  if (std::adjacent_find(hosts.begin(), hosts.end(), std::not_equal_to<>()) != hosts.end()) {
    uint64_t id = base::hash_combine(tag, ++made_[tag]);
    auto group = std::make_shared<MessageGroup>(endpoint_, ranks, hosts, name, id);
    return {std::move(ranks), index, name, std::move(group)};
  }

  // The first member makes the shared block and tells the others where it is, by messages outside
  // of any group.
  constexpr uint64_t kNoGroup = 0;
  uint64_t block = 0;
  Segment& segment = endpoint_->segment();
  if (index == 0) {
    int members = static_cast<int>(ranks.size());
    std::byte* memory = endpoint_->arena().alloc(SegmentGroup::block_size(members));
    SegmentGroup::initialise(memory, members);
    block = segment.offset_of(memory);
    for (int m = 1; m < members; ++m)
      endpoint_->send(&block, sizeof block, ranks[m], tag, kNoGroup, name).wait();
  } else {
    endpoint_->receive(&block, sizeof block, ranks[0], tag, kNoGroup, name).wait();
  }
  auto group = std::make_shared<SegmentGroup>(endpoint_, ranks, name, block);
  return {std::move(ranks), index, name, std::move(group)};
}

std::string SegmentBackend::failure() const {
  const Segment& segment = endpoint_->segment();
  return segment.failed() ? segment.failure() : "";
}

void SegmentBackend::abort(const std::string& why) {
  endpoint_->abort("aborted: " + why);
}

}  // namespace trireme::comm
