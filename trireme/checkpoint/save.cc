#include "trireme/checkpoint/save.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <future>
#include <iterator>

#include "trireme/base/error.h"
#include "trireme/base/hash.h"
#include "trireme/checkpoint/convert.h"
#include "trireme/checkpoint/folder.h"
#include "trireme/checkpoint/hf.h"
#include "trireme/checkpoint/together.h"
#include "trireme/dist/device.h"
#include "trireme/dist/redistribute.h"
#include "trireme/formats/safetensors.h"
#include "trireme/kernels/allocator.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;
using base::Json;
using nn::TensorPart;

constexpr size_t kChunkBytes = 1 << 20;  // between two looks whether the save is given up
constexpr int64_t kAlignment = 64;
constexpr std::chrono::milliseconds kLongestPause(50);

void check_data(const TensorPart& part) {
  base::check(
      part.data.defined() && part.data.is_contiguous() && part.data.numel() == part.flat.size(),
      "{}: its data is not the contiguous {} elements of the part", part.name, part.flat.size());
}

std::vector<HeldPart> held_by(const SaveRequest& request, int rank) {
  std::vector<HeldPart> held;
  for (bool optimizer : {false, true}) {
    for (const TensorPart& part : optimizer ? request.optimizer : request.parameters) {
      check_data(part);
      held.push_back({rank, part.name, part.global_shape, part.slice, part.flat,
                      dist::dtype_of(part.data), optimizer});
    }
  }
  return held;
}

/// Of a rank's parts, what the index says that its file holds.
std::vector<TensorPart> share_of(const std::vector<TensorPart>& parts, const Index& index,
                                 const std::string& file) {
  std::vector<TensorPart> share;
  for (const TensorPart& part : parts) {
    auto found = index.find(part.name);
    if (found == index.end()) continue;
    for (const StoredPart& stored : found->second.parts) {
      if (stored.file != file) continue;
      TensorPart& mine = share.emplace_back(part);
      mine.flat = stored.flat;
      mine.data =
          part.data.view({-1}).narrow(0, stored.flat.begin - part.flat.begin, stored.flat.size());
    }
  }
  return share;
}

/// Writes parts into a file; returns their checksums by name.
std::map<std::string, uint64_t> write_parts(const std::string& path,
                                            const std::vector<TensorPart>& parts,
                                            const std::atomic<bool>& cancelled) {
  std::vector<formats::TensorEntry> entries;
  std::map<std::string, const TensorPart*> by_name;
  for (const TensorPart& part : parts) {
    entries.push_back({part.name, dist::dtype_of(part.data), stored_shape(part.slice, part.flat)});
    by_name[part.name] = &part;
  }
  formats::SafetensorsWriter writer(path, entries, {{"format", "pt"}});
  std::map<std::string, uint64_t> checksums;
  for (const formats::TensorEntry& entry : writer.order()) {
    at::Tensor data = dist::to_host(by_name[entry.name]->data);
    std::span<const std::byte> bytes(static_cast<const std::byte*>(data.data_ptr()), data.nbytes());
    // Beside the disk's work.
    std::future<uint64_t> hash =
        std::async(std::launch::async, [bytes] { return base::hash_bytes(bytes.data(), bytes.size()); });
    for (size_t at = 0; at < bytes.size(); at += kChunkBytes) {
      if (cancelled) throw base::InternalError("the save was given up");
      writer.write(entry.name, bytes.subspan(at, std::min(kChunkBytes, bytes.size() - at)));
    }
    checksums[entry.name] = hash.get();
  }
  writer.close();
  return checksums;
}

void write_text(const std::string& path, const std::string& text) {
  base::FileWriter writer(path);
  writer.write(text);
  writer.close();
}

}  // namespace

struct Saver::Job {
  enum class Stage { writing, committing };

  SaveRequest request;  // without the tensors
  std::string name, target, folder;
  std::string parts_folder;  // where the split files go: `folder`, unless they are merged afterwards
  Index index;
  std::vector<TensorPart> share[2];  // of parameters, of the optimizer's tensors
  int rank = 0, world_rank = 0;
  Stage stage = Stage::writing;
  std::atomic<bool> cancelled = false;
  std::future<std::string> work;  // last: its destructor waits

  /// Runs `what` on a thread of its own.
  void run(const std::function<std::string()>& what) {
    work = std::async(std::launch::async, [this, what] {
      kernels::tag_memory(world_rank);
      return what();
    });
  }

  /// This rank's files; the text is their checksums. Both at once, so that the disk has work while checksums are made.
  std::string write_files() {
    std::future<std::map<std::string, uint64_t>> writing[2];
    for (bool optimizer : {false, true}) {
      if (share[optimizer].empty()) continue;
      writing[optimizer] = std::async(std::launch::async, [this, optimizer] {
        kernels::tag_memory(world_rank);
        return write_parts(parts_folder + "/" + rank_file(optimizer, rank), share[optimizer], cancelled);
      });
    }
    Json checksums = Json::object();
    for (bool optimizer : {false, true}) {
      if (!writing[optimizer].valid()) continue;
      for (const auto& [tensor, hash] : writing[optimizer].get())
        checksums[rank_file(optimizer, rank)][tensor] = base::hash_to_text(hash);
    }
    return checksums.dump();
  }

  void hear(const std::string& text) {
    const Json checksums = base::parse_json(text, "checksums");
    for (const auto& [file, tensors] : checksums.items()) {
      for (const auto& [tensor, hash] : tensors.items())
        request.manifest.checksums[file][tensor] = base::hash_from_text(hash);
    }
  }

  /// Publishes the folder. Rank 0 only.
  std::string commit() {
    Manifest& manifest = request.manifest;
    if (manifest.merged && parts_folder != folder) {
      Manifest parts = manifest;
      parts.merged = false;
      write_model_files(parts_folder, parts.model_config, request.tokenizer);
      write_manifest(parts_folder, parts, &index);
      manifest.checksums.clear();
      Checkpoint split(parts_folder);
      write_whole(split, folder, false, {}, manifest);
      if (split.has_optimizer()) write_whole(split, folder, true, {}, manifest);
    }
    write_model_files(folder, manifest.model_config, request.tokenizer);
    write_manifest(folder, manifest, manifest.merged ? nullptr : &index);
    if (parts_folder != folder) fs::remove_all(parts_folder);
    commit_folder(folder, target);
    set_pointer(request.root, kLatest, name);
    if (request.best) set_pointer(request.root, kBest, name);
    prune(request.root, request.max_to_keep);
    return "";
  }
};

Saver::Saver(comm::Comm world) : world_(std::move(world)) {}

Saver::~Saver() {
  if (job_) job_->cancelled = true;
}

const Index& Saver::plan(const SaveRequest& request) {
  std::string text;
  // What ranks hold hardly ever changes from one save to the next.
  std::vector<std::string> texts = together(world_, [&] {
    text = to_text(held_by(request, world_.rank()));
    return text == announced_ ? std::string() : "changed";
  });
  if (std::ranges::all_of(texts, &std::string::empty)) return plan_;
  texts = together(world_, [&] { return text; });
  std::vector<HeldPart> held;
  for (int rank = 0; rank < world_.size(); ++rank)
    std::ranges::move(held_from_text(texts[static_cast<size_t>(rank)], rank),
                      std::back_inserter(held));
  plan_ = share_out(held);
  announced_ = std::move(text);
  return plan_;
}

void Saver::begin(const SaveRequest& request, bool split) {
  base::check(!job_, "a save begins while another one is in flight");
  const bool first = world_.rank() == 0, parts_apart = request.manifest.merged && split;
  auto job = std::make_unique<Job>();
  job->name = step_folder(request.manifest.step);
  job->target = request.root + "/" + job->name;
  job->rank = world_.rank();
  job->world_rank = world_.ranks()[static_cast<size_t>(world_.rank())];
  job->request = request;
  job->request.parameters.clear();
  job->request.optimizer.clear();
  job->request.manifest.checksums.clear();
  if (split) {
    job->index = plan(request);
    for (bool optimizer : {false, true})
      job->share[optimizer] = share_of(optimizer ? request.optimizer : request.parameters,
                                       job->index, rank_file(optimizer, world_.rank()));
  }
  std::vector<std::string> folders = together(world_, [&] {
    if (!first) return std::string();
    remove_stale(request.root);
    job->folder = begin_folder(job->target);
    return parts_apart ? begin_folder(job->target + ".parts") : job->folder;
  });
  job->parts_folder = folders[0];
  job_ = std::move(job);
}

std::string Saver::save(const SaveRequest& request) {
  begin(request, !request.manifest.merged);
  if (request.manifest.merged) {
    try {
      for (bool optimizer : {false, true})
        save_merged(request, world_, job_->folder, optimizer, job_->request.manifest);
    } catch (...) {
      give_up();
      throw;
    }
  }
  Job& job = *job_;
  job.run([&job] { return job.write_files(); });
  return finish();
}

void Saver::start(const SaveRequest& request) {
  begin(request, true);
  copy_state();
  Job& job = *job_;
  job.run([&job] { return job.write_files(); });
}

void Saver::copy_state() {
  auto padded = [](int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; };
  int64_t total = 0;
  bool on_gpu = false;
  for (const auto& share : job_->share) {
    for (const TensorPart& part : share) {
      total += padded(static_cast<int64_t>(part.data.nbytes()));
      on_gpu |= part.data.is_cuda();
    }
  }
  if (!memory_.defined() || memory_.numel() < total)
    memory_ = at::empty({total}, at::TensorOptions(at::kByte).pinned_memory(on_gpu));
  int64_t offset = 0;
  for (auto& share : job_->share) {
    for (TensorPart& part : share) {
      const auto bytes = static_cast<int64_t>(part.data.nbytes());
      at::Tensor copy = memory_.narrow(0, offset, bytes).view(part.data.scalar_type());
      part.data = copy.copy_(part.data);
      offset += padded(bytes);
    }
  }
}

bool Saver::working() const {
  return job_ && job_->work.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

std::optional<std::string> Saver::advance() {
  Job& job = *job_;
  try {
    std::vector<std::string> outcomes = together(world_, [&] { return job.work.get(); });
    if (job.stage == Job::Stage::writing) {
      for (const std::string& text : outcomes) job.hear(text);
      job.stage = Job::Stage::committing;
      job.run([&job] { return job.rank == 0 ? job.commit() : std::string(); });
      return std::nullopt;
    }
  } catch (...) {
    give_up();
    throw;
  }
  std::string path = job.target;
  job_.reset();
  return path;
}

std::string Saver::finish() {
  // Ranks ask one another again and again, so that none waits for longer than an operation may take.
  for (std::chrono::milliseconds pause(1);; pause = std::min(2 * pause, kLongestPause)) {
    job_->work.wait_for(pause);
    int64_t busy = working();
    world_.all_reduce(&busy, 1, base::DType::i64, comm::Reduce::max).wait();
    if (busy) continue;
    if (auto path = advance()) return *path;
  }
}

void Saver::give_up() noexcept {
  std::error_code ignored;
  for (const std::string& folder : {job_->folder, job_->parts_folder})
    if (world_.rank() == 0 && !folder.empty()) fs::remove_all(folder, ignored);
  job_.reset();
}

std::string save(const SaveRequest& request, const comm::Comm& world) {
  return Saver(world).save(request);
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

}  // namespace trireme::checkpoint
