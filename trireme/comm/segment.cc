#include "trireme/comm/segment.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <new>
#include <thread>

#include "trireme/base/error.h"

namespace trireme::comm {

static_assert(std::atomic<uint64_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == 4);

void Bell::sleep(uint32_t seen, std::chrono::nanoseconds limit) {
  timespec time{limit.count() / 1'000'000'000, limit.count() % 1'000'000'000};
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&rings_), FUTEX_WAIT, seen, &time, nullptr, 0);
}

void Bell::ring() {
  if (sleepers_.load() == 0) return;
  rings_.fetch_add(1);
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&rings_), FUTEX_WAKE, INT_MAX, nullptr, nullptr,
            0);
}

namespace {
constexpr uint64_t kMagic = 0x31656d6572697274;  // "trireme1"
constexpr uint64_t kPage = 4096;
}  // namespace

struct Segment::Header {
  uint64_t magic = 0;
  int ranks = 0;
  uint64_t arena_begin = 0, arena_size = 0;
  /// 0: none; 1: being written; 2: the text is complete.
  alignas(64) std::atomic<uint32_t> failure{0};
  char text[2048] = {};
  alignas(64) RankBlock rank[];
};

Segment::Segment(int fd, bool one_process) : fd_(fd), one_process_(one_process) {
  struct stat status;
  if (::fstat(fd, &status) != 0) throw base::IoError("shared memory", errno, "ask for the size");
  size_ = static_cast<size_t>(status.st_size);
  void* map = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (map == MAP_FAILED)
    throw base::IoError("shared memory", errno,
                        fmt::format("map {} GiB of addresses (raise `ulimit -v`)", size_ >> 30));
  base_ = static_cast<std::byte*>(map);
  ::madvise(map, size_, MADV_DONTDUMP);
}

Segment::~Segment() {
  ::munmap(base_, size_);
  ::close(fd_);
}

std::shared_ptr<Segment> Segment::create(int ranks, std::span<const int> here, bool one_process) {
  base::check(!here.empty(), "a segment without ranks");
  int fd = ::memfd_create("trireme", MFD_CLOEXEC);
  if (fd < 0) throw base::IoError("shared memory", errno, "create (memfd_create)");
  // Addresses, not memory: pages exist once they are touched. No rank can use more than the machine
  // has.
  uint64_t memory = static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGE_SIZE);
  uint64_t arena = std::max<uint64_t>(memory, uint64_t{1} << 30) / kPage * kPage;
  uint64_t begin = (sizeof(Header) + ranks * sizeof(RankBlock) + kPage - 1) / kPage * kPage;
  if (::ftruncate(fd, static_cast<off_t>(begin + here.size() * arena)) != 0) {
    int error = errno;
    ::close(fd);
    throw base::IoError("shared memory", error, "set the size");
  }
  std::shared_ptr<Segment> segment(new Segment(fd, one_process));
  auto* header = new (segment->base_) Header;
  header->magic = kMagic;
  header->ranks = ranks;
  header->arena_begin = begin;
  header->arena_size = arena;
  for (int r = 0; r < ranks; ++r) new (&header->rank[r]) RankBlock;
  for (size_t i = 0; i < here.size(); ++i) header->rank[here[i]].arena = static_cast<int>(i);
  return segment;
}

std::shared_ptr<Segment> Segment::attach(int fd) {
  int own = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (own < 0) throw base::IoError("shared memory", errno, "duplicate the descriptor");
  std::shared_ptr<Segment> segment(new Segment(own, false));
  if (segment->at<Header>(0)->magic != kMagic)
    throw base::CommError("the shared memory that rank 0 sent is of another version of trireme");
  return segment;
}

int Segment::ranks() const {
  return at<Header>(0)->ranks;
}
Segment::RankBlock& Segment::rank(int rank) const {
  return at<Header>(0)->rank[rank];
}
uint64_t Segment::arena_size() const {
  return at<Header>(0)->arena_size;
}
uint64_t Segment::arena_begin(int rank) const {
  return at<Header>(0)->arena_begin + this->rank(rank).arena * arena_size();
}

bool Segment::failed() const {
  return at<Header>(0)->failure.load() != 0;
}

void Segment::fail(int blamed, const std::string& why) {
  fail(fmt::format("rank {} {}", blamed, why));
}

void Segment::fail(const std::string& text) {
  auto* header = at<Header>(0);
  uint32_t none = 0;
  if (header->failure.compare_exchange_strong(none, 1)) {
    std::memcpy(header->text, text.data(), std::min(text.size(), sizeof header->text - 1));
    header->failure.store(2);
  }
  for (int r = 0; r < ranks(); ++r) rank(r).bell.ring();
}

std::string Segment::failure() const {
  auto* header = at<Header>(0);
  for (int i = 0; i < 100 && header->failure.load() == 1; ++i)  // its writer may have been killed
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return header->failure.load() == 2 ? header->text : "a rank ended while it reported a failure";
}

void push(const Segment& segment, std::atomic<uint64_t>& list, uint64_t offset) {
  uint64_t head = list.load();
  do {
    segment.at<Link>(offset)->next = head;
  } while (!list.compare_exchange_weak(head, offset));
}

}  // namespace trireme::comm
