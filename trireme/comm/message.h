#pragma once
// Message: a block of some rank's arena that carries a payload to another rank's inbox.
//
// Between ranks of one host it is pushed there by its sender. What arrives from another host is put
// into such a block, of the receiver's own arena, by the receiver's wire (see wire.h), so a rank
// takes both alike.

#include "trireme/comm/segment.h"

namespace trireme::comm {

struct Message : Link {
  /// What it is matched by: the group's number, the sender, the tag.
  uint64_t group = 0, tag = 0;
  int source = 0;
  int owner = 0;  // the rank whose arena holds it
  /// What the sender called, for collectives to compare.
  uint64_t call = 0;
  int64_t count = 0;
  bool lent = false;  // the payload is the sender's buffer, which the sender keeps until `taken`
  std::atomic<uint32_t> taken{0};
  int64_t bytes = 0;
  uint64_t payload = 0;  // its offset

  /// The payload of a message that holds it itself.
  std::byte* own_payload() { return reinterpret_cast<std::byte*>(this + 1); }
};

}  // namespace trireme::comm
