#pragma once
// Wire: one rank's connection to the ranks of other hosts.
//
// It carries messages of the rank's arena there and puts what arrives into the rank's inbox, on a
// thread of its own, so that communication goes on while the rank computes. It tells the other
// hosts why the job failed, and the rank who has ended. How bytes travel is the transport's matter:
// TCP (backends/tcp.h) or MPI (backends/mpi.h). It never touches memory of its user: messages are
// copies, so an operation's buffers are free as soon as the operation has ended.
//
//   endpoint.attach(make_tcp_wire(...));   // the endpoint starts it and closes it

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "trireme/comm/arena.h"
#include "trireme/comm/message.h"

namespace trireme::comm {

/// What precedes each payload on its way. Both ends are the same build on the same architecture.
struct Frame {
  enum Kind : uint32_t { message = 1, failure, goodbye };
  uint32_t kind = message;
  int32_t source = 0;
  uint64_t group = 0, tag = 0, call = 0;
  int64_t count = 0, bytes = 0;
};

/// A frame to send and its payload, which lies in a message's block or in a text.
struct Outgoing {
  Frame frame;
  const std::byte* payload = nullptr;
  Message* message = nullptr;         // freed when sent; may be null
  std::shared_ptr<std::string> text;  // of a failure
};

class Wire {
 public:
  virtual ~Wire();
  /// Takes its place at `rank`. `pending` counts the rank's operations in flight; `timeout` bounds
  /// how long `close` waits for what is under way.
  void start(std::shared_ptr<Segment> segment, std::shared_ptr<Arena> arena, int rank,
             const std::atomic<int>& pending, std::chrono::milliseconds timeout);
  /// Sends a message of the rank's arena, which it frees. Never blocks; any thread.
  void send(int peer, Message* message);
  /// Whether a rank of another host has ended in good order; all it sent has arrived before.
  bool left(int peer) const { return left_[peer].load(); }
  /// Sends what is queued, the reason of a failure if there is one, then goodbye, and ends.
  void close();

 protected:
  /// `peers`: the ranks of other hosts.
  explicit Wire(std::vector<int> peers) : peers_(std::move(peers)) {}
  const std::vector<int>& peers() const { return peers_; }
  /// A block for the payload of an arriving message.
  Message* draft(const Frame& frame);
  void deliver(Message* message);
  /// An arrived failure or goodbye.
  void hear(const Frame& frame, const std::string& text);
  /// The connection to a peer is gone.
  void lose(int peer, const std::string& why);
  void sent(const Outgoing& outgoing);
  /// The messages' memory stays until the process ends: a transport still uses it.
  void keep_memory();
  /// Whether somebody waits: a transport that has to look for arrivals looks often then.
  bool busy() const { return *pending_ > 0; }
  /// It ends when all is sent.
  bool stopping() const { return stop_; }

  // For transports; called by the wire's thread, but for `wake`.
  virtual void transmit(int peer, Outgoing outgoing) = 0;
  /// Nothing is left to transmit; of a transport that cannot leave before its peers, nor to receive.
  virtual bool drained() const = 0;
  /// Sends and receives what it can, and waits for more, up to 100 ms or until `wake`.
  virtual void progress() = 0;
  virtual void wake() = 0;
  /// The last call.
  virtual void disconnect() = 0;

 private:
  void run();
  bool closing(std::chrono::steady_clock::time_point& since, bool& said_goodbye);

  std::vector<int> peers_;
  std::shared_ptr<Segment> segment_;
  std::shared_ptr<Arena> arena_;
  int rank_ = 0;
  std::chrono::milliseconds timeout_{0};
  const std::atomic<int>* pending_ = nullptr;
  std::unique_ptr<std::atomic<bool>[]> left_;
  bool told_failure_ = false;

  std::mutex mutex_;  // guards queue_
  std::deque<std::pair<int, Outgoing>> queue_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace trireme::comm
