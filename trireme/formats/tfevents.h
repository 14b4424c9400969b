#pragma once
// TensorBoard event files: scalars over steps. Records are framed as TFRecord (length and payload
// each with a masked CRC32C); the payload is an `Event` message of
// tensorflow/core/util/event.proto, encoded here by hand.
//
//   EventWriter writer("out/run");
//   writer.scalars(step, {{"train/loss", 3.2}, {"train/lr", 1e-3}});

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::formats {

struct Scalar {
  std::string_view tag;
  double value;  // stored as fp32
};

/// One new file `events.out.tfevents.<seconds>.<host>.<pid>.<n>`; TensorBoard reads all files of a
/// folder as one run, the latest value of a step winning. Every record is handed to the operating
/// system as it is written.
class EventWriter {
 public:
  /// Creates the file in an existing folder; IoError when it cannot.
  explicit EventWriter(const std::string& directory);
  ~EventWriter();
  EventWriter(const EventWriter&) = delete;
  EventWriter& operator=(const EventWriter&) = delete;

  /// One event of several scalars, at the present time.
  void scalars(int64_t step, const std::vector<Scalar>& scalars);
  const std::string& path() const { return path_; }

 private:
  void write_record(const std::string& payload);
  std::string path_;
  int fd_ = -1;
};

/// CRC32C (Castagnoli) of a byte range.
uint32_t crc32c(std::string_view bytes);

/// A TFRecord: length, its masked CRC, payload, its masked CRC.
std::string frame_record(std::string_view payload);

}  // namespace trireme::formats
