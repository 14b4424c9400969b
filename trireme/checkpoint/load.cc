#include "trireme/checkpoint/load.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>

#include "trireme/base/error.h"
#include "trireme/base/hash.h"
#include "trireme/base/io.h"
#include "trireme/checkpoint/folder.h"
#include "trireme/checkpoint/hf.h"
#include "trireme/checkpoint/oslo.h"
#include "trireme/dist/redistribute.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;
using base::ConfigError;
using base::FormatError;

std::string resolve(const std::string& path) {
  if (!fs::is_directory(path)) {
    throw ConfigError(fmt::format(
        "{}: there is no such folder; expected a checkpoint, a run's folder or a Hugging "
        "Face model folder",
        path));
  }
  if (fs::exists(path + "/" + kManifestFile)) return path;
  for (const std::string& root : {path, path + "/checkpoints"}) {
    if (auto latest = find_latest(root)) return *latest;
  }
  if (fs::exists(path + "/" + kIndexFile)) {
    throw FormatError(fmt::format(
        "{}: there is no {}: the checkpoint is incomplete; use another one", path, kManifestFile));
  }
  if (fs::exists(path + "/config.json")) return path;
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

std::string first_names(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < 4; ++i) text += (i ? ", " : "") + names[i];
  return names.size() > 4 ? fmt::format("{} and {} more", text, names.size() - 4) : text;
}

}  // namespace

Checkpoint::Checkpoint(const std::string& path, const Describe& describe) : path_(resolve(path)) {
  if (fs::exists(path_ + "/" + kManifestFile))
    manifest_ = read_manifest(path_ + "/" + kManifestFile);
  model_config_ = manifest_ ? manifest_->model_config : base::read_json(path_ + "/config.json");
  if (!model_config_.is_object()) throw FormatError(path_ + "/config.json: not an object");
  if (manifest_ && !manifest_->merged) {
    open_split();
  } else if (fs::exists(path_ + "/" + oslo_file(0, 0))) {
    if (!describe) {
      throw ConfigError(fmt::format(
          "{}: OSLO's split files; `trireme ckpt convert` makes a checkpoint of them", path_));
    }
    index_ = oslo_index(path_, describe(model_config_));
    for (auto& [name, tensor] : index_)
      tensor.dtype = stored(tensor.parts.front().file, name).dtype;
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
  std::string older = path_ + "/pytorch_model.bin";
  if (located.empty() && !manifest_ && fs::exists(older)) {
    formats::TorchZipFile file(older);
    for (const auto& [name, tensor] : file.tensors()) located[name] = older;
  }
  if (located.empty() && !optimizer) {
    throw FormatError(
        fmt::format("{}: no weights beside config.json: there is neither model.safetensors nor "
                    "model.safetensors.index.json{}. "
                    "transformers' `save_pretrained` writes them, and so does `trireme ckpt "
                    "convert CHECKPOINT DIR --to hf`",
                    path_, manifest_ ? "" : " nor pytorch_model.bin"));
  }
  std::vector<std::pair<std::string, std::string>> ties;  // stored name, parameter it repeats
  for (const auto& [stored, where] : located) {
    std::string name = stored, name_of_file = fs::path(where).filename().string();
    if (!manifest_) {
      std::optional<std::string> mapped = model_name(model_config_, stored);
      if (!mapped) continue;
      name = *mapped;
    }
    const formats::StoredTensor& tensor = this->stored(name_of_file, stored);
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
    const formats::StoredTensor& copy = this->stored(where, stored);
    std::span<const std::byte> bytes = bytes_of(name, original, original.parts.front());
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

const formats::StoredTensor& Checkpoint::stored(const std::string& file,
                                                const std::string& name) const {
  OpenFile& open = files_[file];
  if (!open.safetensors && !open.zip) {
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
  }
  return open.zip ? open.zip->at(name) : open.safetensors->at(name);
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

std::span<const std::byte> Checkpoint::bytes_of(const std::string& name,
                                                const LogicalTensor& tensor,
                                                const StoredPart& part) const {
  auto renamed = stored_names_.find(name);
  const std::string& stored_name = renamed == stored_names_.end() ? name : renamed->second;
  const formats::StoredTensor& stored = this->stored(part.file, stored_name);
  layout::Shape expected = stored_shape(part.slice, part.flat);
  std::string where = fmt::format("{}/{}: tensor \"{}\"", path_, part.file, stored_name);
  if (stored.dtype != tensor.dtype || stored.shape != expected) {
    throw FormatError(fmt::format("{} is {} [{}], the checkpoint's index expects {} [{}]", where,
                                  base::name_of(stored.dtype), fmt::join(stored.shape, ", "),
                                  base::name_of(tensor.dtype), fmt::join(expected, ", ")));
  }
  bool& checked = checked_[part.file][stored_name];
  if (manifest_ && !checked) {
    auto of_file = manifest_->checksums.find(part.file);
    if (of_file == manifest_->checksums.end() || !of_file->second.contains(stored_name)) {
      throw FormatError(fmt::format("{}: the manifest has no checksum for it", where));
    }
    if (base::hash_bytes(stored.bytes.data(), stored.bytes.size()) !=
        of_file->second.at(stored_name)) {
      throw FormatError(
          fmt::format("{}: its bytes do not match their checksum: the file is damaged; use another "
                      "checkpoint",
                      where));
    }
    checked = true;
  }
  return stored.bytes;
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
             : at::empty({part.flat.size()}, at::dtype(dist::scalar_type(tensor.dtype)));
  std::byte* out = static_cast<std::byte*>(target.data_ptr());
  int64_t size = base::size_of(tensor.dtype), filled = 0;
  for (const StoredPart& stored : tensor.parts) {
    std::span<const std::byte> bytes;
    for_each_shared(stored.slice, stored.flat, part.slice, part.flat, tensor.shape,
                    [&](const layout::Overlap& run) {
                      if (bytes.empty()) bytes = bytes_of(part.name, tensor, stored);
                      std::memcpy(out + run.to * size, bytes.data() + run.from * size,
                                  static_cast<size_t>(run.count * size));
                      filled += run.count;
                    });
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

at::Tensor Checkpoint::read_whole(const std::string& name) const {
  const LogicalTensor& tensor = find(name);
  layout::Slice slice = layout::whole(tensor.shape);
  at::Tensor data = at::empty(tensor.shape, at::dtype(dist::scalar_type(tensor.dtype)));
  read({name, tensor.shape, slice, {0, slice.count()}, data, false});
  return data;
}

Checkpoint::Verified Checkpoint::verify() const {
  Verified verified;
  for (const auto& [name, tensor] : index_) {
    for (const StoredPart& part : tensor.parts) {
      bytes_of(name, tensor, part);
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

void load_parameters(const Checkpoint& checkpoint, std::span<const nn::TensorPart> parts,
                     const std::vector<layout::ParamSpec>& specs) {
  std::vector<std::string> missing, extra, shapes;
  std::set<std::string> expected;
  for (const layout::ParamSpec& spec : specs) {
    expected.insert(spec.name);
    auto found = checkpoint.tensors().find(spec.name);
    if (found == checkpoint.tensors().end() || found->second.optimizer) {
      missing.push_back(spec.name);
    } else if (found->second.shape != spec.shape) {
      shapes.push_back(fmt::format("{} is [{}], expected [{}]", spec.name,
                                   fmt::join(found->second.shape, ", "),
                                   fmt::join(spec.shape, ", ")));
    }
  }
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (!tensor.optimizer && !expected.contains(name)) extra.push_back(name);
  }
  if (!missing.empty() || !extra.empty() || !shapes.empty()) {
    std::string text =
        fmt::format("{}: the checkpoint is of another model than the configuration's `model`",
                    checkpoint.path());
    if (!missing.empty()) text += fmt::format("; missing: {}", first_names(missing));
    if (!extra.empty()) text += fmt::format("; not of the model: {}", first_names(extra));
    if (!shapes.empty()) text += fmt::format("; of another shape: {}", first_names(shapes));
    throw FormatError(text +
                      ". Set `model` to the checkpoint's own (`trireme ckpt inspect` shows it)");
  }
  for (const nn::TensorPart& part : parts) checkpoint.read(part);
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
  for (const nn::TensorPart& part : parts) checkpoint.read(part);
}

}  // namespace trireme::checkpoint
