#pragma once
// Saving: all ranks write one checkpoint folder, ROOT/step_00000100, that is there whole or not at
// all.
//
// Split: each rank writes its share of what it holds (share.h), so each element is written once in
// the job and by every rank as much as by any other. Merged: Hugging Face's layout
// (model.safetensors) and optimizer.safetensors, written by rank 0 tensor by tensor; no rank holds
// more than one tensor. Beside them lie config.json, the tokenizer's files, index.json (split) and,
// written last, trireme.json.
//
// A Saver writes while its caller waits (`save`), or copies the state and writes it while training
// goes on (`start`), on a thread of its own. That thread only writes files; what ranks have to tell one another
// they do in `advance`, which all call at the same place of a step, so saving never races with
// training's own communication. A merged checkpoint is then put together from split files.
//
//   saver.start(request);
//   each step: if (saver.in_flight() && nobody is working()) if (auto path = saver.advance()) ...

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/checkpoint/manifest.h"
#include "trireme/checkpoint/share.h"
#include "trireme/comm/comm.h"
#include "trireme/nn/tensor_part.h"

namespace trireme::checkpoint {

struct SaveRequest {
  std::string root;   // the run's checkpoints folder
  Manifest manifest;  // checksums are filled in by save
  std::vector<nn::TensorPart> parameters, optimizer;
  std::string tokenizer;  // folder or file whose tokenizer goes along; empty: none
  int max_to_keep = 0;    // newest checkpoints that stay; 0: all
  bool best = false;      // ROOT/best names it from now on, and it stays
};

class Saver {
 public:
  /// `world`: the job's ranks.
  explicit Saver(comm::Comm world);
  /// Leaves a save in flight unfinished, as an interrupted run does.
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  /// Collective. Writes the checkpoint, points ROOT/latest at it, removes older ones and what
  /// interrupted saves left; returns its path. An error on any rank (IoError: disk full) is thrown
  /// on all, nothing partial stays and the run can go on. Nothing may be in flight.
  std::string save(const SaveRequest& request);

  /// Collective. The same, but returns when this rank's share of the state is copied into memory
  /// that lives as long as the saver. Nothing may be in flight.
  void start(const SaveRequest& request);
  bool in_flight() const { return job_ != nullptr; }
  /// Whether this rank's thread still writes. Local.
  bool working() const;
  /// Collective, when something is in flight: waits for this rank's thread and takes the next step;
  /// with the last one the path of the finished checkpoint. Errors of any rank are thrown on all.
  std::optional<std::string> advance();
  /// Collective, when something is in flight: waits until the checkpoint is there.
  std::string finish();

 private:
  struct Job;
  void begin(const SaveRequest& request, bool split);
  const Index& plan(const SaveRequest& request);
  void copy_state();
  void give_up() noexcept;

  comm::Comm world_;
  std::string announced_;  // what this rank held when plan_ was made
  Index plan_;
  at::Tensor memory_;  // of the copies
  std::unique_ptr<Job> job_;
};

/// Collective. One save by a saver of its own.
std::string save(const SaveRequest& request, const comm::Comm& world);

/// Collective. Rank 0 receives the tensors of one kind and writes them whole into `folder`, tensor
/// by tensor; notes their checksums on rank 0.
void save_merged(const SaveRequest& request, const comm::Comm& world, const std::string& folder,
                 bool optimizer, Manifest& manifest);

/// Writes config.json and copies the tokenizer's files (from `tokenizer`, unless empty). Local.
void write_model_files(const std::string& folder, const base::Json& model_config,
                       const std::string& tokenizer);

/// Writes index.json (null: none) and, last of all, trireme.json with the checksums of the other
/// files in `folder`. Local.
void write_manifest(const std::string& folder, Manifest manifest, const Index* index);

}  // namespace trireme::checkpoint
