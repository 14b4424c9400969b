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

PieceCutter::PieceCutter(std::vector<std::string> files, InputFormat format, InputPosition start)
    : files_(std::move(files)), format_(format), position_(start) {}

bool PieceCutter::is_json_lines(const std::string& path) const {
  if (format_ != InputFormat::automatic) return format_ == InputFormat::jsonl;
  std::string ending = fs::path(path).extension().string();
  return ending == ".jsonl" || ending == ".ndjson" || ending == ".json";
}

std::optional<Piece> PieceCutter::next() {
  if (position_.file == std::ssize(files_)) return std::nullopt;
  if (!open_) open_ = std::make_shared<base::MappedFile>(files_[position_.file]);
  const auto size = static_cast<int64_t>(open_->bytes().size());
  Piece piece{open_, position_.byte, size, is_json_lines(open_->path())};
  if (piece.json_lines && size - piece.begin > kPieceBytes) {
    std::string_view rest = piece.text().substr(kPieceBytes);
    size_t line_end = rest.find('\n');
    if (line_end != rest.npos)
      piece.end = piece.begin + kPieceBytes + static_cast<int64_t>(line_end) + 1;
  }
  position_.byte = piece.end;
  if (piece.end == size) {
    position_ = {position_.file + 1, 0};
    open_.reset();
  }
  return piece;
}

}  // namespace trireme::data
