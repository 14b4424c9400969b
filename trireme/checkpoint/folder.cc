#include "trireme/checkpoint/folder.h"

#include <fcntl.h>
#include <stdio.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/io.h"
#include "trireme/checkpoint/manifest.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;
using base::IoError;

constexpr std::string_view kStepPrefix = "step_", kTemporary = ".tmp";

void remove_tree(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) throw IoError(path.string(), error.value(), "removing");
}

void move_to(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0)
    throw IoError(to, errno, fmt::format("renaming {} to it", from));
}

fs::path temporary_of(const fs::path& target) {
  return target.parent_path() / fmt::format(".{}{}", target.filename().string(), kTemporary);
}

/// Complete checkpoints by ascending step.
std::vector<std::pair<int64_t, fs::path>> complete(const std::string& root) {
  std::vector<std::pair<int64_t, fs::path>> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(root, error)) {
    std::string name = entry.path().filename().string();
    if (!name.starts_with(kStepPrefix) || !fs::exists(entry.path() / kManifestFile)) continue;
    int64_t step = 0;
    const char* end = name.data() + name.size();
    if (std::from_chars(name.data() + kStepPrefix.size(), end, step).ptr == end)
      found.emplace_back(step, entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

std::string step_folder(int64_t step) {
  return fmt::format("{}{:08}", kStepPrefix, step);
}

std::string begin_folder(const std::string& target) {
  fs::path temporary = temporary_of(target);
  remove_tree(temporary);
  base::make_folders(temporary.string());
  return temporary.string();
}

void commit_folder(const std::string& temporary, const std::string& target) {
  base::sync_directory(temporary);
  if (fs::exists(target)) {
    // The swap leaves no moment without a complete folder; file systems that lack it take two
    // renames.
    if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) {
      remove_tree(temporary);
    } else {
      std::string old = temporary_of(target + ".old").string();
      remove_tree(old);
      move_to(target, old);
      move_to(temporary, target);
      remove_tree(old);
    }
  } else {
    move_to(temporary, target);
  }
  base::sync_directory(fs::path(target).parent_path().string());
}

void remove_stale(const std::string& root) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(root, error)) {
    std::string name = entry.path().filename().string();
    bool temporary = name.starts_with('.') && name.ends_with(kTemporary);
    bool pointer = name == fmt::format("{}{}", kLatest, kTemporary) ||
                   name == fmt::format("{}{}", kBest, kTemporary);
    if (temporary || pointer) remove_tree(entry.path());
  }
}

void set_pointer(const std::string& root, const std::string& pointer, const std::string& name) {
  base::write_file_atomic(root + "/" + pointer, name + "\n");
}

std::optional<std::string> find_pointed(const std::string& root, const std::string& pointer) {
  std::string file = root + "/" + pointer;
  if (!fs::exists(file)) return std::nullopt;
  std::string name = base::read_file(file);
  while (!name.empty() && (name.back() == '\n' || name.back() == ' ')) name.pop_back();
  std::string path = root + "/" + name;
  if (name.empty() || name.find('/') != std::string::npos ||
      !fs::exists(path + "/" + kManifestFile)) {
    throw base::FormatError(
        fmt::format("{}: it names \"{}\", which is no complete checkpoint of this folder; write "
                    "the name of one into it",
                    file, name));
  }
  return path;
}

std::optional<std::string> find_latest(const std::string& root) {
  if (auto path = find_pointed(root, kLatest)) return path;
  auto all = complete(root);
  if (all.empty()) return std::nullopt;
  return all.back().second.string();
}

void prune(const std::string& root, int keep) {
  if (keep <= 0) return;
  std::optional<std::string> latest = find_latest(root), best = find_pointed(root, kBest);
  auto all = complete(root);
  for (size_t i = 0; i + static_cast<size_t>(keep) < all.size(); ++i) {
    const fs::path& path = all[i].second;
    if (path == latest || path == best) continue;
    // Renamed first, so that a half-removed checkpoint never looks like one.
    fs::path doomed = temporary_of(path);
    remove_tree(doomed);
    move_to(path.string(), doomed.string());
    remove_tree(doomed);
  }
}

void build_folder(std::string destination, const std::function<void(const std::string& folder)>& write) {
  while (destination.size() > 1 && destination.back() == '/') destination.pop_back();
  if (fs::exists(destination)) {
    throw base::ConfigError(fmt::format(
        "{} exists already; give a destination that does not, or remove it", destination));
  }
  std::string folder = begin_folder(destination);
  try {
    write(folder);
    commit_folder(folder, destination);
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(folder, ignored);
    throw;
  }
}

}  // namespace trireme::checkpoint
