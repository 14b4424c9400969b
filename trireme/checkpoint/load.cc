#include "trireme/checkpoint/load.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>

#include "trireme/base/error.h"
#include "trireme/base/hash.h"
#include "trireme/base/hasher.h"
#include "trireme/base/io.h"
#include "trireme/checkpoint/folder.h"
#include "trireme/checkpoint/hf.h"
#include "trireme/checkpoint/hub.h"
#include "trireme/checkpoint/oslo.h"
#include "trireme/nn/low_rank.h"
#include "trireme/dist/redistribute.h"
#include "trireme/formats/weight_map.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;
using base::ConfigError;
using base::FormatError;

constexpr const char* kAdapterConfig = "adapter_config.json";  // PEFT's
constexpr size_t kChunkBytes = 1 << 20;  // stays in a cache between two uses

std::string resolve(const std::string& path) {
  const fs::path pointer(path);
  if (fs::is_regular_file(pointer) &&
      (pointer.filename() == kLatest || pointer.filename() == kBest)) {
    const std::string root = pointer.has_parent_path() ? pointer.parent_path().string() : ".";
    return *find_pointed(root, pointer.filename().string());
  }
  if (!fs::is_directory(path)) return cached_model(path);
  if (fs::exists(path + "/" + kManifestFile)) return path;
  for (const std::string& root : {path, path + "/checkpoints"}) {
    if (auto latest = find_latest(root)) return *latest;
  }
  if (fs::exists(path + "/" + kIndexFile)) {
    throw FormatError(fmt::format(
        "{}: there is no {}: the checkpoint is incomplete; use another one", path, kManifestFile));
  }
  if (fs::exists(path + "/config.json") || fs::exists(path + "/" + kAdapterConfig)) return path;
  throw ConfigError(fmt::format(
      "{}: no checkpoint in it; expected {} (a checkpoint), latest (a folder of them) or "
      "config.json with model.safetensors (Hugging Face)",
      path, kManifestFile));
}

/// "transformer.wte.weight.exp_avg" -> "exp_avg", given the parameters' names.
std::string kind_of(const std::string& name, const Index& index) {
  size_t dot = name.rfind('.');
  while (dot != std::string::npos && dot > 0) {
    if (index.contains(name.substr(0, dot))) return name.substr(dot + 1);
    dot = name.rfind('.', dot - 1);
  }
  return name;
}

bool is_optimizer_file(const std::string& file) {
  return file.starts_with("optimizer");
}

std::string first_names(const std::vector<std::string>& names, size_t most) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < most; ++i) text += (i ? ", " : "") + names[i];
  return names.size() > most ? fmt::format("{} and {} more", text, names.size() - most) : text;
}


}  // namespace

Checkpoint::Checkpoint(const std::string& path, const Describe& describe) : path_(resolve(path)) {
  if (fs::exists(path_ + "/" + kManifestFile))
    manifest_ = read_manifest(path_ + "/" + kManifestFile);
  const bool adapter = !manifest_ && !fs::exists(path_ + "/config.json") && fs::exists(path_ + "/" + kAdapterConfig);
  model_config_ = manifest_ ? manifest_->model_config : base::read_json(path_ + "/" + (adapter ? kAdapterConfig : "config.json"));
  if (!model_config_.is_object()) throw FormatError(path_ + "/config.json: not an object");
  if (manifest_ && !manifest_->merged) {
    open_split();
  } else if (has_oslo_files(path_)) {
    if (!describe) {
      throw ConfigError(fmt::format(
          "{}: OSLO's split files; `trireme ckpt convert` makes a checkpoint of them", path_));
    }
    index_ = oslo_index(path_, describe(model_config_),
                        [&](const std::string& file, const std::string& name) {
                          return open(file).zip->contains(name);
                        });
    for (auto& [name, tensor] : index_)
      tensor.dtype = open(tensor.parts.front().file).describe(name).dtype;
  } else if (adapter) {
    open_whole("adapter_model", false);
  } else {
    open_whole("model", false);
    if (manifest_) open_whole("optimizer", true);
  }
}

void Checkpoint::open_split() {
  std::string path = path_ + "/" + kIndexFile, text = base::read_file(path);
  if (base::hash_text(text) != manifest_->index_checksum) {
    throw FormatError(
        fmt::format("{}: its content does not match the checksum in {}: the file is damaged; use "
                    "another checkpoint",
                    path, kManifestFile));
  }
  index_ = index_from_text(text, path);
  drop_absent_optimizer();
}

/// A checkpoint may be copied without any of its optimizer's files; it then is one of weights only.
void Checkpoint::drop_absent_optimizer() {
  for (const auto& [file, tensors] : manifest_->checksums) {
    if (is_optimizer_file(file) && fs::exists(path_ + "/" + file)) return;
  }
  std::erase_if(index_, [](const auto& entry) { return entry.second.optimizer; });
}

void Checkpoint::open_whole(const std::string& stem, bool optimizer) {
  std::map<std::string, std::string> located = formats::locate_tensors(path_, stem);
  if (located.empty() && !manifest_)
    located = formats::locate_tensors(path_, "pytorch_model", "bin");
  if (located.empty() && !optimizer) {
    throw FormatError(
        fmt::format("{}: no weights beside config.json: there is neither model.safetensors nor "
                    "model.safetensors.index.json{}. "
                    "transformers' `save_pretrained` writes them, and so does `trireme ckpt "
                    "convert CHECKPOINT DIR --to hf`",
                    path_,
                    manifest_ ? "" : " nor pytorch_model.bin nor pytorch_model.bin.index.json"));
  }
  std::vector<std::pair<std::string, std::string>> ties;  // stored name, parameter it repeats
  for (const auto& [stored, where] : located) {
    std::string name = stored, name_of_file = fs::path(where).filename().string();
    if (!manifest_) {
      std::optional<std::string> mapped = model_name(model_config_, stored);
      if (!mapped) continue;
      name = *mapped;
    }
    const formats::StoredTensor& tensor = open(name_of_file).describe(stored);
    if (!manifest_ && !tied_to(model_config_, name).empty()) {
      ties.emplace_back(stored, tied_to(model_config_, name));
      continue;
    }
    LogicalTensor entry{tensor.dtype, tensor.shape, optimizer, {}};
    layout::Slice slice = layout::whole(tensor.shape);
    entry.parts.push_back({name_of_file, slice, {0, slice.count()}});
    if (!index_.emplace(name, std::move(entry)).second) {
      throw FormatError(fmt::format("{}: tensor \"{}\" is there twice, with and without its prefix",
                                    where, name));
    }
    if (name != stored) stored_names_[name] = stored;
  }
  for (const auto& [stored, name] : ties) {
    std::string where = fs::path(located.at(stored)).filename().string();
    const LogicalTensor& original = find(name);
    const formats::StoredTensor& copy = open(where).at(stored);
    std::span<const std::byte> bytes = find(name, original, original.parts.front()).bytes;
    if (copy.shape != original.shape || copy.dtype != original.dtype ||
        std::memcmp(copy.bytes.data(), bytes.data(), bytes.size()) != 0) {
      throw FormatError(
          fmt::format("{}/{}: tensor \"{}\" differs from \"{}\", but config.json ties them; set "
                      "tie_word_embeddings to false there if they are meant to differ",
                      path_, where, stored, name));
    }
  }
  if (!manifest_) return;
  for (const auto& [file_name, tensors] : manifest_->checksums) {
    // The optimizer's file may be left behind when a checkpoint is copied; the model's may not.
    if (!file_name.starts_with(stem) || (optimizer && located.empty())) continue;
    for (const auto& [name, hash] : tensors) {
      if (!index_.contains(name)) {
        throw FormatError(
            fmt::format("{}/{}: tensor \"{}\" of the manifest is not there; use another checkpoint",
                        path_, file_name, name));
      }
    }
  }
}

bool Checkpoint::has_optimizer() const {
  for (const auto& [name, tensor] : index_) {
    if (tensor.optimizer) return true;
  }
  return false;
}

const formats::StoredTensor& Checkpoint::OpenFile::describe(const std::string& name) const {
  return zip ? zip->describe(name) : safetensors->at(name);
}

const formats::StoredTensor& Checkpoint::OpenFile::at(const std::string& name) const {
  return zip ? zip->at(name) : safetensors->at(name);
}

void Checkpoint::OpenFile::release(const std::string& name) const {
  zip ? zip->release(name) : safetensors->release(name);
}

const Checkpoint::OpenFile& Checkpoint::open(const std::string& file) const {
  OpenFile& open = files_[file];
  if (open.safetensors || open.zip) return open;
  std::string path = path_ + "/" + file;
  if (!fs::exists(path)) {
    throw FormatError(
        fmt::format("{}: the file is missing from the checkpoint; use another checkpoint", path));
  }
  if (file.ends_with(".bin")) {
    open.zip = std::make_unique<formats::TorchZipFile>(path);
  } else {
    open.safetensors = std::make_unique<formats::SafetensorsFile>(path);
  }
  return open;
}

const LogicalTensor& Checkpoint::find(const std::string& name) const {
  auto found = index_.find(name);
  if (found == index_.end()) {
    throw FormatError(fmt::format(
        "{}: there is no tensor \"{}\"; the checkpoint is of another model or optimizer", path_,
        name));
  }
  return found->second;
}

Checkpoint::Found Checkpoint::find(const std::string& name, const LogicalTensor& tensor,
                                   const StoredPart& part) const {
  auto renamed = stored_names_.find(name);
  const std::string& stored_name = renamed == stored_names_.end() ? name : renamed->second;
  std::lock_guard lock(*mutex_);
  const OpenFile& file = open(part.file);
  const formats::StoredTensor& stored = file.describe(stored_name);
  layout::Shape expected = stored_shape(part.slice, part.flat);
  Found found{&file,
              {part.file, stored_name},
              fmt::format("{}/{}: tensor \"{}\"", path_, part.file, stored_name), {}};
  if (stored.dtype != tensor.dtype || stored.shape != expected) {
    throw FormatError(fmt::format("{} is {} [{}], the checkpoint's index expects {} [{}]",
                                  found.where, base::name_of(stored.dtype),
                                  fmt::join(stored.shape, ", "), base::name_of(tensor.dtype),
                                  fmt::join(expected, ", ")));
  }
  found.bytes = file.at(stored_name).bytes;
  if (manifest_ && checked_.insert(found.place).second) {
    auto of_file = manifest_->checksums.find(part.file);
    if (of_file == manifest_->checksums.end() || !of_file->second.contains(stored_name)) {
      throw FormatError(fmt::format("{}: the manifest has no checksum for it", found.where));
    }
    found.checksum = of_file->second.at(stored_name);
  }
  return found;
}

void Checkpoint::check(const Found& found) const {
  if (found.checksum &&
      base::hash_bytes(found.bytes.data(), found.bytes.size()) != *found.checksum)
    refuse_damage(found);
}

void Checkpoint::refuse_damage(const Found& found) const {
  {
    std::lock_guard lock(*mutex_);
    checked_.erase(found.place);
  }
  throw FormatError(
      fmt::format("{}: its bytes do not match their checksum: the file is damaged; use another "
                  "checkpoint (--resume takes the one that checkpoints/latest names)",
                  found.where));
}

void Checkpoint::read(const nn::TensorPart& part) const {
  const LogicalTensor& tensor = find(part.name);
  if (tensor.shape != part.global_shape) {
    throw FormatError(fmt::format("{}: tensor \"{}\" has shape [{}], the model expects [{}]", path_,
                                  part.name, fmt::join(tensor.shape, ", "),
                                  fmt::join(part.global_shape, ", ")));
  }
  base::DType wanted = dist::dtype_of(part.data);
  if (wanted != tensor.dtype && !(base::is_floating(wanted) && base::is_floating(tensor.dtype))) {
    throw FormatError(fmt::format("{}: tensor \"{}\" has type {}, which does not convert to {}",
                                  path_, part.name, base::name_of(tensor.dtype),
                                  base::name_of(wanted)));
  }
  base::check(part.data.is_contiguous() && part.data.numel() == part.flat.size(),
              "{}: the memory to fill has another size than the part", part.name);
  bool direct = wanted == tensor.dtype && part.data.is_cpu();
  at::Tensor target =
      direct ? part.data
             : at::empty({part.flat.size()}, at::TensorOptions(dist::scalar_type(tensor.dtype))
                                                 .pinned_memory(part.data.is_cuda()));
  std::byte* out = static_cast<std::byte*>(target.data_ptr());
  int64_t size = base::size_of(tensor.dtype), filled = 0;
  for (const StoredPart& stored : tensor.parts) {
    std::vector<layout::Overlap> runs;
    for_each_shared(stored.slice, stored.flat, part.slice, part.flat, tensor.shape,
                    [&](const layout::Overlap& run) { runs.push_back(run); });
    if (runs.empty()) continue;
    const Found found = find(part.name, tensor, stored);
    const std::byte* from = found.bytes.data();
    if (runs.size() == 1 && runs[0].count == stored.flat.size()) {
      std::byte* to = out + runs[0].to * size;
      base::Hasher hasher;
      for (size_t at = 0; at < found.bytes.size(); at += kChunkBytes) {
        const size_t count = std::min(kChunkBytes, found.bytes.size() - at);
        std::memcpy(to + at, from + at, count);
        if (found.checksum) hasher.add(to + at, count);
      }
      if (found.checksum && hasher.hash() != *found.checksum) refuse_damage(found);
    } else {
      check(found);
      for (const layout::Overlap& run : runs)
        std::memcpy(out + run.to * size, from + run.from * size,
                    static_cast<size_t>(run.count * size));
    }
    for (const layout::Overlap& run : runs) filled += run.count;
    std::lock_guard lock(*mutex_);
    found.file->release(found.place.second);
  }
  if (filled != part.flat.size()) {
    throw FormatError(
        fmt::format("{}: the parts of tensor \"{}\" cover {} of {} elements that this rank needs",
                    path_, part.name, filled, part.flat.size()));
  }
  if (!direct) {
    at::Tensor destination = part.data.view({-1});
    destination.copy_(target);
  }
}

void Checkpoint::read_all(std::span<const nn::TensorPart> parts) const {
  std::atomic<size_t> next = 0;
  at::parallel_for(0, at::get_num_threads(), 1, [&](int64_t, int64_t) {
    for (size_t i = next++; i < parts.size(); i = next++) read(parts[i]);
  });
}

at::Tensor Checkpoint::read_whole(const std::string& name) const {
  const LogicalTensor& tensor = find(name);
  layout::Slice slice = layout::whole(tensor.shape);
  at::Tensor data = at::empty(tensor.shape, at::dtype(dist::scalar_type(tensor.dtype)));
  read({name, tensor.shape, slice, {0, slice.count()}, data, false});
  return data;
}

bool Checkpoint::holds(const nn::TensorPart& part) const {
  auto stored = index_.find(part.name);
  return stored != index_.end() && !stored->second.optimizer &&
         stored->second.shape == part.global_shape;
}

Checkpoint::Verified Checkpoint::verify() const {
  Verified verified;
  for (const auto& [name, tensor] : index_) {
    for (const StoredPart& part : tensor.parts) {
      const Found found = find(name, tensor, part);
      check(found);
      found.file->release(found.place.second);
      ++verified.tensors;
    }
  }
  if (!manifest_) return verified;
  for (const auto& [file, hash] : manifest_->companions) {
    std::string path = path_ + "/" + file;
    if (!fs::exists(path)) {
      throw FormatError(fmt::format(
          "{}: the file is missing from the checkpoint; copy it from another one of the run",
          path));
    }
    if (base::hash_text(base::read_file(path)) != hash) {
      throw FormatError(fmt::format(
          "{}: its content does not match its checksum in {}: the file was damaged or edited; "
          "copy it from another checkpoint of the run",
          path, kManifestFile));
    }
    ++verified.files;
  }
  verified.weights_only =
      !has_optimizer() && std::ranges::any_of(manifest_->checksums, [](const auto& file) {
        return is_optimizer_file(file.first);
      });
  return verified;
}

std::string Mismatch::text(size_t most) const {
  std::string text;
  auto add = [&](const char* what, const std::vector<std::string>& names) {
    if (!names.empty())
      text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", what, first_names(names, most));
  };
  add("missing", missing);
  add("not of the model", unexpected);
  add("of another shape", shapes);
  return text;
}

Mismatch compare(const Checkpoint& checkpoint, const std::vector<layout::ParamSpec>& specs) {
  Mismatch found;
  std::set<std::string> expected;
  for (const layout::ParamSpec& spec : specs) {
    expected.insert(spec.name);
    auto stored = checkpoint.tensors().find(spec.name);
    if (stored == checkpoint.tensors().end() || stored->second.optimizer) {
      found.missing.push_back(spec.name);
    } else if (stored->second.shape != spec.shape) {
      found.shapes.push_back(fmt::format("{} is [{}], expected [{}]", spec.name,
                                         fmt::join(stored->second.shape, ", "),
                                         fmt::join(spec.shape, ", ")));
    } else {
      ++found.common;
    }
  }
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (!tensor.optimizer && !expected.contains(name)) found.unexpected.push_back(name);
  }
  return found;
}

Mismatch load_parameters(const Checkpoint& checkpoint, std::span<const nn::TensorPart> parts,
                         const std::vector<layout::ParamSpec>& specs, bool strict) {
  Mismatch found = compare(checkpoint, specs);
  // An adapter begins as it was drawn beside weights that were trained without one.
  if (std::ranges::none_of(checkpoint.tensors(), [](const auto& entry) { return nn::is_low_rank(entry.first); }))
    std::erase_if(found.missing, nn::is_low_rank);
  // What begins as it is made: buffers that plain folders do not hold, and averages, which begin as their parameters.
  for (const layout::ParamSpec& spec : specs)
    if (!spec.average_of.empty() || (spec.kind == layout::ParamKind::buffer && !checkpoint.manifest()))
      std::erase(found.missing, spec.name);
  if (!found.empty() && (strict || found.common == 0)) {
    throw FormatError(fmt::format(
        "{}: the checkpoint is of another model than the configuration's `model`; {}. Set `model` "
        "to the checkpoint's own (`trireme ckpt inspect` shows it){}",
        checkpoint.path(), found.text(4),
        strict ? "; model.strict: false takes what both have from model.pretrained" : ""));
  }
  std::vector<nn::TensorPart> common;
  for (const nn::TensorPart& part : parts)
    if (checkpoint.holds(part)) common.push_back(part);
  checkpoint.read_all(common);
  return found;
}

void load_optimizer(const Checkpoint& checkpoint, std::span<const nn::TensorPart> parts,
                    const std::vector<std::string>& elsewhere) {
  if (parts.empty()) return;
  if (!checkpoint.has_optimizer()) {
    throw FormatError(fmt::format(
        "{}: the checkpoint holds no optimizer state, so training cannot be resumed from "
        "it; start a new run with model.pretrained set to it",
        checkpoint.path()));
  }
  std::set<std::string> kept(elsewhere.begin(), elsewhere.end());
  for (const nn::TensorPart& part : parts) kept.insert(kind_of(part.name, checkpoint.tensors()));
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (tensor.optimizer && !kept.contains(kind_of(name, checkpoint.tensors()))) {
      throw FormatError(fmt::format(
          "{}: tensor \"{}\" is of another optimizer; set `optim` as in the run that wrote "
          "the checkpoint",
          checkpoint.path(), name));
    }
  }
  checkpoint.read_all(parts);
}

}  // namespace trireme::checkpoint
