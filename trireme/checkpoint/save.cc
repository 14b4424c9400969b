#include "trireme/checkpoint/save.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <filesystem>

#include "trireme/base/error.h"
#include "trireme/base/hash.h"
#include "trireme/checkpoint/folder.h"
#include "trireme/checkpoint/hf.h"
#include "trireme/checkpoint/together.h"
#include "trireme/dist/redistribute.h"
#include "trireme/formats/safetensors.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;
using base::Json;
using nn::TensorPart;

const std::map<std::string, std::string> kMetadata = {{"format", "pt"}};

std::span<const std::byte> bytes_of(const TensorPart& part) {
  base::check(
      part.data.defined() && part.data.is_contiguous() && part.data.numel() == part.flat.size(),
      "{}: its data is not the contiguous {} elements of the part", part.name, part.flat.size());
  return {static_cast<const std::byte*>(part.data.data_ptr()), part.data.nbytes()};
}

std::vector<TensorPart> owned(const std::vector<TensorPart>& parts) {
  std::vector<TensorPart> out;
  for (const TensorPart& part : parts) {
    if (part.owner && (part.flat.size() > 0 || layout::element_count(part.global_shape) == 0)) {
      out.push_back(part);
      out.back().data = part.data.to(at::kCPU);
    }
  }
  return out;
}

/// A part as the other ranks hear of it.
struct Announced {
  TensorPart part;  // without data
  base::DType dtype = base::DType::f32;
  bool optimizer = false;
  int rank = 0;
  uint64_t checksum = 0;  // split only
};

std::string announce(const std::vector<TensorPart>& parts,
                     const std::map<std::string, uint64_t>& checksums) {
  Json list = Json::array();
  for (const TensorPart& part : parts) {
    list.push_back({part.name,
                    part.global_shape,
                    to_json(part.slice),
                    {part.flat.begin, part.flat.end},
                    base::name_of(dist::dtype_of(part.data)),
                    checksums.contains(part.name) ? checksums.at(part.name) : 0});
  }
  return list.dump();
}

void hear(const std::string& text, bool optimizer, int rank, std::vector<Announced>& all) {
  for (const Json& item : base::parse_json(text, "announced parts")) {
    TensorPart part{item[0],
                    item[1].get<layout::Shape>(),
                    slice_from_json(item[2]),
                    {item[3][0].get<int64_t>(), item[3][1].get<int64_t>()},
                    {},
                    true};
    all.push_back({std::move(part), base::dtype_of(item[4].get<std::string>()), optimizer, rank,
                   item[5].get<uint64_t>()});
  }
}

/// The logical tensors that announced parts make up; `file_of` names the file of a part.
Index index_of(const std::vector<Announced>& all,
               const std::function<std::string(const Announced&)>& file_of) {
  Index index;
  std::map<std::string, int64_t> covered;
  for (const Announced& a : all) {
    LogicalTensor& tensor = index[a.part.name];
    if (tensor.parts.empty()) tensor = {a.dtype, a.part.global_shape, a.optimizer, {}};
    base::check(tensor.shape == a.part.global_shape && tensor.dtype == a.dtype &&
                    tensor.optimizer == a.optimizer,
                "ranks disagree on the shape or type of {}", a.part.name);
    tensor.parts.push_back({file_of(a), a.part.slice, a.part.flat});
    covered[a.part.name] += a.part.flat.size();
  }
  for (const auto& [name, count] : covered) {
    base::check(count == layout::element_count(index[name].shape),
                "{}: its owners hold {} elements of {}", name, count,
                layout::element_count(index[name].shape));
  }
  return index;
}

/// Each rank's file of parameters and of optimizer tensors, then their index on every rank.
Index save_split(const SaveRequest& request, const comm::Comm& world, const std::string& folder,
                 Manifest& manifest) {
  std::vector<Announced> all;
  for (bool optimizer : {false, true}) {
    std::vector<std::string> announced = together(world, [&] {
      std::vector<TensorPart> parts = owned(optimizer ? request.optimizer : request.parameters);
      std::string file = rank_file(optimizer, world.rank());
      return announce(parts, parts.empty() ? std::map<std::string, uint64_t>{}
                                           : write_parts(folder, file, parts));
    });
    for (int rank = 0; rank < world.size(); ++rank) hear(announced[rank], optimizer, rank, all);
  }
  for (const Announced& a : all)
    manifest.checksums[rank_file(a.optimizer, a.rank)][a.part.name] = a.checksum;
  return index_of(all, [](const Announced& a) { return rank_file(a.optimizer, a.rank); });
}

/// Rank 0 receives and writes the tensors of one file; the others send their parts, one at a time.
void stream(const SaveRequest& request, const comm::Comm& world, const std::string& folder,
            bool optimizer, Manifest& manifest) {
  std::string file = optimizer ? "optimizer.safetensors" : "model.safetensors";
  std::vector<TensorPart> mine;
  std::vector<std::string> announced = together(world, [&] {
    mine = owned(optimizer ? request.optimizer : request.parameters);
    for (const TensorPart& part : mine) bytes_of(part);
    return announce(mine, {});
  });
  std::vector<Announced> all;
  for (int rank = 0; rank < world.size(); ++rank) hear(announced[rank], optimizer, rank, all);
  if (all.empty()) return;
  Index index = index_of(all, [&](const Announced&) { return file; });
  std::map<std::string, std::vector<const Announced*>> parts_of;
  for (const Announced& a : all) parts_of[a.part.name].push_back(&a);
  std::map<std::string, const TensorPart*> my_part;
  for (const TensorPart& part : mine) my_part[part.name] = &part;
  std::vector<formats::TensorEntry> order;
  for (const auto& [name, tensor] : index) order.push_back({name, tensor.dtype, tensor.shape});
  std::sort(order.begin(), order.end(), formats::written_before);

  // A failure of rank 0 is kept until all parts have come in: the senders must not be left waiting.
  std::exception_ptr failure;
  auto attempt = [&](const std::function<void()>& work) {
    if (failure) return;
    try {
      work();
    } catch (const base::Error&) {
      failure = std::current_exception();
    }
  };
  std::unique_ptr<formats::SafetensorsWriter> writer;
  if (world.rank() == 0) {
    attempt([&] {
      writer = std::make_unique<formats::SafetensorsWriter>(folder + "/" + file, order, kMetadata);
    });
  }
  uint64_t tag = 0;
  for (const formats::TensorEntry& entry : order) {
    int64_t size = base::size_of(entry.dtype);
    layout::Slice whole = layout::whole(entry.shape);
    std::vector<std::byte> tensor;
    if (world.rank() == 0)
      tensor.resize(
          static_cast<size_t>(formats::checked_bytes(entry.shape, entry.dtype, entry.name)));
    for (const Announced* a : parts_of[entry.name]) {
      ++tag;
      int64_t bytes = a->part.flat.size() * size;
      if (world.rank() != 0) {
        if (a->rank == world.rank())
          world.isend(bytes_of(*my_part[entry.name]).data(), bytes, 0, tag).wait();
        continue;
      }
      std::vector<std::byte> received;
      const std::byte* from = nullptr;
      if (a->rank == 0) {
        from = bytes_of(*my_part[entry.name]).data();
      } else {
        received.resize(static_cast<size_t>(bytes));
        world.irecv(received.data(), bytes, a->rank, tag).wait();
        from = received.data();
      }
      for_each_shared(a->part.slice, a->part.flat, whole, {0, whole.count()}, entry.shape,
                      [&](const layout::Overlap& run) {
                        std::memcpy(tensor.data() + run.to * size, from + run.from * size,
                                    static_cast<size_t>(run.count * size));
                      });
    }
    if (world.rank() == 0) {
      attempt([&] { writer->write(entry.name, tensor); });
      manifest.checksums[file][entry.name] = base::hash_bytes(tensor.data(), tensor.size());
    }
  }
  if (world.rank() == 0) attempt([&] { writer->close(); });
  together(world, [&] {
    if (failure) std::rethrow_exception(failure);
    return std::string();
  });
}

void write_text(const std::string& path, const std::string& text) {
  base::FileWriter writer(path);
  writer.write(text);
  writer.close();
}

}  // namespace

std::string rank_file(bool optimizer, int rank) {
  return fmt::format("{}_rank_{:05}.safetensors", optimizer ? "optimizer" : "model", rank);
}

std::map<std::string, uint64_t> write_parts(const std::string& folder, const std::string& file,
                                            const std::vector<TensorPart>& parts) {
  std::vector<formats::TensorEntry> entries;
  std::map<std::string, const TensorPart*> by_name;
  for (const TensorPart& part : parts) {
    entries.push_back({part.name, dist::dtype_of(part.data), stored_shape(part.slice, part.flat)});
    by_name[part.name] = &part;
  }
  formats::SafetensorsWriter writer(folder + "/" + file, entries, kMetadata);
  std::map<std::string, uint64_t> checksums;
  for (const formats::TensorEntry& entry : writer.order()) {
    std::span<const std::byte> bytes = bytes_of(*by_name[entry.name]);
    writer.write(entry.name, bytes);
    checksums[entry.name] = base::hash_bytes(bytes.data(), bytes.size());
  }
  writer.close();
  return checksums;
}

void write_model_files(const std::string& folder, const base::Json& model_config,
                       const std::string& tokenizer) {
  write_text(folder + "/config.json", model_config.dump(2) + "\n");
  if (!tokenizer.empty()) copy_tokenizer(tokenizer, folder);
}

void write_manifest(const std::string& folder, Manifest manifest, const Index* index) {
  if (index) {
    std::string text = to_text(*index);
    manifest.index_checksum = base::hash_text(text);
    write_text(folder + "/" + kIndexFile, text);
  }
  manifest.companions.clear();
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    std::string name = entry.path().filename().string();
    if (name != kIndexFile && !name.ends_with(".safetensors"))
      manifest.companions[name] = base::hash_text(base::read_file(entry.path().string()));
  }
  base::sync_directory(folder);
  write_text(folder + "/" + kManifestFile, to_text(manifest));
}

std::string save(const SaveRequest& request, const comm::Comm& world) {
  std::string name = step_folder(request.manifest.step), target = request.root + "/" + name, folder;
  bool first = world.rank() == 0;
  try {
    folder = together(world, [&] {
      if (!first) return std::string();
      remove_stale(request.root);
      return begin_folder(target);
    })[0];
    Manifest manifest = request.manifest;
    manifest.checksums.clear();
    Index index;
    if (manifest.merged) {
      for (bool optimizer : {false, true}) stream(request, world, folder, optimizer, manifest);
    } else {
      index = save_split(request, world, folder, manifest);
    }
    together(world, [&] {
      if (first) {
        write_model_files(folder, manifest.model_config, request.tokenizer);
        write_manifest(folder, manifest, manifest.merged ? nullptr : &index);
        commit_folder(folder, target);
        set_latest(request.root, name);
        prune(request.root, request.max_to_keep);
      }
      return std::string();
    });
  } catch (...) {
    std::error_code ignored;
    if (first && !folder.empty()) fs::remove_all(folder, ignored);
    throw;
  }
  return target;
}

}  // namespace trireme::checkpoint
