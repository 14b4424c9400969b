#include "trireme/comm/wire.h"

#include "trireme/base/error.h"

namespace trireme::comm {

using Clock = std::chrono::steady_clock;

Wire::~Wire() = default;

void Wire::start(std::shared_ptr<Segment> segment, std::shared_ptr<Arena> arena, int rank,
                 const std::atomic<int>& pending, std::chrono::milliseconds timeout) {
  segment_ = std::move(segment);
  arena_ = std::move(arena);
  rank_ = rank;
  pending_ = &pending;
  timeout_ = timeout;
  left_ = std::make_unique<std::atomic<bool>[]>(segment_->ranks());
  thread_ = std::thread([this] { run(); });
}

void Wire::send(int peer, Message* message) {
  Outgoing outgoing{.frame = {.source = rank_,
                              .group = message->group,
                              .tag = message->tag,
                              .call = message->call,
                              .count = message->count,
                              .bytes = message->bytes},
                    .payload = message->own_payload(),
                    .message = message,
                    .text = nullptr};
  {
    std::lock_guard lock(mutex_);
    queue_.emplace_back(peer, std::move(outgoing));
  }
  wake();
}

void Wire::close() {
  if (!thread_.joinable()) return;
  stop_ = true;
  wake();
  thread_.join();
}

void Wire::sent(const Outgoing& outgoing) {
  if (outgoing.message != nullptr) arena_->free(reinterpret_cast<std::byte*>(outgoing.message));
}

void Wire::keep_memory() {
  new std::shared_ptr<Segment>(segment_);
}

Message* Wire::draft(const Frame& frame) {
  auto* message = new (arena_->alloc(sizeof(Message) + frame.bytes)) Message;
  message->group = frame.group;
  message->tag = frame.tag;
  message->source = frame.source;
  message->owner = rank_;
  message->call = frame.call;
  message->count = frame.count;
  message->bytes = frame.bytes;
  message->payload = segment_->offset_of(message->own_payload());
  return message;
}

void Wire::deliver(Message* message) {
  push(*segment_, segment_->rank(rank_).inbox, segment_->offset_of(message));
  segment_->rank(rank_).bell.ring();
}

void Wire::hear(const Frame& frame, const std::string& text) {
  if (frame.kind == Frame::failure) segment_->fail(text);
  left_[frame.source] = true;
  segment_->rank(rank_).bell.ring();
}

void Wire::lose(int peer, const std::string& why) {
  if (left_[peer] || stop_) return;
  segment_->fail(peer, fmt::format("died: {}", why));
  left_[peer] = true;
}

void Wire::run() {
  Clock::time_point stopped{};
  bool said_goodbye = false;
  for (;;) {
    std::deque<std::pair<int, Outgoing>> queue;
    {
      std::lock_guard lock(mutex_);
      queue.swap(queue_);
    }
    bool failed = segment_->failed();
    try {
      for (auto& [peer, outgoing] : queue) transmit(peer, std::move(outgoing));
      if (failed && !told_failure_) {
        auto text = std::make_shared<std::string>(segment_->failure());
        for (int peer : peers_)
          transmit(peer, {.frame = {.kind = Frame::failure,
                                    .source = rank_,
                                    .bytes = static_cast<int64_t>(text->size())},
                          .payload = reinterpret_cast<const std::byte*>(text->data()),
                          .text = text});
        told_failure_ = true;
      }
      if (stop_ && closing(stopped, said_goodbye)) break;
      progress();
    } catch (const base::Error& error) {
      segment_->fail(rank_, fmt::format("failed: {}", error.what()));
      break;
    }
  }
  disconnect();
}

/// Whether all is said and sent, or there was no more time for it.
bool Wire::closing(Clock::time_point& since, bool& said_goodbye) {
  if (since == Clock::time_point{}) since = Clock::now();
  if (!said_goodbye) {
    for (int peer : peers_)
      transmit(peer, {.frame = {.kind = Frame::goodbye, .source = rank_}, .text = nullptr});
    said_goodbye = true;
  }
  auto limit = told_failure_ ? std::min<Clock::duration>(timeout_, std::chrono::seconds(1)) : timeout_;
  return drained() || Clock::now() - since > limit;
}

}  // namespace trireme::comm
