#pragma once
// SegmentBackend: groups over one segment, whoever set the segment up (see threads.h and shm.h),
// and where ranks are on several hosts over a wire between their segments.

#include <map>
#include <memory>
#include <vector>

#include "trireme/comm/endpoint.h"

namespace trireme::comm {

class SegmentBackend : public Backend {
 public:
  /// `hosts[r]`: the number of rank r's host; empty: all are on this one, and there is no wire.
  SegmentBackend(std::shared_ptr<Segment> segment, int rank, std::chrono::milliseconds timeout,
                 std::vector<int> hosts = {}, std::shared_ptr<Wire> wire = nullptr);
  ~SegmentBackend() override;
  int rank() const override { return endpoint_->rank(); }
  int size() const override { return endpoint_->segment().ranks(); }
  int host(int rank) const override { return hosts_.empty() ? 0 : hosts_[rank]; }
  Comm make(std::vector<int> ranks, const std::string& name) override;
  void abort(const std::string& why) override;
  std::string failure() const override;

 protected:
  std::shared_ptr<Endpoint> endpoint_;

 private:
  std::vector<int> hosts_;
  std::map<uint64_t, uint64_t> made_;  // groups of several hosts, counted by name and ranks
};

}  // namespace trireme::comm
