#pragma once
// Channel: one NCCL communicator and the stream that its operations run on. Watch: the thread that
// looks after the channels of a rank. Inside the nccl backend only.

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "trireme/comm/comm.h"

namespace trireme::comm {

/// CommError unless a call of CUDA's went well.
void expect_cuda(cudaError_t code, const char* doing);

/// A moment of a stream.
class Moment {
 public:
  explicit Moment(cudaStream_t stream);
  Moment(const Moment&) = delete;
  ~Moment();
  /// Holds the stream back until the moment has come.
  void hold(cudaStream_t stream) const;
  bool passed() const;

 private:
  cudaEvent_t event_ = nullptr;
};

class Watch;

/// An operation on a channel.
struct Flight {
  std::string what = {};
  std::chrono::steady_clock::time_point since = {};
  std::unique_ptr<Moment> end = {};
};

class Channel {
 public:
  /// Joins the communicator `id` as `rank` of `size`. Collective over these. `name` and `peers` are
  /// for errors.
  Channel(std::shared_ptr<Watch> watch, const ncclUniqueId& id, int rank, int size,
          std::string name, std::string peers);
  Channel(const Channel&) = delete;
  ~Channel();

  using Issue = std::function<ncclResult_t(ncclComm_t comm, cudaStream_t stream)>;
  /// Runs what `issue` gives to the stream, once `ready` has passed. CommError when the channel has
  /// failed.
  std::shared_ptr<Flight> run(std::string what, const Moment& ready, const Issue& issue);
  /// Holds the default stream back until the flight's end.
  void land(const Flight& flight);
  bool landed(const Flight& flight);
  cudaStream_t stream() const { return stream_; }

  /// Looks for an error, a late operation. Called by the watch. Returns what is wrong, if anything.
  std::string look(std::chrono::milliseconds timeout);
  /// Aborts the communicator; later calls throw `why`.
  void fail(const std::string& why);

 private:
  /// Waits for a call that NCCL goes on with in the background.
  void settle(ncclResult_t code, const std::string& what);
  std::string describe(const std::string& what) const;
  void expect_whole() const;

  std::shared_ptr<Watch> watch_;
  std::string name_, peers_;
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
  std::mutex mutex_;  // guards what follows, and calls on the communicator
  std::deque<std::shared_ptr<Flight>> flights_;
  std::string failure_;
  std::atomic<bool> failed_{false};
};

class Watch {
 public:
  /// `host` outlives stop().
  Watch(Backend& host, int device, std::chrono::milliseconds timeout);
  ~Watch();
  /// Makes the calling thread use the rank's GPU.
  void use_device() const;
  int device() const { return device_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  void add(const std::shared_ptr<Channel>& channel);
  /// Fails all channels and the job.
  void fail(const std::string& why);
  /// Why the job has failed; empty: it has not.
  std::string failure() const;
  void stop();

 private:
  void run();
  void fail_channels(const std::string& why);

  Backend* host_;
  int device_;
  std::chrono::milliseconds timeout_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  std::vector<std::weak_ptr<Channel>> channels_;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace trireme::comm
