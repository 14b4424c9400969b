#pragma once
// A run's checkpoints folder: step_00000100/ and its like, and pointers, text files with the name of
// one of them: `latest`, the newest complete one, and `best`, where the run keeps that. Everything is written in a hidden temporary folder beside and renamed
// when it is complete, so a folder that does not start with a dot is whole. One rank calls these
// functions.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace trireme::checkpoint {

/// "step_00000100"
std::string step_folder(int64_t step);

/// Makes an empty temporary folder beside `target` and returns its path.
std::string begin_folder(const std::string& target);
/// Makes the temporary folder durable and renames it to `target`, in place of what may be there.
void commit_folder(const std::string& temporary, const std::string& target);
/// Runs `write` on a temporary folder that becomes `destination` when it succeeds. ConfigError when that exists.
void build_folder(std::string destination, const std::function<void(const std::string& folder)>& write);

/// Removes what an interrupted save left in `root` (temporary folders). A trainer calls it at its
/// start, save does.
void remove_stale(const std::string& root);

inline constexpr const char *kLatest = "latest", *kBest = "best";

/// Makes a pointer name a folder of `root`, atomically.
void set_pointer(const std::string& root, const std::string& pointer, const std::string& name);
/// The path of the checkpoint that a pointer names; nothing when there is no such pointer.
/// FormatError when it names none.
std::optional<std::string> find_pointed(const std::string& root, const std::string& pointer);
/// The path of the checkpoint that `latest` names; the newest complete one when there is no
/// `latest`; nothing when the folder holds no checkpoint.
std::optional<std::string> find_latest(const std::string& root);

/// Keeps the newest `keep` complete checkpoints (0: all) and those that pointers name.
void prune(const std::string& root, int keep);

}  // namespace trireme::checkpoint
