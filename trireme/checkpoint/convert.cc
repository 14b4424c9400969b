#include "trireme/checkpoint/convert.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <functional>

#include "trireme/base/error.h"
#include "trireme/base/hash.h"
#include "trireme/checkpoint/folder.h"
#include "trireme/checkpoint/hf.h"
#include "trireme/checkpoint/oslo.h"
#include "trireme/checkpoint/save.h"
#include "trireme/dist/redistribute.h"
#include "trireme/nn/low_rank.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;
using formats::SafetensorsWriter;
using formats::TensorEntry;

/// The source's tensor that becomes `name` in the destination.
std::string source_of(const Checkpoint& source, const std::string& name,
                      const ConvertOptions& options) {
  const std::string average = name + ".ema";
  return options.average && source.tensors().contains(average) ? average : name;
}

void check_average(const Checkpoint& source, const ConvertOptions& options) {
  if (!options.average) return;
  if (options.optimizer)
    throw base::ConfigError(
        "the optimizer's tensors belong to the trained weights, not to their averages; convert one "
        "of them");
  if (std::ranges::none_of(source.tensors(),
                           [](const auto& entry) { return entry.first.ends_with(".ema"); }))
    throw base::ConfigError(
        fmt::format("{}: there are no moving averages in it: the run keeps them with "
                    "optim.ema.decay, and a copy without the optimizer's files loses them",
                    source.path()));
}

base::DType stored_dtype(const Checkpoint& source, const std::string& name,
                         const ConvertOptions& options) {
  const LogicalTensor& tensor = source.tensors().at(source_of(source, name, options));
  const bool parameter = !source.tensors().at(name).optimizer;
  bool convert = options.dtype && parameter && base::is_floating(tensor.dtype);
  return convert ? *options.dtype : tensor.dtype;
}

using Resizings = std::map<std::string, Resizing>;

/// FormatError where the source holds another shape than its configuration says.
Resizings resizings_of(const Checkpoint& source, const ConvertOptions& options) {
  if (!options.resize) return {};
  const ConvertOptions::Resize resize = options.resize(source.model_config());
  Resizings out = resizings(resize.before, resize.after);
  for (const auto& [name, change] : out) {
    const auto found = source.tensors().find(name);
    if (found != source.tensors().end() && found->second.shape != change.before)
      throw base::FormatError(fmt::format("{}: tensor \"{}\" is [{}], expected [{}]", source.path(), name,
                                          fmt::join(found->second.shape, ", "), fmt::join(change.before, ", ")));
  }
  return out;
}

/// Entries of the tensors of one kind, in the order in which files hold them.
std::vector<TensorEntry> entries_of(const Checkpoint& source, bool optimizer,
                                    const ConvertOptions& options, const Resizings& resizings = {}) {
  std::vector<TensorEntry> entries;
  for (const auto& [name, tensor] : source.tensors()) {
    if (options.change && nn::is_low_rank(name)) continue;  // merged
    const auto found = resizings.find(name);
    const layout::Shape& shape = found == resizings.end() ? tensor.shape : found->second.after;
    if (tensor.optimizer == optimizer && !(optimizer && options.average))
      entries.push_back({name, stored_dtype(source, name, options), shape});
  }
  std::sort(entries.begin(), entries.end(), formats::written_before);
  return entries;
}

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

/// The entries of each file, in order.
std::vector<std::vector<TensorEntry>> shards_of(const std::vector<TensorEntry>& entries,
                                                std::optional<int64_t> max_bytes) {
  std::vector<std::vector<TensorEntry>> shards(1);
  int64_t filled = 0;
  for (const TensorEntry& entry : entries) {
    const int64_t bytes = formats::checked_bytes(entry.shape, entry.dtype, entry.name);
    if (max_bytes && !shards.back().empty() && filled + bytes > *max_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().push_back(entry);
    filled += bytes;
  }
  return shards;
}

/// transformers loads weights in the type that config.json names.
void set_dtype(base::Json& config, const Checkpoint& source, const ConvertOptions& options) {
  if (config.contains("dtype") && !options.dtype) return;
  for (const auto& [name, tensor] : source.tensors()) {
    if (tensor.optimizer || !base::is_floating(tensor.dtype)) continue;
    config.erase("torch_dtype");
    switch (stored_dtype(source, name, options)) {
      case base::DType::f64:
        config["dtype"] = "float64";
        break;
      case base::DType::bf16:
        config["dtype"] = "bfloat16";
        break;
      case base::DType::f16:
        config["dtype"] = "float16";
        break;
      default:
        config["dtype"] = "float32";
    }
    return;
  }
}

Manifest manifest_for(const Checkpoint& source) {
  Manifest manifest = source.manifest().value_or(Manifest{});
  manifest.model_config = source.model_config();
  manifest.checksums.clear();
  manifest.index_checksum = 0;
  return manifest;
}

/// The parameter that an optimizer tensor belongs to, by the longest name that it extends.
const layout::ParamSpec* spec_of(const std::string& name,
                                 const std::map<std::string, const layout::ParamSpec*>& specs) {
  for (size_t end = name.size(); end != std::string::npos && end > 0;
       end = name.rfind('.', end - 1)) {
    auto found = specs.find(name.substr(0, end));
    if (found != specs.end()) return found->second;
  }
  return nullptr;
}

int64_t write_resized(const Checkpoint& source, const std::string& folder, bool optimizer, const ConvertOptions& options,
                      const Resizings& changed, Manifest& manifest, bool for_others = false) {
  const bool pickled = options.pickled;
  const std::string stem = optimizer ? "optimizer" : pickled ? "pytorch_model" : "model",
                    extension = pickled ? ".bin" : ".safetensors";
  std::vector<TensorEntry> entries = entries_of(source, optimizer, options, changed);
  std::map<std::string, std::string> names;  // in the file -> of the source
  for (TensorEntry& entry : entries) {
    const std::string name = entry.name;
    if (for_others) entry.name = file_name(manifest.model_config, name);
    names[entry.name] = name;
  }
  std::sort(entries.begin(), entries.end(), formats::written_before);
  const std::vector<std::vector<TensorEntry>> shards = shards_of(entries, options.max_shard_bytes);
  base::Json weight_map = base::Json::object();
  int64_t count = 0, total = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string number =
        shards.size() == 1 ? "" : fmt::format("-{:05}-of-{:05}", i + 1, shards.size());
    const std::string file = stem + number + extension, path = folder + "/" + file;
    std::unique_ptr<SafetensorsWriter> writer;
    std::unique_ptr<formats::TorchZipWriter> zip;
    if (pickled) {
      zip = std::make_unique<formats::TorchZipWriter>(path, shards[i]);
    } else {
      writer = std::make_unique<SafetensorsWriter>(
          path, shards[i], std::map<std::string, std::string>{{"format", "pt"}});
    }
    for (const TensorEntry& entry : shards[i]) {
      const std::string& name = names.at(entry.name);
      at::Tensor tensor = source.read_whole(source_of(source, name, options));
      if (options.change && !optimizer) tensor = options.change(name, tensor);
      if (const auto found = changed.find(name); found != changed.end()) tensor = found->second.apply(tensor);
      tensor = tensor.to(dist::scalar_type(entry.dtype));
      std::span<const std::byte> bytes = bytes_of(tensor);
      pickled ? zip->write(entry.name, bytes) : writer->write(entry.name, bytes);
      if (!pickled) manifest.checksums[file][entry.name] = base::hash_bytes(bytes.data(), bytes.size());
      weight_map[entry.name] = file;
      total += static_cast<int64_t>(bytes.size());
      ++count;
    }
    pickled ? zip->close() : writer->close();
  }
  if (shards.size() > 1) {
    base::Json index = {{"metadata", {{"total_size", total}}}, {"weight_map", std::move(weight_map)}};
    base::FileWriter writer(folder + "/" + stem + extension + ".index.json");
    writer.write(index.dump(2) + "\n");
    writer.close();
  }
  return count;
}

}  // namespace

at::Tensor Resizing::apply(at::Tensor tensor) const {
  for (size_t i = 0; i < before.size(); ++i) {
    if (before[i] == after[i]) continue;
    const auto dim = static_cast<int64_t>(i);
    const int64_t kept = std::min(before[i], after[i]);
    at::Tensor out = tensor.narrow(dim, 0, kept);
    if (after[i] > kept) {
      std::vector<int64_t> shape = tensor.sizes().vec();
      shape[i] = after[i] - kept;
      at::Tensor fill = tensor.mean(dim, true, at::kDouble).to(tensor.scalar_type());
      if (zeros) fill.zero_();
      out = at::cat({out, fill.expand(shape)}, dim);
    }
    tensor = out.contiguous();
  }
  return tensor;
}

std::map<std::string, Resizing> resizings(const std::vector<layout::ParamSpec>& before, const std::vector<layout::ParamSpec>& after) {
  std::map<std::string, Resizing> out;
  int64_t tables = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    const layout::ParamSpec &one = before[i], &other = after[i];
    base::check(one.name == other.name && one.shape.size() == other.shape.size(), "{} and {} are no parameters of one model",
                one.name, other.name);
    if (one.shape == other.shape) continue;
    const bool buffer = one.kind == layout::ParamKind::buffer;
    tables += !buffer && one.shape.size() > 1;
    out[one.name] = {.before = one.shape, .after = other.shape, .zeros = buffer};
  }
  for (auto& [name, change] : out) change.zeros |= tables == 1 && change.before.size() == 1;
  return out;
}

int64_t write_whole(const Checkpoint& source, const std::string& folder, bool optimizer, const ConvertOptions& options,
                    Manifest& manifest) {
  return write_resized(source, folder, optimizer, options, {}, manifest);
}

int64_t convert_to_hf(const Checkpoint& source, const std::string& destination,
                      const ConvertOptions& options) {
  check_average(source, options);
  if ((options.change || options.resize) && options.optimizer)
    throw base::ConfigError("the optimizer's tensors belong to the weights as they are; change these without them");
  bool with_optimizer = options.optimizer && source.manifest() && source.has_optimizer();
  if (with_optimizer && options.pickled)
    throw base::ConfigError(
        "pytorch_model.bin holds weights only; leave the optimizer out or write safetensors");
  const Resizings changed = resizings_of(source, options);
  int64_t count = 0;
  build_folder(destination, [&](const std::string& folder) {
    Manifest manifest = manifest_for(source);
    manifest.merged = true;
    if (options.resize) manifest.model_config = options.resize(source.model_config()).config;
    set_dtype(manifest.model_config, source, options);
    if (options.change) manifest.model_config.erase("adapter");
    for (bool optimizer : {false, true}) {
      if (!optimizer || with_optimizer)
        count += write_resized(source, folder, optimizer, options, changed, manifest, !with_optimizer);
    }
    if (options.check) options.check();
    write_model_files(folder, manifest.model_config, source.path());
    if (with_optimizer) write_manifest(folder, manifest, nullptr);
  });
  return count;
}

int64_t convert_to_split(const Checkpoint& source, const std::string& destination,
                         const layout::ModelDescription& description, const layout::Mesh& mesh,
                         const ConvertOptions& options) {
  check_average(source, options);
  int64_t count = 0;
  build_folder(destination, [&](const std::string& folder) {
    Manifest manifest = manifest_for(source);
    manifest.merged = false;
    manifest.mesh = mesh;
    manifest.description = retarget(description, mesh);
    std::map<std::string, const layout::ParamSpec*> specs;
    for (const layout::ParamSpec& spec : manifest.description.parameters) specs[spec.name] = &spec;
    auto slice_of = [&](const std::string& name, const layout::Shape& shape,
                        const layout::Coord& coord) {
      const layout::ParamSpec* spec = spec_of(name, specs);
      if (!spec)
        throw base::FormatError(fmt::format(
            "{}: tensor \"{}\" belongs to no parameter of the model", source.path(), name));
      layout::Slice slice;
      if (spec->shape == shape) {
        if (layout::is_owner(*spec, coord)) slice = layout::local_slice(*spec, mesh, coord);
      } else if (coord == layout::Coord{.pp = spec->layout.stages.front()}) {
        slice = layout::whole(shape);
      }
      return slice;  // no dimension where the rank does not write the tensor
    };
    Index index;
    for (bool optimizer : {false, true}) {
      std::vector<TensorEntry> entries = entries_of(source, optimizer, options);
      std::vector<std::vector<TensorEntry>> held(static_cast<size_t>(mesh.size()));
      for (const TensorEntry& entry : entries) {
        LogicalTensor& tensor = index[entry.name];
        tensor = {entry.dtype, entry.shape, optimizer, {}};
        for (int rank = 0; rank < mesh.size(); ++rank) {
          layout::Slice slice = slice_of(entry.name, entry.shape, mesh.coord(rank));
          if (slice.dims.empty() != entry.shape.empty() || (slice.dims.empty() && rank != 0))
            continue;
          if (slice.count() == 0 && layout::element_count(entry.shape) > 0) continue;
          tensor.parts.push_back({rank_file(optimizer, rank), slice, {0, slice.count()}});
          held[static_cast<size_t>(rank)].push_back({entry.name, entry.dtype, slice.shape()});
        }
      }
      std::map<std::string, std::unique_ptr<SafetensorsWriter>> writers;
      for (int rank = 0; rank < mesh.size(); ++rank) {
        std::string file = rank_file(optimizer, rank);
        auto& own = held[static_cast<size_t>(rank)];
        if (own.empty()) continue;
        writers[file] = std::make_unique<SafetensorsWriter>(
            folder + "/" + file, std::move(own),
            std::map<std::string, std::string>{{"format", "pt"}});
      }
      // Every file sorts its tensors alike, so one pass over all of them serves every writer in its
      // order.
      for (const TensorEntry& entry : entries) {
        for (const StoredPart& part : index[entry.name].parts) {
          at::Tensor data =
              at::empty(part.slice.shape(), at::dtype(dist::scalar_type(entry.dtype)));
          source.read({source_of(source, entry.name, options), entry.shape, part.slice, part.flat,
                       data, true});
          writers[part.file]->write(entry.name, bytes_of(data));
          manifest.checksums[part.file][entry.name] =
              base::hash_bytes(data.data_ptr(), data.nbytes());
        }
        ++count;
      }
      for (auto& [file, writer] : writers) writer->close();
    }
    write_model_files(folder, manifest.model_config, source.path());
    write_manifest(folder, manifest, &index);
  });
  return count;
}

int64_t convert_to_oslo(const Checkpoint& source, const std::string& destination,
                        const layout::ModelDescription& description, int tensor_parallel,
                        int stages, const ConvertOptions& options) {
  check_average(source, options);
  if (tensor_parallel < 1)
    throw base::ConfigError(
        fmt::format("{} tensor-parallel ranks; give 1 or more", tensor_parallel));
  layout::ModelDescription model = oslo_partition(description, stages);
  std::map<std::string, const layout::ParamSpec*> specs;
  for (const layout::ParamSpec& spec : model.parameters) specs[spec.name] = &spec;
  std::vector<TensorEntry> entries = entries_of(source, false, options);
  for (const TensorEntry& entry : entries) {
    if (!specs.contains(entry.name)) {
      throw base::FormatError(
          fmt::format("{}: tensor \"{}\" is no parameter of the model", source.path(), entry.name));
    }
  }
  int64_t count = 0;
  build_folder(destination, [&](const std::string& folder) {
    // All files list their tensors in one order, so one pass over the source serves them all.
    std::map<std::string, std::vector<TensorEntry>> held;
    std::map<std::string, std::vector<std::pair<std::string, layout::Slice>>> files_of;
    for (const TensorEntry& entry : entries) {
      for (int tp = 0; tp < tensor_parallel; ++tp) {
        layout::Slice slice = oslo_slice(*specs[entry.name], tp, tensor_parallel);
        for (int stage : specs[entry.name]->layout.stages) {
          held[oslo_file(tp, stage)].push_back({entry.name, entry.dtype, slice.shape()});
          files_of[entry.name].emplace_back(oslo_file(tp, stage), slice);
        }
      }
    }
    std::map<std::string, std::unique_ptr<formats::TorchZipWriter>> writers;
    for (auto& [file, list] : held) {
      writers[file] =
          std::make_unique<formats::TorchZipWriter>(folder + "/" + file, std::move(list));
    }
    for (const TensorEntry& entry : entries) {
      for (const auto& [file, slice] : files_of[entry.name]) {
        at::Tensor data = at::empty(slice.shape(), at::dtype(dist::scalar_type(entry.dtype)));
        source.read({source_of(source, entry.name, options), entry.shape, slice,
                     {0, slice.count()}, data, true});
        writers[file]->write(entry.name, bytes_of(data));
      }
      ++count;
    }
    for (auto& [file, writer] : writers) writer->close();
    base::Json config = source.model_config();
    set_dtype(config, source, options);
    write_model_files(folder, config, source.path());
  });
  return count;
}

std::vector<TensorDifference> difference(const Checkpoint& a, const Checkpoint& b) {
  bool optimizer = a.has_optimizer() && b.has_optimizer();
  std::vector<TensorDifference> found;
  for (const auto& [name, tensor] : b.tensors()) {
    if ((optimizer || !tensor.optimizer) && !a.tensors().contains(name))
      found.push_back({name, "only in B"});
  }
  for (const auto& [name, tensor] : a.tensors()) {
    if (tensor.optimizer && !optimizer) continue;
    auto other = b.tensors().find(name);
    if (other == b.tensors().end()) {
      found.push_back({name, "only in A"});
    } else if (other->second.shape != tensor.shape) {
      found.push_back({name, "shape"});
    } else {
      at::Tensor x = a.read_whole(name), y = b.read_whole(name);
      if (x.scalar_type() == y.scalar_type() && at::equal(x, y)) continue;
      x = x.to(at::kDouble).flatten(), y = y.to(at::kDouble).flatten();
      at::Tensor same = x.eq(y).logical_or(x.isnan().logical_and(y.isnan()));
      if (same.all().item<bool>()) continue;
      at::Tensor apart = (x - y).abs().masked_fill(same, 0);
      at::Tensor relative = (apart / at::maximum(x.abs(), y.abs())).masked_fill(same, 0);
      found.push_back({name, "values", apart.max().item<double>(), relative.max().item<double>()});
    }
  }
  std::sort(found.begin(), found.end(),
            [](const TensorDifference& x, const TensorDifference& y) { return x.name < y.name; });
  return found;
}

}  // namespace trireme::checkpoint
