#include "trireme/checkpoint/megatron.h"

#include <ATen/ATen.h>

#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "trireme/base/error.h"
#include "trireme/base/io.h"
#include "trireme/checkpoint/folder.h"
#include "trireme/checkpoint/megatron_names.h"
#include "trireme/checkpoint/oneflow.h"
#include "trireme/checkpoint/save.h"
#include "trireme/config/tree.h"
#include "trireme/dist/redistribute.h"
#include "trireme/formats/safetensors.h"
#include "trireme/formats/torch_zip.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;
using base::FormatError;
using base::Json;
using formats::TorchZipFile;

constexpr const char *kTracker = "latest_checkpointed_iteration.txt",
                     *kLibaiTracker = "last_checkpoint";

/// The folder of the ranks: `folder` itself, or that of the iteration that its tracker names.
std::string folder_of_ranks(const std::string& folder) {
  const fs::path tracker = fs::path(folder) / kTracker;
  if (!fs::exists(tracker)) return folder;
  std::string named = base::read_file(tracker.string());
  named.erase(named.find_last_not_of(" \r\n") + 1);
  if (named == "release") return (fs::path(folder) / named).string();
  if (named.empty() || named.find_first_not_of("0123456789") != named.npos || named.size() > 12)
    throw FormatError(
        fmt::format("{}: \"{}\" is neither a number nor release", tracker.string(), named));
  return (fs::path(folder) / fmt::format("iter_{:07}", std::stoll(named))).string();
}

/// "mp_rank_03" or "mp_rank_03_001": {3, 1}.
std::optional<std::pair<int, int>> place_of(const std::string& name) {
  int tp = 0, pp = 0, end = 0;
  if (std::sscanf(name.c_str(), "mp_rank_%2d%n", &tp, &end) != 1) return std::nullopt;
  if (static_cast<size_t>(end) == name.size()) return std::pair{tp, 0};
  int more = 0;
  if (std::sscanf(name.c_str() + end, "_%3d%n", &pp, &more) != 1 ||
      static_cast<size_t>(end + more) != name.size())
    return std::nullopt;
  return std::pair{tp, pp};
}

/// The tensors of one rank.
class Weights {
 public:
  virtual ~Weights() = default;
  virtual std::set<std::string> names() const = 0;
  virtual bool contains(const std::string& name) const = 0;
  virtual formats::StoredTensor at(const std::string& name) = 0;
};

class OfMegatron : public Weights {
 public:
  explicit OfMegatron(const std::string& path) : file_(path, true) {}
  std::set<std::string> names() const override { return file_.names(); }
  bool contains(const std::string& name) const override { return file_.contains(name); }
  formats::StoredTensor at(const std::string& name) override { return file_.at(name); }
  const Json& values() const { return file_.values(); }

 private:
  TorchZipFile file_;
};

class OfLibai : public Weights {
 public:
  explicit OfLibai(const std::string& path) : folder_(path) {}
  std::set<std::string> names() const override { return folder_.names(); }
  bool contains(const std::string& name) const override { return folder_.contains(name); }
  formats::StoredTensor at(const std::string& name) override { return folder_.at(name); }

 private:
  OneflowFolder folder_;
};

/// What a run was told, by Megatron-LM's names, and the tensors of its ranks.
class Source {
 public:
  Source(std::string path, int ranks, int stages, std::vector<std::unique_ptr<Weights>> weights,
         Json args, double version)
      : path_(std::move(path)),
        ranks_(ranks),
        stages_(stages),
        weights_(std::move(weights)),
        args_(std::move(args)),
        version_(version) {
    if (!args_.contains("ffn_hidden_size")) args_["ffn_hidden_size"] = 4 * number("hidden_size");
    for (const char* half : {"encoder_num_layers", "decoder_num_layers"})  // of a T5, where they are not alike
      if (!args_.value(half, Json()).is_number()) args_[half] = number("num_layers");
    if (number("num_layers") % stages_ != 0)
      throw FormatError(fmt::format("{}: {} blocks on {} stages", path_, number("num_layers"), stages_));
    if (number("num_attention_heads") % ranks_ != 0)
      throw FormatError(
          fmt::format("{}: {} heads on {} ranks", path_, number("num_attention_heads"), ranks_));
  }

  const std::string& path() const { return path_; }
  const Json& args() const { return args_; }
  int stages() const { return stages_; }
  int64_t number(const char* key) const {
    if (!args_.contains(key) || !args_[key].is_number_integer() || args_[key].get<int64_t>() < 1)
      throw FormatError(fmt::format("{}: {} lacks or is no number of its kind", path_, key));
    return args_[key].get<int64_t>();
  }
  bool contains(const std::string& name) const {
    for (int pp = 0; pp < stages_; ++pp)
      if (at(0, pp).contains(name)) return true;
    return false;
  }

  /// The parts of a tensor, by tensor rank. Blocks count from 0 on every stage.
  std::vector<at::Tensor> parts(const WeightRule& rule, int64_t block) {
    const bool of_block = rule.from.find("{}") != std::string::npos;
    const int64_t each = number(rule.count) / stages_;
    const std::string name = fmt::format(fmt::runtime(rule.from), of_block ? block % each : 0);
    const int own = static_cast<int>(block / each);
    for (int pp = of_block ? own : 0; pp < (of_block ? own + 1 : stages_); ++pp) {
      if (!at(0, pp).contains(name)) continue;
      std::vector<at::Tensor> parts;
      for (int tp = 0; tp < (rule.split >= 0 ? ranks_ : 1); ++tp) {
        if (!at(tp, pp).contains(name))
          throw FormatError(
              fmt::format("{}: tensor rank {} of stage {} has no \"{}\"", path_, tp, pp, name));
        const formats::StoredTensor stored = at(tp, pp).at(name);
        parts.push_back(at::from_blob(const_cast<std::byte*>(stored.bytes.data()), stored.shape,
                                      at::TensorOptions(dist::scalar_type(stored.dtype))));
      }
      used_.insert({pp, name});
      return parts;
    }
    throw FormatError(fmt::format("{}: there is no tensor \"{}\"{}", path_, name,
                                  of_block ? fmt::format(" of stage {}", own) : ""));
  }

  /// FormatError for a weight that no rule took. The last stage's copy of the table of words is
  /// none.
  void check_used() const {
    for (int pp = 0; pp < stages_; ++pp)
      for (const std::string& name : at(0, pp).names()) {
        const bool weight = (name.ends_with(".weight") || name.ends_with(".bias")) &&
                            !name.starts_with("optimizer.");
        if (weight && name.find("word_embeddings_for_head") == name.npos &&
            !used_.contains({pp, name}))
          throw FormatError(
              fmt::format("{}: tensor \"{}\" has no place in the model", path_, name));
      }
  }

  /// A part of `fused` things as [fused, heads, head size, ...]. Versions before 2 keep them apart; version 1
  /// innermost.
  at::Tensor apart(const at::Tensor& part, int64_t fused) const {
    const int64_t heads = number("num_attention_heads") / ranks_, size = part.size(0) / fused / heads;
    std::vector<int64_t> shape = part.sizes().vec();
    shape.erase(shape.begin());
    const auto viewed = [&](std::vector<int64_t> outer) {
      outer.insert(outer.end(), shape.begin(), shape.end());
      return part.reshape(outer);
    };
    if (heads * size * fused != part.size(0))
      throw FormatError(fmt::format("{}: {} rows cannot be queries, keys and values of {} heads",
                                    path_, part.size(0), heads));
    if (version_ >= 2) return viewed({heads, fused, size}).transpose(0, 1);
    if (version_ >= 1) return viewed({heads, size, fused}).movedim(2, 0);
    return viewed({fused, heads, size});
  }

 private:
  Weights& at(int tp, int pp) const { return *weights_[static_cast<size_t>(pp * ranks_ + tp)]; }

  std::string path_;
  int ranks_, stages_;
  std::vector<std::unique_ptr<Weights>> weights_;  // by stage, then by tensor rank
  Json args_;
  double version_;
  std::set<std::pair<int, std::string>> used_;
};

Source open_megatron(const std::string& folder) {
  const std::string path = folder_of_ranks(folder);
  if (!fs::is_directory(path))
    throw FormatError(path + ": there is no such folder, though the tracker names it");
  std::map<std::pair<int, int>, std::string> found;
  for (const auto& entry : fs::directory_iterator(path))
    if (const auto place = place_of(entry.path().filename().string()))
      found[*place] = entry.path().string();
  int ranks = 1, stages = 1;
  for (const auto& [place, name] : found)
    ranks = std::max(ranks, place.first + 1), stages = std::max(stages, place.second + 1);
  std::vector<std::unique_ptr<Weights>> weights;
  Json args = Json::object();
  double version = 0;
  for (int pp = 0; pp < stages; ++pp)
    for (int tp = 0; tp < ranks; ++tp) {
      if (!found.contains({tp, pp}))
        throw FormatError(
            fmt::format("{}: tensor rank {} of stage {} lacks, of {} ranks and {} stages", path, tp,
                        pp, ranks, stages));
      const std::string in = found.at({tp, pp}), own = in + "/model_optim_rng.pt";
      auto file = std::make_unique<OfMegatron>(fs::exists(own) ? own : in + "/model_rng.pt");
      if (weights.empty()) {
        for (const auto& [key, value] : file->values().items())
          if (key.starts_with("args.")) args[key.substr(5)] = value;
        version = file->values().value("checkpoint_version", 0.0);
      }
      weights.push_back(std::move(file));
    }
  if (args.empty())
    throw FormatError(path + ": it does not say with which arguments it was trained (args)");
  return {path, ranks, stages, std::move(weights), std::move(args), version};
}

/// The folder of weights that a run's, a checkpoint's or this folder itself means; empty: none.
std::string libai_weights(const std::string& folder) {
  const fs::path root(folder);
  if (is_oneflow_folder(folder)) return folder;
  if (is_oneflow_folder((root / "model").string())) return (root / "model").string();
  const fs::path tracker = root / kLibaiTracker;
  if (!fs::exists(tracker)) return "";
  std::string named = base::read_file(tracker.string());
  named.erase(named.find_last_not_of(" \r\n") + 1);
  const fs::path weights = root / fs::path(named).filename() / "model";
  return is_oneflow_folder(weights.string()) ? weights.string() : "";
}

/// The run's config.yaml stands above. LiBai's keys -> Megatron-LM's.
Json libai_args(const std::string& weights) {
  constexpr std::pair<const char*, const char*> kKeys[] = {
      {"hidden_layers", "num_layers"},
      {"intermediate_size", "ffn_hidden_size"},
      {"max_seq_length", "max_position_embeddings"},
      {"layernorm_eps", "layernorm_epsilon"},
      {"attention_dropout_prob", "attention_dropout"},
      {"attention_probs_dropout_prob", "attention_dropout"},
      {"output_dropout_prob", "hidden_dropout"},
      {"hidden_dropout_prob", "hidden_dropout"}};
  fs::path at = fs::absolute(weights);
  for (int up = 0; up < 4 && !fs::exists(at / "config.yaml"); ++up) at = at.parent_path();
  const std::string file = (at / "config.yaml").string();
  if (!fs::exists(file))
    throw FormatError(weights + ": there is no config.yaml of the run beside or above it");
  const Json whole = config::to_json(config::parse_tree(base::read_file(file), file));
  const Json cfg = whole.value(Json::json_pointer("/model/cfg"), Json());
  if (!cfg.is_object()) throw FormatError(file + ": it has no model.cfg");
  Json args = cfg;
  for (const auto& [libai, megatron] : kKeys)
    if (cfg.contains(libai)) args[megatron] = cfg[libai];
  // Its GELU is the exact one, fused or not; its name for the order of norms is another.
  args["bias_gelu_fusion"] = false;
  args["apply_residual_connection_post_layernorm"] =
      cfg.value("apply_residual_post_layernorm", false);
  return args;
}

Source open_libai(const std::string& weights) {
  std::vector<std::unique_ptr<Weights>> one;
  one.push_back(std::make_unique<OfLibai>(weights));
  // Its heads keep their queries, keys and values together, as Megatron-LM's do since version 2.
  return {weights, 1, 1, std::move(one), libai_args(weights), 3};
}

at::Tensor whole(Source& source, const WeightRule& rule, int64_t block) {
  std::vector<at::Tensor> parts = source.parts(rule, block);
  const bool plain = rule.change == WeightChange::none || rule.change == WeightChange::transpose || rule.change == WeightChange::row;
  if (plain) {
    const at::Tensor all = parts.size() == 1 ? parts.front() : at::cat(parts, rule.split);
    if (rule.change == WeightChange::row) return all.unsqueeze(0).contiguous();
    return rule.change == WeightChange::transpose ? all.t().contiguous() : all.contiguous();
  }
  for (at::Tensor& part : parts) part = source.apart(part, rule.parts);
  at::Tensor all = at::cat(parts, 1);  // [3, heads, size, ...]
  const int64_t which = static_cast<int64_t>(rule.change) - static_cast<int64_t>(WeightChange::query);
  if (which >= 0) return all[which + rule.parts - 3].flatten(0, 1).contiguous();
  all = all.flatten(0, 2);
  return rule.change == WeightChange::fused_transpose ? all.t().contiguous() : all.contiguous();
}

Json config_of(const Source& source, const ForeignModel& model) {
  Json config = model.config;
  const Json& args = source.args();
  for (const auto& [from, to] : model.keys) {
    if (!args.contains(from) || !args[from].is_number())
      throw FormatError(fmt::format("{}: args.{} lacks or is no number", source.path(), from));
    config[to] = args[from];
  }
  // Its fused kernel and openai_gelu are the tanh form.
  const bool tanh = args.value("bias_gelu_fusion", true) || args.value("openai_gelu", false);
  config[model.activation] = tanh ? "gelu_new" : "gelu";
  for (const auto& [from, to] : {std::pair{"attention_dropout", &model.attention_dropout}, {"hidden_dropout", &model.hidden_dropout}})
    if (args.contains(from) && args[from].is_number()) config[*to] = args[from];
  return config;
}

void refuse_others(const Source& source) {
  const Json& args = source.args();
  if (args.value("apply_residual_connection_post_layernorm", false))
    throw FormatError(
        source.path() +
        ": residual sums behind the norms (apply_residual_post_layernorm) are not supported");
}

/// What a T5 of theirs may be that Blenderbot is not.
void check_t5(const Source& source) {
  if (source.stages() > 1)
    throw FormatError(fmt::format("{}: a T5 on {} stages; only one is read, so merge its stages first", source.path(), source.stages()));
  if (const double eps = source.args().value("layernorm_epsilon", 1e-5); eps != 1e-5)
    throw FormatError(fmt::format("{}: a T5 becomes a Blenderbot, whose norms add 1e-5, but this one's add {} (layernorm_epsilon); there "
                                  "is no family to convert it to",
                                  source.path(), eps));
}

ForeignModel model_of(const Source& source) {
  if (source.contains("GPT_model.embeddings.token_embeddings.weight"))
    return gpt_model(libai_gpt_names());
  if (source.contains("bert.embeddings.vocab_embeddings.weight"))
    return bert_model(libai_bert_names());
  if (source.contains("t5_model.decoder.final_layernorm.weight")) {
    check_t5(source);
    return t5_model(libai_t5_names());
  }
  const std::string scope = "model.language_model.",
                    encoder = scope + (source.contains(scope + "encoder.final_layernorm.weight")
                                           ? "encoder"
                                           : "transformer"),
                    attention = source.contains(encoder + ".layers.0.self_attention.dense.weight")
                                    ? "self_attention"
                                    : "attention";
  if (source.contains(scope + "decoder.final_layernorm.weight")) {
    check_t5(source);
    return t5_model(megatron_t5_names(attention));
  }
  const WeightNames names = megatron_names(encoder, attention);
  return source.contains("model.lm_head.dense.weight") ? bert_model(names) : gpt_model(names);
}

}  // namespace

bool has_megatron_files(const std::string& folder) {
  if (!fs::is_directory(folder)) return false;
  if (fs::exists(fs::path(folder) / kTracker) || !libai_weights(folder).empty()) return true;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.is_directory() && place_of(entry.path().filename().string())) return true;
  return false;
}

int64_t convert_megatron(const std::string& folder, const std::string& destination,
                         const ConvertOptions& options) {
  const std::string libai = libai_weights(folder);
  Source source = libai.empty() ? open_megatron(folder) : open_libai(libai);
  refuse_others(source);
  const ForeignModel model = model_of(source);
  struct Move {
    const WeightRule* rule;
    int64_t block;
  };
  std::map<std::string, Move> moves;
  for (const WeightRule& rule : model.rules)
    for (int64_t block = 0; block < (rule.to.find("{}") != rule.to.npos ? source.number(rule.count) : 1);
         ++block)
      moves[fmt::format(fmt::runtime(rule.to), block)] = {&rule, block};
  const auto made = [&](const Move& move) {
    const at::Tensor tensor = whole(source, *move.rule, move.block);
    return options.dtype ? tensor.to(dist::scalar_type(*options.dtype)) : tensor;
  };
  // Shapes and types before bytes: each tensor is made twice, and only one is held.
  std::vector<formats::TensorEntry> entries;
  Json config = config_of(source, model);
  for (const auto& [name, move] : moves) {
    const at::Tensor tensor = made(move);
    entries.push_back({name, dist::dtype_of(tensor), tensor.sizes().vec()});
    if (name.ends_with("wte.weight") || name.ends_with("word_embeddings.weight") || name.ends_with("shared.weight"))
      config["vocab_size"] = tensor.size(0);
    if (name.ends_with("token_type_embeddings.weight")) config["type_vocab_size"] = tensor.size(0);
  }
  source.check_used();
  build_folder(destination, [&](const std::string& into) {
    formats::SafetensorsWriter writer(into + "/model.safetensors", entries, {{"format", "pt"}});
    for (const formats::TensorEntry& entry : writer.order()) {
      const at::Tensor tensor = made(moves.at(entry.name)).contiguous();
      writer.write(entry.name, {static_cast<const std::byte*>(tensor.data_ptr()), tensor.nbytes()});
    }
    writer.close();
    write_model_files(into, config, "");
  });
  return std::ssize(moves);
}

}  // namespace trireme::checkpoint
