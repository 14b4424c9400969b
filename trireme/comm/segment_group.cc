#include "trireme/comm/segment_group.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "trireme/base/error.h"
#include "trireme/comm/reduction.h"

namespace trireme::comm {
namespace {
constexpr int64_t kPiece = 128 << 10;
constexpr uint64_t kRing = 4;  // pieces of a staging area
constexpr int64_t kLend =
    32 << 10;  // contributions above this are read from the rank's memory if reachable
constexpr int64_t kDirect =
    128 << 10;  // all-reduces with less input in total are reduced by every rank for itself

int64_t pieces_of(int64_t bytes, int64_t piece) {
  return std::max<int64_t>(1, (bytes + piece - 1) / piece);
}
size_t round_up(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}
}  // namespace

struct SegmentGroup::Block : Link {
  std::atomic<int> users{0};
};

struct SegmentGroup::Slot {
  alignas(64) std::atomic<uint64_t> ready{0};
  alignas(64) std::atomic<uint64_t> done{0};
};

/// What a member called, for the others to check and to find its memory. Two a member, used in
/// turn: whoever posts an operation has completed the one before, so all members have completed the
/// one before that.
struct SegmentGroup::Post {
  Kind kind;
  DType dtype;
  Reduce reduce;
  bool lent;
  int root;
  int64_t count;
  uint64_t address;
};

class SegmentGroup::Collective : public Op {
 public:
  Collective(std::shared_ptr<Endpoint> endpoint, std::shared_ptr<SegmentGroup> group, Kind kind,
             const void* in, void* out, int64_t count, DType dtype)
      : Op(std::move(endpoint)),
        kind(kind),
        dtype(dtype),
        in(static_cast<const std::byte*>(in)),
        out(static_cast<std::byte*>(out)),
        count(count),
        size(base::size_of(dtype)),
        group_(std::move(group)) {}
  std::string describe() const override {
    return fmt::format("{} in group '{}' (ranks {})", comm::describe(kind, count, dtype),
                       group_->name_, fmt::join(group_->ranks_, " "));
  }
  std::vector<int> awaited() const override { return group_->awaited(); }

  /// Offset in bytes of a member's part of a buffer packed by `parts`.
  int64_t offset(std::span<const int64_t> parts, int member) const {
    return std::accumulate(parts.begin(), parts.begin() + member, int64_t{0}) * size;
  }
  bool by_destination() const { return kind == Kind::reduce_scatter || kind == Kind::all_to_all; }

  Kind kind;
  DType dtype;
  Reduce reduce = Reduce::sum;
  int root = 0;
  const std::byte* in;
  std::byte* out;
  int64_t count, size;
  std::vector<int64_t> counts, receives;  // receives: of all_to_all
  int64_t input = 0;                      // bytes that this rank contributes
  bool lent = false;                      // read by the peers where it is; else staged
  bool sliced = false;                    // an all-reduce where each rank reduces a slice for all
  int64_t pieces = 0;                     // 0: not known before all have posted
  int64_t exposed = 0, consumed = 0, collected = 0;

 private:
  std::shared_ptr<SegmentGroup> group_;
};

size_t SegmentGroup::block_size(int members) {
  size_t posts = round_up(2 * members * (sizeof(Post) + members * sizeof(int64_t)), 4096);
  return round_up(sizeof(Block), 64) + round_up(members * sizeof(Slot), 64) + posts +
         members * kRing * kPiece + 4096;
}

void SegmentGroup::initialise(void* block, int members) {
  auto* made = new (block) Block;
  made->users = members;
  auto* slots =
      reinterpret_cast<Slot*>(static_cast<std::byte*>(block) + round_up(sizeof(Block), 64));
  for (int m = 0; m < members; ++m) new (&slots[m]) Slot;
}

SegmentGroup::SegmentGroup(std::shared_ptr<Endpoint> endpoint, std::vector<int> ranks,
                           std::string name, uint64_t block)
    : endpoint_(std::move(endpoint)),
      segment_(endpoint_->segment()),
      ranks_(std::move(ranks)),
      members_(static_cast<int>(ranks_.size())),
      name_(std::move(name)),
      block_(segment_.at<Block>(block)) {
  me_ =
      static_cast<int>(std::find(ranks_.begin(), ranks_.end(), endpoint_->rank()) - ranks_.begin());
}

SegmentGroup::~SegmentGroup() {
  if (block_->users.fetch_sub(1) == 1) give_back(segment_, ranks_[0], block_);
}

SegmentGroup::Slot& SegmentGroup::slot(int member) const {
  return reinterpret_cast<Slot*>(reinterpret_cast<std::byte*>(block_) +
                                 round_up(sizeof(Block), 64))[member];
}

SegmentGroup::Post& SegmentGroup::post(int member) const {
  auto* posts = reinterpret_cast<std::byte*>(&slot(members_));
  size_t size = sizeof(Post) + members_ * sizeof(int64_t);
  return *reinterpret_cast<Post*>(posts + ((sequence_ % 2) * members_ + member) * size);
}

int64_t* SegmentGroup::counts_of(int member) const {
  return reinterpret_cast<int64_t*>(&post(member) + 1);
}

std::byte* SegmentGroup::staging(int member, uint64_t piece) const {
  size_t areas = round_up(
      segment_.offset_of(block_) + block_size(members_) - members_ * kRing * kPiece - 4096, 4096);
  return segment_.at(areas) + (member * kRing + piece % kRing) * kPiece;
}

int64_t SegmentGroup::part_bytes() const {
  return kPiece / members_ / 64 * 64;
}

// ---- calls ----

Work SegmentGroup::all_reduce(void* data, int64_t count, DType dtype, Reduce reduce) {
  auto op = std::make_shared<Collective>(endpoint_, shared_from_this(), Kind::all_reduce, data,
                                         data, count, dtype);
  op->reduce = reduce;
  op->input = count * op->size;
  op->sliced = op->input * members_ > kDirect;
  op->pieces = pieces_of(op->input, kPiece);
  return enqueue(std::move(op));
}

Work SegmentGroup::reduce_scatter(const void* in, void* out, std::span<const int64_t> counts,
                                  DType dtype, Reduce reduce) {
  int64_t count = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  auto op = std::make_shared<Collective>(endpoint_, shared_from_this(), Kind::reduce_scatter, in,
                                         out, count, dtype);
  op->reduce = reduce;
  op->counts.assign(counts.begin(), counts.end());
  op->input = count * op->size;
  op->pieces = pieces_of(*std::max_element(counts.begin(), counts.end()) * op->size, part_bytes());
  return enqueue(std::move(op));
}

Work SegmentGroup::all_gather(const void* in, void* out, std::span<const int64_t> counts,
                              DType dtype) {
  int64_t count = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  auto op = std::make_shared<Collective>(endpoint_, shared_from_this(), Kind::all_gather, in, out,
                                         count, dtype);
  op->counts.assign(counts.begin(), counts.end());
  op->input = counts[me_] * op->size;
  op->pieces = pieces_of(*std::max_element(counts.begin(), counts.end()) * op->size, kPiece);
  return enqueue(std::move(op));
}

Work SegmentGroup::broadcast(void* data, int64_t count, DType dtype, int root) {
  auto op = std::make_shared<Collective>(endpoint_, shared_from_this(), Kind::broadcast, data, data,
                                         count, dtype);
  op->root = root;
  op->input = me_ == root ? count * op->size : 0;
  op->pieces = pieces_of(count * op->size, kPiece);
  return enqueue(std::move(op));
}

Work SegmentGroup::all_to_all(const void* in, std::span<const int64_t> send_counts, void* out,
                              std::span<const int64_t> recv_counts, DType dtype) {
  int64_t count = std::accumulate(send_counts.begin(), send_counts.end(), int64_t{0});
  auto op = std::make_shared<Collective>(endpoint_, shared_from_this(), Kind::all_to_all, in, out,
                                         count, dtype);
  op->counts.assign(send_counts.begin(), send_counts.end());
  op->receives.assign(recv_counts.begin(), recv_counts.end());
  op->input = count * op->size;
  return enqueue(std::move(op));
}

Work SegmentGroup::isend(const void* data, int64_t bytes, int peer, uint64_t tag) {
  return endpoint_->send(data, bytes, ranks_[peer], tag, segment_.offset_of(block_), name_);
}

Work SegmentGroup::irecv(void* data, int64_t bytes, int peer, uint64_t tag) {
  return endpoint_->receive(data, bytes, ranks_[peer], tag, segment_.offset_of(block_), name_);
}

SharedBuffer SegmentGroup::alloc(size_t bytes) {
  return endpoint_->alloc(bytes);
}

Work SegmentGroup::enqueue(std::shared_ptr<Collective> op) {
  bool stay = op->kind == Kind::all_reduce && !op->sliced;
  op->lent =
      op->input == 0 ? !stay : !stay && op->input > kLend && segment_.reachable(op->in, op->input);
  endpoint_->start([&]() -> std::shared_ptr<Task> {
    queue_.push_back(op);
    return queue_.size() == 1 ? shared_from_this() : nullptr;
  });
  return Work(std::move(op));
}

// ---- progress ----

Task::Step SegmentGroup::step() {
  Collective& op = *queue_.front();
  bool moved = expose(op);
  moved |= consume(op);
  moved |= collect(op);
  if (!complete(op)) return moved ? Step::moved : Step::idle;
  base_ += op.pieces;
  ++sequence_;
  auto finished = std::move(queue_.front());
  queue_.pop_front();
  finished->finish();
  return queue_.empty() ? Step::finished : Step::moved;
}

void SegmentGroup::fail(const std::string& why) {
  for (auto& op : queue_) op->finish(op->describe() + why);
  queue_.clear();
}

bool SegmentGroup::expose(Collective& op) {
  bool known = op.pieces > 0;
  if (known ? op.exposed == op.pieces : op.exposed == 1) return false;
  uint64_t piece = base_ + op.exposed;
  if (!op.lent && piece >= kRing && !all_reached(&Slot::done, done_, piece - kRing + 1))
    return false;
  if (!op.lent && op.sliced && op.exposed - op.collected >= static_cast<int64_t>(kRing))
    return false;
  if (op.exposed == 0) write_post(op);
  if (op.lent) {
    op.exposed = known ? op.pieces : 1;
  } else {
    stage(op, op.exposed);
    ++op.exposed;
  }
  advance(&Slot::ready, base_ + op.exposed);
  return true;
}

void SegmentGroup::write_post(const Collective& op) {
  post(me_) = {op.kind, op.dtype, op.reduce, op.lent, op.root, op.count, segment_.offset_of(op.in)};
  std::copy(op.counts.begin(), op.counts.end(), counts_of(me_));
}

// All members must have called the same; what differs is named.
void SegmentGroup::check_posts(Collective& op) {
  int64_t longest = 0;
  for (int m = 0; m < members_; ++m) {
    const Post& theirs = post(m);
    std::span<const int64_t> counts(counts_of(m), op.counts.size());
    bool uneven = op.kind == Kind::all_to_all;  // counts differ between ranks by design
    bool same = theirs.kind == op.kind && theirs.dtype == op.dtype && theirs.reduce == op.reduce &&
                theirs.root == op.root && (uneven || theirs.count == op.count);
    if (!same)
      throw base::CommError(fmt::format(
          "{}: rank {} calls {}{}; all ranks must make the same calls with the same counts in the "
          "same order",
          op.describe(), ranks_[m], comm::describe(theirs.kind, theirs.count, theirs.dtype),
          theirs.kind == Kind::broadcast ? fmt::format(" from rank {}", ranks_[theirs.root]) : ""));
    if (!uneven && !std::equal(counts.begin(), counts.end(), op.counts.begin()))
      throw base::CommError(fmt::format("{}: rank {} gives the counts {}, rank {} gives {}",
                                        op.describe(), ranks_[me_], fmt::join(op.counts, " "),
                                        ranks_[m], fmt::join(counts, " ")));
    if (uneven && counts[me_] != op.receives[m])
      throw base::CommError(fmt::format("{}: rank {} sends {} elements, rank {} expects {}",
                                        op.describe(), ranks_[m], counts[me_], ranks_[me_],
                                        op.receives[m]));
    for (int64_t count : counts) longest = std::max(longest, count * op.size);
  }
  if (op.pieces == 0) op.pieces = pieces_of(longest, part_bytes());
}

// Copies what the peers read of this rank's contribution to a piece into its staging area.
void SegmentGroup::stage(const Collective& op, int64_t piece) {
  std::byte* area = staging(me_, base_ + piece);
  auto copy = [&](int64_t to, int64_t from, int64_t bytes) {
    if (bytes > 0) std::memcpy(area + to, op.in + from, bytes);
  };
  if (!op.by_destination()) {
    int64_t start = piece * kPiece,
            bytes = std::max<int64_t>(0, std::min(kPiece, op.input - start));
    auto [begin, end] = op.sliced ? slice(bytes, op.size) : std::pair(bytes, bytes);
    copy(0, start, begin);
    copy(end, start + end, bytes - end);
    return;
  }
  int64_t part = part_bytes(), begin = piece * part, offset = 0;
  for (int m = 0; m < members_; ++m) {
    if (m != me_) copy(m * part, offset + begin, std::min(part, op.counts[m] * op.size - begin));
    offset += op.counts[m] * op.size;
  }
}

std::byte* SegmentGroup::contribution(const Collective& op, int member, int64_t piece) const {
  const Post& theirs = post(member);
  if (!theirs.lent && member != me_)
    return staging(member, base_ + piece) + (op.by_destination() ? me_ * part_bytes() : 0);
  std::byte* start = segment_.at(theirs.address);
  if (!op.by_destination()) return start + piece * kPiece;
  return start + op.offset({counts_of(member), op.counts.size()}, me_) + piece * part_bytes();
}

bool SegmentGroup::consume(Collective& op) {
  if (op.exposed == op.consumed) return false;
  if (!all_reached(&Slot::ready, ready_, base_ + op.consumed + 1)) return false;
  if (op.consumed == 0) check_posts(op);
  int64_t piece = op.consumed;
  switch (op.kind) {
    case Kind::all_reduce:
      reduce_slice(op, piece);
      break;
    case Kind::reduce_scatter: {
      int64_t begin = piece * part_bytes();
      int64_t bytes = std::min(part_bytes(), op.counts[me_] * op.size - begin);
      if (bytes <= 0) break;
      std::vector<const std::byte*> sources(members_);
      for (int m = 0; m < members_; ++m) sources[m] = contribution(op, m, piece);
      std::byte* out = op.out + begin;
      comm::reduce(sources, {&out, 1}, bytes / op.size, op.dtype, op.reduce);
      break;
    }
    case Kind::all_gather:
    case Kind::broadcast: {
      bool gather = op.kind == Kind::all_gather;
      int64_t begin = piece * kPiece, offset = 0;
      for (int m = 0; m < members_; ++m) {
        int64_t input = gather ? op.counts[m] * op.size : m == op.root ? op.count * op.size : 0;
        int64_t bytes = std::min(kPiece, input - begin);
        std::byte* out = op.out + offset + begin;
        const std::byte* in = contribution(op, m, piece);
        if (bytes > 0 && in != out) std::memcpy(out, in, bytes);
        offset += gather ? input : 0;
      }
      break;
    }
    case Kind::all_to_all: {
      int64_t begin = piece * part_bytes(), offset = 0;
      for (int m = 0; m < members_; ++m) {
        int64_t bytes = std::min(part_bytes(), op.receives[m] * op.size - begin);
        if (bytes > 0) std::memcpy(op.out + offset + begin, contribution(op, m, piece), bytes);
        offset += op.receives[m] * op.size;
      }
      break;
    }
  }
  ++op.consumed;
  advance(&Slot::done, base_ + op.consumed);
  return true;
}

/// This rank's slice of a piece, in bytes.
std::pair<int64_t, int64_t> SegmentGroup::slice(int64_t bytes, int64_t element) const {
  int64_t width = (bytes / element + members_ - 1) / members_ * element;
  width = (width + 63) / 64 * 64;
  return {std::min(bytes, me_ * width), std::min(bytes, (me_ + 1) * width)};
}

void SegmentGroup::reduce_slice(const Collective& op, int64_t piece) {
  int64_t bytes = std::min(kPiece, op.input - piece * kPiece);
  if (bytes <= 0) return;
  auto [begin, end] = op.sliced ? slice(bytes, op.size) : std::pair<int64_t, int64_t>{0, bytes};
  std::vector<const std::byte*> sources;
  std::vector<std::byte*> outputs;
  for (int m = 0; m < members_; ++m) {
    std::byte* place = contribution(op, m, piece) + begin;
    sources.push_back(place);
    if (m == me_ || op.sliced) outputs.push_back(place);
  }
  comm::reduce(sources, outputs, (end - begin) / op.size, op.dtype, op.reduce);
}

// Copies what the others reduced out of the staging area.
bool SegmentGroup::collect(Collective& op) {
  if (!op.sliced || op.lent || op.collected == op.consumed) return false;
  if (!all_reached(&Slot::done, done_, base_ + op.collected + 1)) return false;
  int64_t piece = op.collected++;
  int64_t bytes = std::min(kPiece, op.input - piece * kPiece);
  if (bytes <= 0) return true;
  auto [begin, end] = slice(bytes, op.size);
  const std::byte* area = staging(me_, base_ + piece);
  std::memcpy(op.out + piece * kPiece, area, begin);
  std::memcpy(op.out + piece * kPiece + end, area + end, bytes - end);
  return true;
}

bool SegmentGroup::complete(const Collective& op) {
  if (op.pieces == 0 || op.consumed < op.pieces) return false;
  if (op.sliced && !op.lent) return op.collected == op.pieces;
  if (!op.lent || op.input == 0) return true;  // the peers need none of this rank's buffers
  return all_reached(&Slot::done, done_, base_ + op.pieces);
}

bool SegmentGroup::all_reached(std::atomic<uint64_t> Slot::*counter, uint64_t& seen,
                               uint64_t value) const {
  if (seen >= value) return true;
  uint64_t least = UINT64_MAX;
  for (int m = 0; m < members_; ++m) least = std::min(least, (slot(m).*counter).load());
  seen = least;
  return seen >= value;
}

// All conditions are on what every member has reached, so the others need to hear of an advance
// only when this rank was the last.
void SegmentGroup::advance(std::atomic<uint64_t> Slot::*counter, uint64_t value) {
  uint64_t old = (slot(me_).*counter).load(std::memory_order_relaxed);
  (slot(me_).*counter).store(value);
  for (int m = 0; m < members_; ++m)
    if (m != me_ && (slot(m).*counter).load() <= old) return;
  for (int m = 0; m < members_; ++m)
    if (m != me_) segment_.rank(ranks_[m]).bell.ring();
}

std::vector<int> SegmentGroup::awaited() const {
  std::vector<int> ranks;
  if (queue_.empty()) return ranks;
  const Collective& op = *queue_.front();
  bool consuming = op.pieces == 0 || op.consumed < op.pieces;
  for (int m = 0; m < members_ && consuming; ++m)
    if (m != me_ && slot(m).ready.load() <= base_ + op.consumed) ranks.push_back(ranks_[m]);
  for (int m = 0; m < members_ && ranks.empty(); ++m)
    if (m != me_ && slot(m).done.load() < base_ + std::max<int64_t>(op.pieces, 1))
      ranks.push_back(ranks_[m]);
  return ranks;
}

}  // namespace trireme::comm
