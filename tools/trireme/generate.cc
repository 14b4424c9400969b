// trireme generate: continues prompts with a model from a Hugging Face folder or a checkpoint.
#include <cstdio>
#include <functional>
#include <map>
#include <memory>

#include "tools/trireme/config_options.h"
#include "tools/trireme/ranks.h"
#include "tools/trireme/subcommands.h"
#include "trireme/base/error.h"
#include "trireme/base/io.h"
#include "trireme/generate/generator.h"
#include "trireme/models/registry.h"
#include "trireme/text/tokenizer.h"
#include "trireme/train/assembly.h"

namespace trireme::tools {
namespace {

constexpr double kTimeoutSeconds = 600;  // that a rank waits for the others

struct Flags {
  std::string model, tokenizer, dtype = "fp32", device = "cpu";
  std::vector<std::string> prompts;
  std::string prompt_file;
  int64_t max_new_tokens = 32;
  int tensor_parallel = 1, pipeline_parallel = 1, ranks = 0;
  bool json = false;
  generate::Sampling sampling;
  generate::Beams beams;
};

std::vector<std::string> read_prompts(const Flags& flags) {
  std::vector<std::string> prompts = flags.prompts;
  if (!flags.prompt_file.empty()) {
    std::string text = base::read_file(flags.prompt_file);
    for (size_t begin = 0; begin < text.size();) {
      size_t end = std::min(text.find('\n', begin), text.size());
      if (end > begin) prompts.push_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  if (prompts.empty()) throw base::ConfigError("no prompt: give --prompt TEXT (repeatable) or --prompt-file FILE");
  return prompts;
}

// The token that ends a text: the configuration's eos_token_id, else the tokenizer's end of document.
std::optional<int64_t> end_token(const base::Json& config, const text::Tokenizer& tokenizer) {
  if (config.contains("eos_token_id")) {
    const base::Json& id = config["eos_token_id"];
    if (id.is_number_integer()) return id.get<int64_t>();
    if (id.is_array() && !id.empty() && id[0].is_number_integer()) return id[0].get<int64_t>();
  }
  if (auto id = tokenizer.end_of_document()) return *id;
  return std::nullopt;
}

void print(const Flags& flags, const text::Tokenizer& tokenizer, const std::vector<std::string>& prompts,
           const generate::Request& request, const std::vector<generate::Continuation>& continuations, bool translates) {
  for (size_t p = 0; p < prompts.size(); ++p) {
    const auto& new_ids = continuations[p].new_ids;
    // An encoder-decoder's text is what it makes of the prompt.
    std::vector<int32_t> ids;
    if (!translates) ids.assign(request.prompts[p].begin(), request.prompts[p].end());
    ids.insert(ids.end(), new_ids.begin(), new_ids.end());
    // Ids beyond the tokenizer's (a padded vocabulary) stand for no text.
    std::vector<int32_t> known;
    for (int32_t id : ids)
      if (id < tokenizer.vocab_size()) known.push_back(id);
    std::string text = tokenizer.decode(known, true);
    if (flags.json) {
      base::Json line = {{"prompt", prompts[p]}, {"text", text}, {"ids", ids}, {"new_ids", new_ids},
                         {"finish_reason", continuations[p].finish_reason}};
      std::printf("%s\n", line.dump(-1, ' ', false, base::Json::error_handler_t::replace).c_str());
    } else {
      std::printf("%s%s\n", p > 0 ? "\n" : "", text.c_str());
    }
  }
}

std::unique_ptr<text::Tokenizer> load_tokenizer(const Flags& flags, const std::string& folder) {
  if (!flags.tokenizer.empty()) return text::Tokenizer::load(flags.tokenizer);
  try {
    return text::Tokenizer::load(folder);
  } catch (const base::FormatError& e) {
    throw base::FormatError(fmt::format("{}; --tokenizer names one that lies elsewhere", e.what()));
  }
}

/// The ranks that tensor x pipeline needs. ConfigError where --ranks or a launcher has another number.
layout::Mesh mesh_of(const Flags& flags) {
  layout::Mesh mesh({.pp = flags.pipeline_parallel, .dp = 1, .tp = flags.tensor_parallel});
  const int ranks = job_size(flags.ranks);
  if ((flags.ranks > 0 || by_launcher()) && ranks != mesh.size())
    throw base::ConfigError(fmt::format("there are {} ranks, but --tensor-parallel {} x --pipeline-parallel {} needs {}: give "
                                        "degrees whose product is the number of ranks",
                                        ranks, flags.tensor_parallel, flags.pipeline_parallel, mesh.size()));
  return mesh;
}

/// Ranks as processes where --ranks or a launcher asks for them, else as threads of this one. Returns the exit code.
int on_ranks(const Flags& flags, const layout::Mesh& mesh, const std::function<void(dist::World&)>& body) {
  if (flags.ranks > 0 || by_launcher()) return run_processes(flags.ranks, kTimeoutSeconds, flags.device, body);
  run_threads(mesh.size(), flags.device, body);
  return 0;
}

int run(const Flags& flags) {
  flags.sampling.check();
  flags.beams.check();
  if (flags.sampling.greedy && flags.beams.count > 1)
    throw base::ConfigError(fmt::format(
        "--greedy and --num-beams {} contradict each other: a beam search draws nothing and looks beyond the likeliest "
        "token; leave one of them out", flags.beams.count));
  checkpoint::Checkpoint checkpoint(flags.model);
  generate::check_generates(models::make_model(checkpoint.model_config(), 1));
  auto tokenizer = load_tokenizer(flags, checkpoint.path());
  std::vector<std::string> prompts = read_prompts(flags);
  generate::Request request{.max_new_tokens = flags.max_new_tokens,
                            .end_token = end_token(checkpoint.model_config(), *tokenizer),
                            .sampling = flags.sampling,
                            .beams = flags.beams};
  const base::Json pair = checkpoint.model_config().value("is_encoder_decoder", base::Json(false));
  const bool translates = pair.is_boolean() && pair.get<bool>();
  for (const std::string& prompt : prompts) {
    std::vector<int32_t> ids = tokenizer->encode(prompt, translates);
    request.prompts.emplace_back(ids.begin(), ids.end());
  }
  const layout::Mesh mesh = mesh_of(flags);
  return on_ranks(flags, mesh, [&](dist::World& world) {
    // Each rank opens the files itself: a reader keeps what it has checked.
    checkpoint::Checkpoint own(checkpoint.path());
    auto model = train::assemble(own.model_config(),
                                 train::forward_placement(mesh, base::dtype_of(flags.dtype), 1), 1, world);
    train::make_parameters(*model, false, &own);
    auto result = generate::generate(*model->model, model->mesh, request);
    if (world.rank() == 0) print(flags, *tokenizer, prompts, request, result, translates);
  });
}

}  // namespace

void add_generate(CLI::App& program) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = program.add_subcommand("generate", "continue prompts with a model, on any tensor x pipeline layout");
  command->add_option("--model", flags->model, "Hugging Face folder, checkpoint, or a run's folder")->required();
  command->add_option("--tokenizer", flags->tokenizer, "tokenizer folder or file (default: the model's folder)");
  command->add_option("--prompt", flags->prompts, "text to continue; repeatable");
  command->add_option("--prompt-file", flags->prompt_file, "file with a prompt a line");
  command->add_option("--max-new-tokens", flags->max_new_tokens, "tokens to add at most")->capture_default_str();
  command->add_flag("--greedy", flags->sampling.greedy, "always the likeliest token");
  command->add_option("--temperature", flags->sampling.temperature, "divides the logits")->capture_default_str();
  command->add_option("--top-k", flags->sampling.top_k, "draw from the k likeliest only; 0: all")->capture_default_str();
  command->add_option("--top-p", flags->sampling.top_p, "draw from the likeliest that hold this share")->capture_default_str();
  command->add_option("--num-beams", flags->beams.count, "sequences of a beam search, which draws nothing; 1: no search")
      ->capture_default_str();
  command->add_option("--length-penalty", flags->beams.length_penalty,
                      "beam search: a sequence counts with its log probability over its new tokens to this power")
      ->capture_default_str();
  const std::map<std::string, generate::EarlyStopping> early{{"false", generate::EarlyStopping::no},
                                                             {"true", generate::EarlyStopping::yes},
                                                             {"never", generate::EarlyStopping::never}};
  command
      ->add_option_function<std::string>(
          "--early-stopping", [flags, early](const std::string& word) { flags->beams.early_stopping = early.at(word); },
          "beam search ends when as many sequences as beams are finished (true), when none looks better (false), when "
          "none can become better (never)")
      ->check(CLI::IsMember({"false", "true", "never"}))
      ->default_str("false");
  command->add_option("--no-repeat-ngram-size", flags->sampling.no_repeat_ngram_size, "never repeat an n-gram; 0: off")
      ->capture_default_str();
  command->add_option("--seed", flags->sampling.seed, "of the draws")->capture_default_str();
  command->add_option("--dtype", flags->dtype, "type of weights and arithmetic")
      ->check(CLI::IsMember({"fp32", "fp64", "bf16", "fp16"}))
      ->capture_default_str();
  command->add_option("--device", flags->device, "where tensors live; cuda gives each rank a GPU of its own")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command->add_option("--tensor-parallel", flags->tensor_parallel, "ranks that share each layer")->capture_default_str();
  command->add_option("--pipeline-parallel", flags->pipeline_parallel, "stages")->capture_default_str();
  command->add_option("--ranks", flags->ranks, "start N local processes, tensor x pipeline (default: the launcher's, or threads)")
      ->check(CLI::Range(1, 1 << 20));
  command->add_flag("--json", flags->json, "a JSON line a prompt");
  command->callback([flags] { exit_with(run(*flags)); });
}

}  // namespace trireme::tools
