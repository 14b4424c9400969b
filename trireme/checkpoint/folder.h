#pragma once
// A run's checkpoints folder: step_00000100/ and its like, and `latest`, a text file with the name
// of the newest complete one. Everything is written in a hidden temporary folder beside and renamed
// when it is complete, so a folder that does not start with a dot is whole. One rank calls these
// functions.

#include <cstdint>
#include <optional>
#include <string>

namespace trireme::checkpoint {

/// "step_00000100"
std::string step_folder(int64_t step);

/// Makes an empty temporary folder beside `target` and returns its path.
std::string begin_folder(const std::string& target);
/// Makes the temporary folder durable and renames it to `target`, in place of what may be there.
void commit_folder(const std::string& temporary, const std::string& target);

/// Removes what an interrupted save left in `root` (temporary folders). A trainer calls it at its
/// start, save does.
void remove_stale(const std::string& root);

/// Points `latest` at a folder of `root`, atomically.
void set_latest(const std::string& root, const std::string& name);
/// The path of the checkpoint that `latest` names; the newest complete one when there is no
/// `latest`; nothing when the folder holds no checkpoint.
std::optional<std::string> find_latest(const std::string& root);

/// Keeps the newest `keep` complete checkpoints (0: all) and the one that `latest` names.
void prune(const std::string& root, int keep);

}  // namespace trireme::checkpoint
