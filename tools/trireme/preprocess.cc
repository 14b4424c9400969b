// trireme preprocess: text to indexed datasets.

#include "trireme/data/preprocess.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>

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

/// A bar on stderr, drawn at most ten times a second; nothing where stderr is no terminal.
class Bar {
 public:
  ~Bar() {
    if (drawn_) std::fputs("\r\033[K", stderr);
  }
  void show(const data::PreprocessProgress& p) {
    if (first_bytes_ < 0) first_bytes_ = p.bytes, start_ = Clock::now();
    if (!terminal_ || (drawn_ && seconds_since(last_) < 0.1)) return;
    last_ = Clock::now();
    drawn_ = true;
    // Of compressed input the whole size is not known.
    const double done = p.total_bytes > 0 ? std::min(1.0, double(p.bytes) / double(p.total_bytes)) : 1;
    const double rate = double(p.bytes - first_bytes_) / std::max(seconds_since(start_), 1e-3);
    const auto left = rate > 0 ? static_cast<int64_t>(std::max(0.0, double(p.total_bytes - p.bytes)) / rate) : 0;
    const int filled = static_cast<int>(30 * done);
    std::string line =
        fmt::format("\r[{}{}] {:3.0f}%  {} documents  {:.1f} MB/s  {}:{:02} left\033[K",
                    std::string(filled, '='), std::string(30 - filled, ' '), 100 * done,
                    p.documents, rate / 1e6, left / 60, left % 60);
    std::fputs(line.c_str(), stderr);
  }

 private:
  bool terminal_ = ::isatty(STDERR_FILENO) != 0, drawn_ = false;
  int64_t first_bytes_ = -1;  // what an earlier run had done is not this run's speed
  Clock::time_point start_, last_;
};

void print_json(const data::PreprocessSummary& s, double bytes_per_token, double seconds) {
  base::Json outputs = base::Json::array();
  for (const auto& o : s.outputs) {
    outputs.push_back({{"prefix", o.prefix}, {"documents", o.documents}, {"tokens", o.tokens}});
  }
  base::Json all = {{"documents", s.documents}, {"tokens", s.tokens},
                    {"bytes", s.text_bytes},    {"bytes_per_token", bytes_per_token},
                    {"empty", s.empty},         {"skipped", s.skipped},
                    {"duplicates", s.duplicates},
                    {"errors", s.errors},       {"outputs", outputs},
                    {"seconds", seconds}};
  fmt::print("{}\n", all.dump(-1, ' ', false, base::Json::error_handler_t::replace));
}

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
    Bar bar;
    options.progress = [&](const data::PreprocessProgress& p) { bar.show(p); };
    try {
      summary = data::preprocess(*text::Tokenizer::load(flags.tokenizer), options);
    } catch (const base::IoError& e) {
      const std::string parts = options.output + ".parts";
      if (!std::filesystem::exists(parts)) throw;
      throw base::IoError(fmt::format("{} ({} keeps what is done: the same command goes on from there)", e.what(), parts));
    }
  }
  const double seconds = seconds_since(start);
  const double bytes_per_token = double(summary.text_bytes) / double(summary.tokens);

  for (const std::string& error : summary.errors) fmt::print(stderr, "skipped: {}\n", error);
  if (summary.skipped > std::ssize(summary.errors)) {
    fmt::print(stderr, "skipped: {} more\n", summary.skipped - std::ssize(summary.errors));
  }
  if (flags.json) return print_json(summary, bytes_per_token, seconds);
  if (summary.resumed_bytes > 0) {
    fmt::print("went on after {:.1f} MB that an earlier run had done\n",
               double(summary.resumed_bytes) / 1e6);
  }
  fmt::print("{} documents, {} tokens, {:.3f} bytes per token ({:.1f} s)\n", summary.documents,
             summary.tokens, bytes_per_token, seconds);
  if (summary.empty > 0) fmt::print("{} empty documents left out\n", summary.empty);
  if (summary.duplicates > 0) fmt::print("{} duplicates left out\n", summary.duplicates);
  if (summary.skipped > 0) fmt::print("{} bad documents skipped\n", summary.skipped);
  for (const auto& o : summary.outputs) {
    fmt::print("{}: {} documents, {} tokens\n", o.prefix, o.documents, o.tokens);
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
