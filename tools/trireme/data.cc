// trireme data: looks into indexed datasets, checks and joins them.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <memory>
#include <set>
#include <vector>

#include "tools/trireme/preprocess_report.h"
#include "tools/trireme/subcommands.h"
#include "trireme/base/error.h"
#include "trireme/base/json.h"
#include "trireme/base/threads.h"
#include "trireme/data/causal.h"
#include "trireme/data/indexed.h"
#include "trireme/text/tokenizer.h"

namespace trireme::tools {
namespace {

using base::Json;
using data::IndexedDataset;

struct DataFlags {
  std::vector<std::string> paths;
  std::string out, tokenizer, mode = "mmap";
  int64_t vocab_size = 0, documents = 5, skip = 0, tokens = 64;
  int threads = 0;
  bool json = false, overwrite = false;
};

void print_json(const Json& json) {
  fmt::print("{}\n", json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

int64_t length_of(const IndexedDataset& dataset, int64_t document) {
  return dataset.document_begin(document + 1) - dataset.document_begin(document);
}

void inspect(const DataFlags& flags) {
  for (const std::string& path : flags.paths) {
    IndexedDataset dataset(path);
    int64_t shortest = dataset.documents() > 0 ? std::numeric_limits<int64_t>::max() : 0,
            longest = 0;
    for (int64_t d = 0; d < dataset.documents(); ++d) {
      shortest = std::min(shortest, length_of(dataset, d));
      longest = std::max(longest, length_of(dataset, d));
    }
    const double mean =
        double(dataset.tokens()) / double(std::max<int64_t>(dataset.documents(), 1));
    const int64_t bytes = dataset.tokens() * base::size_of(dataset.dtype());
    if (flags.json) {
      print_json({{"path", dataset.prefix()},
                  {"format", data::name_of(dataset.format())},
                  {"dtype", base::name_of(dataset.dtype())},
                  {"documents", dataset.documents()},
                  {"sequences", dataset.sequences()},
                  {"tokens", dataset.tokens()},
                  {"bytes", bytes},
                  {"document_tokens", {{"min", shortest}, {"mean", mean}, {"max", longest}}}});
      continue;
    }
    fmt::print(
        "{} ({})\n  documents  {} of {} to {} tokens, {:.1f} on average\n  sequences  {}\n"
        "  tokens     {} of {} ({} bytes)\n",
        dataset.prefix(), data::name_of(dataset.format()), dataset.documents(), shortest, longest, mean, dataset.sequences(),
        dataset.tokens(), base::name_of(dataset.dtype()), bytes);
  }
}

/// Opening checks the index; this also looks at every id.
void verify(const DataFlags& flags) {
  int64_t vocab_size = flags.vocab_size;
  if (!flags.tokenizer.empty()) vocab_size = text::Tokenizer::load(flags.tokenizer)->vocab_size();
  for (const std::string& path : flags.paths) {
    IndexedDataset dataset(path);
    const auto [lowest, highest] = dataset.id_range();
    if (vocab_size > 0) data::check_vocabulary(dataset, vocab_size);
    if (flags.json) {
      print_json({{"path", dataset.prefix()},
                  {"ok", true},
                  {"documents", dataset.documents()},
                  {"tokens", dataset.tokens()},
                  {"lowest_id", lowest},
                  {"highest_id", highest}});
    } else {
      fmt::print("{}: good: {} documents, {} tokens, ids {} to {}\n", dataset.prefix(),
                 dataset.documents(), dataset.tokens(), lowest, highest);
    }
  }
}

void merge(const DataFlags& flags) {
  if (flags.out.empty() || flags.out.ends_with('/')) {
    throw base::ConfigError(
        fmt::format("--out \"{}\": expected a prefix such as out/data, of out/data.idx and out/data.bin", flags.out));
  }
  // All are opened, and so checked, before anything is written; read piece by piece, they take no memory.
  std::vector<IndexedDataset> parts;
  for (const std::string& path : flags.paths) parts.emplace_back(path, data::Access::lazy);
  base::DType dtype = parts.front().dtype();
  for (const IndexedDataset& part : parts) dtype = data::common_dtype(dtype, part.dtype());
  if (!flags.overwrite)
    data::refuse_existing(flags.out, "give --overwrite to replace the dataset, or another --out");
  const int threads = flags.threads > 0 ? flags.threads : base::available_cores();
  data::IndexedWriter writer(flags.out, dtype, data::format_of(data::access_of(flags.mode)));
  {
    data::PreprocessProgress progress{.bytes = 0, .total_bytes = 0, .documents = -1, .tokens = 0};
    for (const IndexedDataset& part : parts) progress.total_bytes += part.tokens() * base::size_of(dtype);
    const auto start = std::chrono::steady_clock::now();
    ProgressReport report(
        ::isatty(STDERR_FILENO) != 0,
        [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); },
        [](std::string_view text) { fmt::print(stderr, "{}", text); }, "merge");
    report.show(progress);
    for (const IndexedDataset& part : parts) {
      writer.append(part, 0, part.documents(), threads, [&](int64_t tokens) {
        progress.bytes += tokens * base::size_of(dtype);
        report.show(progress);
      });
    }
    writer.finish();
  }
  if (flags.json) {
    print_json(
        {{"path", flags.out}, {"documents", writer.documents()}, {"tokens", writer.tokens()}});
  } else {
    fmt::print("{}: {} documents, {} tokens of {}\n", flags.out, writer.documents(),
               writer.tokens(), base::name_of(dtype));
  }
}

void head(const DataFlags& flags) {
  std::unique_ptr<text::Tokenizer> tokenizer;
  if (!flags.tokenizer.empty()) tokenizer = text::Tokenizer::load(flags.tokenizer);
  IndexedDataset dataset(flags.paths.front());
  if (flags.skip > 0 && flags.skip >= dataset.documents()) {
    throw base::ConfigError(fmt::format("--skip {}: {} has {} documents; skip fewer", flags.skip,
                                        dataset.prefix(), dataset.documents()));
  }
  const int64_t end = flags.skip + std::min(flags.documents, dataset.documents() - flags.skip);
  for (int64_t d = flags.skip; d < end; ++d) {
    std::vector<int64_t> ids(std::min(flags.tokens, length_of(dataset, d)));
    dataset.read(dataset.document_begin(d), std::ssize(ids), ids.data());
    std::string text;
    if (tokenizer) text = tokenizer->decode(std::vector<int32_t>(ids.begin(), ids.end()));
    if (flags.json) {
      Json line = {{"document", d}, {"tokens", length_of(dataset, d)}, {"ids", ids}};
      if (tokenizer) line["text"] = text;
      print_json(line);
    } else {
      fmt::print("document {} ({} tokens)\n{}{}\n", d, length_of(dataset, d),
                 tokenizer ? text : fmt::format("{}", fmt::join(ids, " ")),
                 length_of(dataset, d) > flags.tokens ? " ..." : "");
    }
  }
}

CLI::App& add_command(CLI::App& parent, const char* name, const char* help, DataFlags& flags) {
  CLI::App& command = *parent.add_subcommand(name, help);
  command.add_option("prefix", flags.paths, "PREFIX of PREFIX.idx and PREFIX.bin")->required();
  command.add_flag("--json", flags.json, "print JSON lines");
  return command;
}

}  // namespace

void add_data(CLI::App& program) {
  auto flags = std::make_shared<DataFlags>();
  CLI::App& all =
      *program.add_subcommand("data", "look into indexed datasets, check and join them");
  all.require_subcommand(1);

  CLI::App& inspect_command = add_command(all, "inspect", "sizes, from the index", *flags);
  inspect_command.callback([flags] { inspect(*flags); });

  CLI::App& verify_command =
      add_command(all, "verify", "checks the index and reads every id", *flags);
  verify_command.add_option("--vocab-size", flags->vocab_size, "ids must be below it")
      ->check(CLI::PositiveNumber);
  verify_command.add_option("--tokenizer", flags->tokenizer, "ids must be in its vocabulary")
      ->excludes("--vocab-size");
  verify_command.callback([flags] { verify(*flags); });

  CLI::App& merge_command =
      add_command(all, "merge", "joins datasets, documents in the order given", *flags);
  merge_command.add_option("--out", flags->out, "prefix of the new dataset")->required();
  merge_command
      .add_option("--mode", flags->mode,
                  "format of the index: mmap (MMIDIDX), or OSLO's lazy and cached (TNTIDX)")
      ->check(CLI::IsMember({"mmap", "lazy", "cached"}))
      ->capture_default_str();
  merge_command.add_option("--threads", flags->threads, "default: all cores")->check(CLI::Range(0, 1024));
  merge_command.add_flag("--overwrite", flags->overwrite, "replace a dataset that stands there");
  merge_command.callback([flags] { merge(*flags); });

  CLI::App& head_command = add_command(all, "head", "the first documents", *flags);
  head_command.add_option("-n,--documents", flags->documents, "how many")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  head_command.add_option("--skip", flags->skip, "documents to pass over first")
      ->check(CLI::NonNegativeNumber);
  head_command.add_option("--tokens", flags->tokens, "tokens shown of each")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  head_command.add_option("--tokenizer", flags->tokenizer, "shows text in place of ids");
  head_command.callback([flags] { head(*flags); });
}

}  // namespace trireme::tools
