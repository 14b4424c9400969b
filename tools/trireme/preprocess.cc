// trireme preprocess: text to indexed datasets.

#include "trireme/data/preprocess.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <string_view>

#include "tools/trireme/preprocess_report.h"
#include "tools/trireme/subcommands.h"
#include "trireme/base/error.h"
#include "trireme/base/json.h"
#include "trireme/data/split.h"

namespace trireme::tools {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct PreprocessFlags {
  data::PreprocessOptions options;
  std::string tokenizer, split, on_error = "stop", format = "auto", mode = "mmap";
  bool json = false;
};

void run_preprocess(PreprocessFlags& flags) {
  data::PreprocessOptions& options = flags.options;
  options.skip_errors = flags.on_error == "skip";
  options.format = std::map<std::string, data::InputFormat>{{"auto", data::InputFormat::automatic},
                                                            {"text", data::InputFormat::text},
                                                            {"jsonl", data::InputFormat::jsonl}}
                       .at(flags.format);
  options.index_format = data::format_of(data::access_of(flags.mode));
  if (!flags.split.empty()) options.split = data::parse_split(flags.split);
  const auto start = Clock::now();
  data::PreprocessSummary summary;
  {
    ProgressReport report(
        ::isatty(STDERR_FILENO) != 0, [&] { return seconds_since(start); },
        [](std::string_view text) {
          std::fwrite(text.data(), 1, text.size(), stderr);
          std::fflush(stderr);
        });
    options.progress = [&](const data::PreprocessProgress& p) { report.show(p); };
    try {
      summary = data::preprocess(*text::Tokenizer::load(flags.tokenizer), options);
    } catch (const base::IoError& e) {
      const std::string parts = options.output + ".parts";
      if (!std::filesystem::exists(parts)) throw;
      throw base::IoError(fmt::format("{} ({} keeps what is done: the same command goes on from there)", e.what(), parts));
    }
  }
  const double seconds = seconds_since(start);

  for (const std::string& error : summary.errors) fmt::print(stderr, "skipped: {}\n", error);
  if (summary.skipped > std::ssize(summary.errors)) {
    fmt::print(stderr, "skipped: {} more\n", summary.skipped - std::ssize(summary.errors));
  }
  if (flags.json) {
    fmt::print("{}\n", summary_json(summary, seconds)
                           .dump(-1, ' ', false, base::Json::error_handler_t::replace));
  } else {
    fmt::print("{}", summary_text(summary, seconds));
  }
}

}  // namespace

void add_preprocess(CLI::App& program) {
  auto flags = std::make_shared<PreprocessFlags>();
  data::PreprocessOptions& options = flags->options;
  CLI::App& command = *program.add_subcommand("preprocess", "text to an indexed dataset");
  command.add_option("--tokenizer", flags->tokenizer, "folder or file of the tokenizer")
      ->required();
  command
      .add_option(
          "--input", options.inputs,
          "files, folders or patterns ('src/**/*.py'), or - for standard input; .jsonl, .ndjson and "
          ".json hold a document a line, any other file is one document; .gz and .zst are unpacked")
      ->required();
  command.add_option("--out", options.output, "writes PREFIX.idx and PREFIX.bin")
      ->type_name("PREFIX")
      ->required();
  command
      .add_option("--key,--json-keys", options.keys,
                  "keys of the documents in JSON lines; several make a dataset each, PREFIX_KEY")
      ->capture_default_str();
  command.add_flag("--split-sentences", options.split_sentences,
                   "a document is a sequence for each sentence, for BERT and T5");
  command.add_flag("--dedupe", options.dedupe, "leave out documents whose whole text came before");
  command
      .add_option("--mode", flags->mode,
                  "format of the index: mmap (MMIDIDX), or OSLO's lazy and cached (TNTIDX)")
      ->check(CLI::IsMember({"mmap", "lazy", "cached"}))
      ->capture_default_str();
  command.add_option("--format", flags->format, "what the files are, whatever their names say")
      ->check(CLI::IsMember({"auto", "text", "jsonl"}))
      ->capture_default_str();
  command.add_flag("--append-eod", options.append_eod,
                   "end each document with the tokenizer's token for it");
  command.add_option(
      "--split", flags->split,
      "shares such as 95,5: PREFIX_train, PREFIX_valid (and PREFIX_test) instead of PREFIX");
  command
      .add_option("--on-error", flags->on_error, "at a bad document: stop, or skip it and count")
      ->check(CLI::IsMember({"stop", "skip"}))
      ->capture_default_str();
  command.add_flag("--overwrite", options.overwrite, "replace a dataset that stands there");
  command.add_option("--workers", options.workers, "threads (default: one a core)");
  command.add_flag("--json", flags->json, "print the summary as JSON");
  command.callback([flags] { run_preprocess(*flags); });
}

}  // namespace trireme::tools
