#pragma once
// SegmentBackend: groups over one segment, whoever set the segment up (see threads.h and shm.h).

#include <memory>

#include "trireme/comm/endpoint.h"

namespace trireme::comm {

class SegmentBackend : public Backend {
 public:
  SegmentBackend(std::shared_ptr<Segment> segment, int rank, std::chrono::milliseconds timeout);
  ~SegmentBackend() override;
  int rank() const override { return endpoint_->rank(); }
  int size() const override { return endpoint_->segment().ranks(); }
  Comm make(std::vector<int> ranks, const std::string& name) override;
  void abort(const std::string& why) override;

 protected:
  std::shared_ptr<Endpoint> endpoint_;
};

}  // namespace trireme::comm
