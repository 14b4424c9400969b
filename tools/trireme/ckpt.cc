// trireme ckpt: inspect, convert (merge), diff, verify.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "tools/trireme/subcommands.h"
#include "trireme/base/error.h"
#include "trireme/checkpoint/adapter.h"
#include "trireme/checkpoint/convert.h"
#include "trireme/checkpoint/gguf.h"
#include "trireme/checkpoint/megatron.h"
#include "trireme/checkpoint/oslo.h"
#include "trireme/models/registry.h"
#include "trireme/models/vocabulary.h"
#include "trireme/nn/builder.h"

namespace trireme::tools {
namespace {

using base::Json;
using checkpoint::Checkpoint;

struct Flags {
  std::string a, b, to = "hf", dtype, adapter;
  int tensor_parallel = 1, pipeline_parallel = 1;
  bool optimizer = false, average = false, json = false;
  std::optional<uint64_t> max_shard_size;
  std::optional<int64_t> vocab_size;
};

void print(const Json& json) {
  std::string text = json.dump(1) + "\n";
  std::fwrite(text.data(), 1, text.size(), stdout);
}

layout::ModelDescription describe(const Json& config) {
  nn::ModelDef def = models::make_model(config, 1);
  int blocks = static_cast<int>(std::ranges::count_if(def.layers, &nn::LayerDef::block));
  return nn::describe(def, layout::Mesh(), {}, {blocks}, {0}, 1);
}

/// The checkpoint's own description of its model; that of other folders follows from their
/// config.json.
layout::ModelDescription description_of(const Checkpoint& source) {
  bool own = source.manifest() && !source.manifest()->description.parameters.empty();
  return own ? source.manifest()->description : describe(source.model_config());
}

void inspect(const Flags& flags) {
  Checkpoint source(flags.a, describe);
  Json tensors = Json::array();
  int64_t parameters = 0, bytes = 0;
  for (const auto& [name, tensor] : source.tensors()) {
    int64_t count = layout::element_count(tensor.shape);
    if (!tensor.optimizer) parameters += count;
    bytes += count * base::size_of(tensor.dtype);
    std::vector<std::string> files;
    for (const auto& part : tensor.parts) files.push_back(part.file);
    tensors.push_back({{"name", name},
                       {"dtype", base::name_of(tensor.dtype)},
                       {"shape", tensor.shape},
                       {"kind", tensor.optimizer ? "optimizer" : "parameter"},
                       {"files", files}});
  }
  Json out = {{"path", source.path()}};
  if (source.manifest()) {
    const checkpoint::Manifest& manifest = *source.manifest();
    layout::Coord sizes = manifest.mesh.sizes();
    out["kind"] = manifest.merged ? "merged" : "split";
    out["step"] = manifest.step;
    out["consumed_samples"] = manifest.consumed_samples;
    out["seed"] = manifest.seed;
    out["layout"] = {{"dp", sizes.dp}, {"tp", sizes.tp}, {"pp", sizes.pp}};
    out["optimizer"] = manifest.optimizer;
  } else {
    out["kind"] = checkpoint::has_oslo_files(source.path()) ? "oslo" : "hf";
  }
  out["parameters"] = parameters;
  out["bytes"] = bytes;
  out["model"] = source.model_config();
  out["tensors"] = tensors;
  if (flags.json) return print(out);
  for (const auto& [key, value] : out.items()) {
    if (key != "tensors")
      fmt::print("{:<18}{}\n", key, value.is_string() ? value.get<std::string>() : value.dump());
  }
  for (const auto& [name, tensor] : source.tensors()) {
    fmt::print("{:<60} {:<5} [{}] in {} part{}\n", name, base::name_of(tensor.dtype),
               fmt::join(tensor.shape, ", "), tensor.parts.size(),
               tensor.parts.size() == 1 ? "" : "s");
  }
}

/// Returns the number of tensors.
int64_t write(const Flags& flags, const checkpoint::ConvertOptions& options) {
  if (flags.a.ends_with(".gguf")) {
    if (flags.to != "hf" || options.optimizer || options.average || options.max_shard_bytes || options.resize)
      throw base::ConfigError(flags.a + ": a GGUF file is converted with --to hf and --dtype; what that makes converts further");
    return checkpoint::convert_gguf(flags.a, flags.b, options);
  }
  if (checkpoint::has_megatron_files(flags.a)) {
    if (flags.to != "hf" || options.optimizer || options.average || options.max_shard_bytes || options.resize || !flags.adapter.empty())
      throw base::ConfigError(flags.a + ": a folder of Megatron-LM is converted with --to hf and --dtype; what that makes converts further");
    return checkpoint::convert_megatron(flags.a, flags.b, options);
  }
  const Checkpoint source(flags.a, describe);
  const bool merges = flags.to == "hf" || flags.to == "bin";
  if (flags.to == "peft") return checkpoint::convert_to_peft(source, flags.b);
  if (!flags.adapter.empty()) {
    if (!merges) throw base::ConfigError("--adapter goes with --to hf and --to bin; what that makes converts further");
    return checkpoint::merge_adapter(source, flags.adapter, flags.b, options);
  }
  if (merges && !options.optimizer && source.model_config().contains("adapter"))
    return checkpoint::merge_own_adapter(source, flags.b, options);
  if (merges) return checkpoint::convert_to_hf(source, flags.b, options);
  if (flags.to == "oslo")
    return checkpoint::convert_to_oslo(source, flags.b, description_of(source), flags.tensor_parallel,
                                       flags.pipeline_parallel, options);
  const layout::Mesh mesh({.pp = flags.pipeline_parallel, .dp = 1, .tp = flags.tensor_parallel});
  return checkpoint::convert_to_split(source, flags.b, description_of(source), mesh, options);
}

void convert(const Flags& flags) {
  checkpoint::ConvertOptions options{
      .average = flags.average, .optimizer = flags.optimizer, .pickled = flags.to == "bin"};
  if (flags.max_shard_size) {
    if (flags.to != "hf" && flags.to != "bin")
      throw base::ConfigError("--max-shard-size goes with --to hf and --to bin; the files of " +
                              flags.to + " follow from its ranks");
    options.max_shard_bytes = static_cast<int64_t>(*flags.max_shard_size);
  }
  if (flags.to != "split" && flags.to != "oslo" && (flags.tensor_parallel > 1 || flags.pipeline_parallel > 1))
    throw base::ConfigError(fmt::format("--tensor-parallel and --pipeline-parallel go with --to split and --to oslo; --to {} writes whole tensors", flags.to));
  if (flags.vocab_size) {
    if (flags.to != "hf" && flags.to != "bin")
      throw base::ConfigError("--vocab-size goes with --to hf and --to bin; what that makes converts further");
    if (*flags.vocab_size < 1) throw base::ConfigError(fmt::format("--vocab-size {}: expected at least 1", *flags.vocab_size));
    options.resize = [size = *flags.vocab_size](const Json& config) {
      const Json tree = models::with_vocabulary(config, size);
      return checkpoint::ConvertOptions::Resize{
          .config = tree, .before = describe(config).parameters, .after = describe(tree).parameters};
    };
  }
  if (!flags.dtype.empty()) {
    options.dtype = base::dtype_of(flags.dtype);
    if (!base::is_floating(*options.dtype)) {
      throw base::ConfigError(
          fmt::format("--dtype {}: weights are fp64, fp32, bf16 or fp16", flags.dtype));
    }
  }
  const int64_t count = write(flags, options);
  if (flags.json) return print({{"path", flags.b}, {"tensors", count}});
  fmt::print(stderr, "wrote {} tensors to {}\n", count, flags.b);
}

void diff(const Flags& flags) {
  Checkpoint a(flags.a, describe), b(flags.b, describe);
  Json tensors = Json::array();
  double max_abs = 0, max_rel = 0;
  for (const checkpoint::TensorDifference& d : checkpoint::difference(a, b)) {
    max_abs = std::max(max_abs, d.max_abs);
    max_rel = std::max(max_rel, d.max_rel);
    tensors.push_back(
        {{"name", d.name}, {"what", d.what}, {"max_abs", d.max_abs}, {"max_rel", d.max_rel}});
    if (!flags.json)
      fmt::print("{}: {} (max_abs {:.3g}, max_rel {:.3g})\n", d.name, d.what, d.max_abs, d.max_rel);
  }
  bool equal = tensors.empty();
  if (flags.json) {
    print({{"equal", equal}, {"max_abs", max_abs}, {"max_rel", max_rel}, {"tensors", tensors}});
  } else if (equal) {
    fmt::print("equal\n");
  }
  if (!equal) throw Exit{1};
}

void verify(const Flags& flags) {
  Checkpoint source(flags.a, describe);
  Checkpoint::Verified verified = source.verify();
  if (flags.json) {
    return print({{"ok", true},
                  {"parts", verified.tensors},
                  {"files", verified.files},
                  {"weights_only", verified.weights_only},
                  {"checksums", source.manifest().has_value()}});
  }
  if (!source.manifest()) {
    fmt::print("{}: {} stored tensors are well-formed (a Hugging Face folder has no checksums)\n",
               source.path(), verified.tensors);
    return;
  }
  fmt::print("{}: {} stored tensors and {} other files match their checksums\n", source.path(),
             verified.tensors, verified.files);
  if (verified.weights_only)
    fmt::print(
        "note: the optimizer's files were left behind; the weights serve, but training cannot "
        "resume from it\n");
}

}  // namespace

void add_ckpt(CLI::App& program) {
  CLI::App* ckpt = program.add_subcommand("ckpt", "Works on checkpoints and Hugging Face folders");
  ckpt->require_subcommand(1);
  auto flags = std::make_shared<Flags>();
  auto add = [&](const char* name, const char* help, void (*run)(const Flags&)) {
    CLI::App* command = ckpt->add_subcommand(name, help);
    command->add_flag("--json", flags->json, "print one JSON document");
    command->callback([flags, run] { run(*flags); });
    return command;
  };
  CLI::App* one = add("inspect", "What a checkpoint holds", inspect);
  one->add_option("checkpoint", flags->a, "checkpoint, run, Hugging Face or OSLO folder")
      ->required();
  one =
      add("verify", "Checks structure and checksums; exit code 2 for a damaged checkpoint", verify);
  one->add_option("checkpoint", flags->a, "checkpoint, run, Hugging Face or OSLO folder")
      ->required();
  one =
      add("diff", "Compares two checkpoints tensor by tensor; exit code 1 when they differ", diff);
  one->add_option("a", flags->a, "checkpoint, run, Hugging Face or OSLO folder")->required();
  one->add_option("b", flags->b, "the other")->required();
  for (const char* name : {"convert", "merge"}) {
    bool merge = std::string(name) == "merge";
    one = add(name, merge ? "convert --to hf" : "Writes a checkpoint in another layout", convert);
    one->add_option("source", flags->a, "checkpoint, run, Hugging Face, OSLO or old Megatron-LM folder, or a .gguf file")->required();
    one->add_option("destination", flags->b, "folder to make")->required();
    one->add_option("--dtype", flags->dtype,
                    "type of the weights: fp64, fp32, bf16 or fp16 (default: as stored)");
    one->add_flag("--optimizer", flags->optimizer,
                  "with the optimizer's state (--to split always has it)");
    one->add_flag("--ema", flags->average,
                  "the weights' moving averages (optim.ema) in place of the weights");
    one->add_option("--max-shard-size", flags->max_shard_size,
                    "several files of at most so much, for example 5GB, with an index")
        ->transform(CLI::AsSizeValue(true));
    one->add_option("--adapter", flags->adapter, "folder of a LoRA or DoRA adapter of PEFT, merged into the weights");
    one->add_option("--vocab-size", flags->vocab_size, "resize the vocabulary; new tokens begin as the mean of the others");
    if (merge) continue;
    one->add_option("--to", flags->to,
                    "layout of the destination: hf (model.safetensors), bin (pytorch_model.bin), "
                    "split, oslo, or peft (the adapter alone)")
        ->check(CLI::IsMember({"hf", "bin", "split", "oslo", "peft"}))
        ->required();
    one->add_option("--tensor-parallel", flags->tensor_parallel,
                    "tensor-parallel ranks of a split or oslo destination");
    one->add_option("--pipeline-parallel", flags->pipeline_parallel,
                    "stages of a split or oslo destination");
  }
}

}  // namespace trireme::tools
