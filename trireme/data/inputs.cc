#include "trireme/data/inputs.h"

#include <fnmatch.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <span>

#include "trireme/base/error.h"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kPieceBytes = 1 << 20;

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

PieceCutter::PieceCutter(std::vector<std::string> files, InputFormat format, InputPosition start)
    : files_(std::move(files)), format_(format), position_(start) {}

bool PieceCutter::is_json_lines(const std::string& path) const {
  if (format_ != InputFormat::automatic) return format_ == InputFormat::jsonl;
  std::string ending = fs::path(without_compression(path)).extension().string();
  return path == "-" || ending == ".jsonl" || ending == ".ndjson" || ending == ".json";
}

std::optional<Piece> PieceCutter::next() {
  if (position_.file == std::ssize(files_)) return std::nullopt;
  const std::string path = files_[position_.file];
  const bool json_lines = is_json_lines(path);
  return is_stream(path) ? next_streamed(path, json_lines) : next_mapped(path, json_lines);
}

void PieceCutter::end_file() {
  position_ = {position_.file + 1, 0};
  map_.reset();
  stream_.reset();
  rest_.clear();
}

Piece PieceCutter::next_mapped(const std::string& path, bool json_lines) {
  if (!map_) map_ = std::make_shared<base::MappedFile>(path);
  const std::string_view all(reinterpret_cast<const char*>(map_->bytes().data()),
                             map_->bytes().size());
  Piece piece{path, map_, all.substr(position_.byte), json_lines};
  if (json_lines && std::ssize(piece.text) > kPieceBytes) {
    if (size_t line_end = piece.text.find('\n', kPieceBytes); line_end != piece.text.npos)
      piece.text = piece.text.substr(0, line_end + 1);
  }
  position_.byte += std::ssize(piece.text);
  if (position_.byte == std::ssize(all)) end_file();
  return piece;
}

Piece PieceCutter::next_streamed(const std::string& path, bool json_lines) {
  constexpr size_t kChunk = 256 << 10;
  std::vector<char> chunk(kChunk);
  bool more = true;
  const auto fill = [&] {
    const size_t n = stream_->read(chunk.data(), kChunk);
    more = n > 0;
    rest_.append(chunk.data(), n);
  };
  if (!stream_) {
    stream_ = open_stream(path);
    for (int64_t skip = position_.byte; skip > 0;) {  // what an earlier run had done
      fill();
      const int64_t done = std::min<int64_t>(skip, std::ssize(rest_));
      rest_.erase(0, static_cast<size_t>(done));
      skip -= done;
      if (!more)
        throw base::FormatError(path, position_.byte,
                                "the file ends before this place, where the run is to go on");
    }
  }
  // Cut behind the first line that ends past a piece's size; one byte more tells whether it was the
  // last.
  size_t end = std::string::npos;
  while (more) {
    if (json_lines && std::ssize(rest_) > kPieceBytes) {
      end = rest_.find('\n', kPieceBytes);
      if (end != rest_.npos && end + 1 < rest_.size()) break;
    }
    fill();
  }
  const size_t size = more ? end + 1 : rest_.size();
  auto text = std::make_shared<const std::string>(rest_.substr(0, size));
  Piece piece{path, text, *text, json_lines};
  rest_.erase(0, size);
  position_.byte += static_cast<int64_t>(size);
  if (rest_.empty() && !more) end_file();
  return piece;
}

}  // namespace trireme::data
