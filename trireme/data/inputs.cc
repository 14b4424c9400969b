#include "trireme/data/inputs.h"

#include <fnmatch.h>

#include <algorithm>
#include <filesystem>
#include <span>

#include "trireme/base/error.h"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPieceBytes = 1 << 20;
constexpr size_t kChunk = 256 << 10;  // read at once
constexpr size_t kContext = 16;       // bytes around a place that tell whether it is one to cut at

std::vector<std::string> segments(std::string_view path) {
  std::vector<std::string> parts;
  while (!path.empty()) {
    size_t slash = std::min(path.find('/'), path.size());
    if (slash > 0) parts.emplace_back(path.substr(0, slash));
    path.remove_prefix(std::min(slash + 1, path.size()));
  }
  return parts;
}

bool matches(std::span<const std::string> pattern, std::span<const std::string> path) {
  if (pattern.empty()) return path.empty();
  if (pattern[0] == "**") {
    return matches(pattern.subspan(1), path) ||
           (!path.empty() && matches(pattern, path.subspan(1)));
  }
  return !path.empty() && ::fnmatch(pattern[0].c_str(), path[0].c_str(), 0) == 0 &&
         matches(pattern.subspan(1), path.subspan(1));
}

/// Files under `root` whose path below it matches, sorted.
std::vector<std::string> files_under(const fs::path& root, std::span<const std::string> pattern) {
  std::vector<std::string> files;
  std::error_code error;
  for (fs::recursive_directory_iterator it(root, error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().filename().string().starts_with('.')) {
      if (it->is_directory()) it.disable_recursion_pending();
      continue;
    }
    if (it->is_regular_file() &&
        matches(pattern, segments(it->path().lexically_relative(root).string()))) {
      files.push_back(it->path().string());
    }
  }
  if (error) throw base::IoError(root.string(), error.value(), "listing");
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<std::string> expand(const std::string& argument) {
  const std::vector<std::string> anything{"**", "*"};
  if (fs::is_directory(argument)) return files_under(argument, anything);
  if (fs::exists(argument)) return {argument};
  size_t wildcard = argument.find_first_of("*?[");
  if (wildcard == std::string::npos) return {};
  size_t slash = argument.rfind('/', wildcard);
  fs::path root = slash == std::string::npos ? "." : argument.substr(0, slash + 1);
  if (!fs::is_directory(root)) return {};
  auto pattern = segments(slash == std::string::npos ? argument : argument.substr(slash + 1));
  auto files = files_under(root, pattern);
  if (slash == std::string::npos) {
    for (std::string& file : files)
      file = file.substr(2);  // without "./", as the shell writes them
  }
  return files;
}

}  // namespace

std::vector<std::string> expand_inputs(const std::vector<std::string>& arguments) {
  std::vector<std::string> files;
  for (const std::string& argument : arguments) {
    if (argument == "-") {
      files.push_back(argument);
      continue;
    }
    auto found = expand(argument);
    if (found.empty()) {
      throw base::ConfigError(fmt::format(
          "input {} names no file; expected a file, a folder with files or a pattern such as "
          "'src/**/*.py'",
          argument));
    }
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

int64_t input_bytes(const std::string& path) {
  return path == "-" ? 0 : static_cast<int64_t>(fs::file_size(path));
}

PieceCutter::PieceCutter(std::vector<std::string> files, InputFormat format, FindCut find_cut,
                         InputPosition start)
    : files_(std::move(files)),
      format_(format),
      find_cut_(std::move(find_cut)),
      position_(start) {}

bool PieceCutter::is_json_lines(const std::string& path) const {
  if (format_ != InputFormat::automatic) return format_ == InputFormat::jsonl;
  std::string ending = fs::path(without_compression(path)).extension().string();
  return path == "-" || ending == ".jsonl" || ending == ".ndjson" || ending == ".json";
}

/// Reads on; false at the end of the stream. Reads come in any size, but where a file is cut must
/// not depend on them.
bool PieceCutter::fill() {
  const size_t before = rest_.size();
  size_t got = 0;
  rest_.resize(before + kChunk);
  for (size_t n = 1; got < kChunk && n > 0; got += n)
    n = stream_->read(rest_.data() + before + got, kChunk - got);
  rest_.resize(before + got);
  return got > 0;
}

/// Where the next piece ends in rest_: behind a place with more behind it, or at the file's end.
size_t PieceCutter::find_end(bool json_lines) {
  size_t searched = 0;
  do {
    if (rest_.size() <= kPieceBytes) continue;
    if (json_lines) {  // behind the first line that ends past a piece's size
      const size_t end = rest_.find('\n', std::max(kPieceBytes, searched));
      if (end != rest_.npos && end + 1 < rest_.size()) return end + 1;
      searched = end == rest_.npos ? rest_.size() : end;
    } else if (find_cut_) {
      const size_t from = searched < kContext ? 0 : searched - kContext;
      const auto place = find_cut_(std::string_view(rest_).substr(from));
      if (place && from + *place > 0 && from + *place < rest_.size()) return from + *place;
      searched = rest_.size();
    }
  } while (fill());
  return rest_.size();
}

std::optional<Piece> PieceCutter::next() {
  if (position_.file == std::ssize(files_)) return std::nullopt;
  const std::string& path = files_[position_.file];
  const bool json_lines = is_json_lines(path);
  if (!stream_) {
    stream_ = open_stream(path);
    stream_->skip(position_.byte);  // what an earlier run had done
  }
  const size_t size = find_end(json_lines);
  const bool last = size == rest_.size();
  auto text = std::make_shared<const std::string>(rest_, 0, size);
  Piece piece{path, text, *text, json_lines, json_lines || position_.byte == 0, json_lines || last};
  rest_.erase(0, size);
  position_.byte += static_cast<int64_t>(size);
  if (last) {
    position_ = {position_.file + 1, 0};
    stream_.reset();
  }
  return piece;
}

}  // namespace trireme::data
