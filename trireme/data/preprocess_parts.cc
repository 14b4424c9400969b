#include "trireme/data/preprocess_parts.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "trireme/base/error.h"
#include "trireme/base/io.h"
#include "trireme/data/indexed.h"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;
using base::Json;

Json to_json(const PreprocessState& s) {
  return {{"file", s.position.file},      {"byte", s.position.byte},  {"line", s.line},
          {"input_bytes", s.input_bytes}, {"documents", s.documents}, {"tokens", s.tokens},
          {"text_bytes", s.text_bytes},   {"empty", s.empty},         {"skipped", s.skipped},
          {"duplicates", s.duplicates},   {"errors", s.errors}};
}

PreprocessState from_json(const Json& j) {
  return {{j.at("file"), j.at("byte")},
          j.at("line"),
          j.at("input_bytes"),
          j.at("documents"),
          j.at("tokens"),
          j.at("text_bytes"),
          j.at("empty"),
          j.at("skipped"),
          j.at("duplicates"),
          j.at("errors").get<std::vector<std::string>>()};
}

}  // namespace

PreprocessParts::PreprocessParts(const std::string& prefix, int64_t keys, const Json& job,
                                 bool with_skipped)
    : folder_(prefix + ".parts"), keys_(keys) {
  base::make_folders(folder_, "creating");
  const std::string lock = folder_ + "/lock";
  lock_ = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock_ < 0) throw base::IoError(lock, errno, "creating");
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    ::close(lock_);
    throw base::ConfigError(
        fmt::format("another process is writing {}; wait for it or choose another --out", prefix));
  }
  if (take_up(job, with_skipped)) return;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    if (entry.path() != lock) fs::remove_all(entry.path());
  }
  base::write_file_atomic(folder_ + "/job.json", job.dump(2));
}

bool PreprocessParts::take_up(const Json& job, bool with_skipped) {
  if (!fs::exists(folder_ + "/job.json")) return false;
  try {
    if (base::read_json(folder_ + "/job.json") != job) return false;
    for (; fs::exists(record_of(count_)); ++count_) {
      PreprocessState state = from_json(base::read_json(record_of(count_)));
      if (state.skipped > 0 && !with_skipped) break;
      for (int64_t key = 0; key < keys_; ++key) IndexedDataset part(prefix_of(count_, key));
      state_ = std::move(state);
    }
  } catch (const std::exception&) {
    // A damaged record ends what can be used: the rest is done again.
  }
  return true;
}

PreprocessParts::~PreprocessParts() {
  if (count_ == 0) clear();
  if (lock_ >= 0) ::close(lock_);
}

std::string PreprocessParts::prefix_of(int64_t part, int64_t key) const {
  return fmt::format("{}/{:05}.{}", folder_, part, key);
}

std::string PreprocessParts::record_of(int64_t part) const {
  return fmt::format("{}/{:05}.json", folder_, part);
}

std::vector<TextHash> PreprocessParts::hashes() const {
  std::vector<TextHash> all;
  for (int64_t part = 0; part < count_; ++part) {
    const std::string path = fmt::format("{}/{:05}.hashes", folder_, part);
    if (!fs::exists(path)) continue;
    const std::string bytes = base::read_file(path);
    const size_t count = bytes.size() / sizeof(TextHash);
    all.resize(all.size() + count);
    std::memcpy(all.data() + all.size() - count, bytes.data(), count * sizeof(TextHash));
  }
  return all;
}

void PreprocessParts::add(const PreprocessState& state, const std::vector<TextHash>& hashes) {
  if (!hashes.empty()) {
    base::write_file_atomic(
        fmt::format("{}/{:05}.hashes", folder_, count_),
        {reinterpret_cast<const char*>(hashes.data()), hashes.size() * sizeof(TextHash)});
  }
  base::write_file_atomic(record_of(count_), to_json(state).dump());
  state_ = state;
  ++count_;
}

void PreprocessParts::clear() {
  std::error_code ignored;  // what is left of a finished run does no harm
  fs::remove_all(folder_, ignored);
  count_ = 0;
}

}  // namespace trireme::data
