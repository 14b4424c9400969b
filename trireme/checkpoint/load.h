#pragma once
// Checkpoint: a saved model on disk as a set of named logical tensors, whatever holds them: a split
// or merged checkpoint of trireme or a Hugging Face folder (single or sharded safetensors). A rank
// reads just the byte ranges of its own slices, so any layout loads what any other has saved,
// through one code path.
//
// Opening checks structure; reading checks the checksum of every stored part it touches. Nothing
// here is collective.
//
//   Checkpoint checkpoint(path);
//   load_parameters(checkpoint, nn::parts_of(store, coord), specs);
//   load_optimizer(checkpoint, optimizer.parts());

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trireme/checkpoint/index.h"
#include "trireme/checkpoint/manifest.h"
#include "trireme/formats/safetensors.h"
#include "trireme/formats/torch_zip.h"
#include "trireme/nn/tensor_part.h"

namespace trireme::checkpoint {

/// The parameters of the model that a config.json names; models' registry knows.
using Describe = std::function<layout::ModelDescription(const base::Json& config)>;

class Checkpoint {
 public:
  /// Opens a checkpoint folder, a folder of checkpoints or a run's folder (their latest), what a
  /// pointer file (`latest`, `best`) names, or a Hugging Face folder. ConfigError when there is no checkpoint at `path`; FormatError for one
  /// that is incomplete or damaged.
  /// OSLO's split files need `describe` too.
  explicit Checkpoint(const std::string& path, const Describe& describe = {});

  /// The folder that was opened.
  const std::string& path() const { return path_; }
  /// Nothing for a plain Hugging Face folder.
  const std::optional<Manifest>& manifest() const { return manifest_; }
  /// Hugging Face's config.json: the model's tree.
  const base::Json& model_config() const { return model_config_; }
  const Index& tensors() const { return index_; }
  bool has_optimizer() const;

  /// Fills part.data, converting between floating types. FormatError naming file and tensor: not
  /// there, another shape, a type that does not convert, damaged bytes.
  void read(const nn::TensorPart& part) const;
  /// Whether there is a parameter of a part's name and shape.
  bool holds(const nn::TensorPart& part) const;
  /// The same as read for several of different names, on all of this rank's threads.
  void read_all(std::span<const nn::TensorPart> parts) const;
  /// The whole tensor in its stored type.
  at::Tensor read_whole(const std::string& name) const;
  struct Verified {
    int64_t tensors = 0;        // stored parts
    int64_t files = 0;          // beside them: config.json, the tokenizer's
    bool weights_only = false;  // the optimizer's files were left behind
  };
  /// Checks every stored part, and every other file that the manifest lists, against its checksum.
  /// FormatError for the first that is damaged or missing; the optimizer's files may be missing,
  /// all together.
  Verified verify() const;

 private:
  void open_split();
  void open_whole(const std::string& stem, bool optimizer);
  void drop_absent_optimizer();
  struct OpenFile {
    std::unique_ptr<formats::SafetensorsFile> safetensors;
    std::unique_ptr<formats::TorchZipFile> zip;
    const formats::StoredTensor& describe(const std::string& name) const;
    const formats::StoredTensor& at(const std::string& name) const;
    void release(const std::string& name) const;
  };
  /// A stored part that was found as the index says, and what is known of its bytes.
  struct Found {
    const OpenFile* file;
    std::pair<std::string, std::string> place;  // the file's name, the name in it
    std::string where;                          // both, for errors
    std::span<const std::byte> bytes;
    std::optional<uint64_t> checksum = {};  // that is still to be compared
  };
  const OpenFile& open(const std::string& file) const;
  Found find(const std::string& name, const LogicalTensor& tensor, const StoredPart& part) const;
  /// Compares the checksum of all bytes.
  void check(const Found& found) const;
  [[noreturn]] void refuse_damage(const Found& found) const;
  const LogicalTensor& find(const std::string& name) const;

  std::string path_;
  std::optional<Manifest> manifest_;
  base::Json model_config_ = base::Json::object();
  Index index_;
  std::map<std::string, std::string>
      stored_names_;  // where a Hugging Face file spells a name otherwise
  // Of what follows; behind a pointer, so that a checkpoint can move.
  mutable std::unique_ptr<std::mutex> mutex_ = std::make_unique<std::mutex>();
  mutable std::map<std::string, OpenFile> files_;
  mutable std::set<std::pair<std::string, std::string>> checked_;  // places
};

/// How a checkpoint's parameters differ from a model's, by name.
struct Mismatch {
  int64_t common = 0;  // parameters that both have, of one shape
  std::vector<std::string> missing, unexpected;  // in the checkpoint; of the model
  std::vector<std::string> shapes;               // "NAME is [2, 3], expected [2, 4]"
  bool empty() const { return missing.empty() && unexpected.empty() && shapes.empty(); }
  /// One line with the first `most` names of each kind.
  std::string text(size_t most) const;
};
Mismatch compare(const Checkpoint& checkpoint, const std::vector<layout::ParamSpec>& specs);

/// Fills this rank's parameters. `specs` are all parameters of the model (of every stage): a
/// checkpoint that lacks one, holds another or one of another shape is refused, by every rank
/// alike. Not `strict`: what both have is filled, the rest stays as it is, and only a checkpoint
/// without anything in common is refused. Returns the differences.
Mismatch load_parameters(const Checkpoint& checkpoint, std::span<const nn::TensorPart> parts,
                         const std::vector<layout::ParamSpec>& specs, bool strict = true);

/// Fills this rank's optimizer tensors. FormatError when the checkpoint holds none, lacks one, or
/// holds a kind ("exp_avg") that this optimizer keeps neither here nor (`elsewhere`) on other ranks.
void load_optimizer(const Checkpoint& checkpoint, std::span<const nn::TensorPart> parts,
                    const std::vector<std::string>& elsewhere = {});

}  // namespace trireme::checkpoint
