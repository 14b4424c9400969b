// trireme score: texts or numbers that a model has written, against references.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>

#include "tools/trireme/subcommands.h"
#include "trireme/base/error.h"
#include "trireme/base/io.h"
#include "trireme/base/json.h"
#include "trireme/data/measures.h"
#include "trireme/text/measures.h"

namespace trireme::tools {
namespace {

/// A file of one sample a line.
struct Lines {
  std::string path;
  std::vector<std::string> lines;
};

Lines read_lines(const std::string& path) {
  Lines file{path, {}};
  const std::string content = base::read_file(path);
  for (size_t begin = 0; begin < content.size();) {
    const size_t end = std::min(content.find('\n', begin), content.size());
    std::string& line = file.lines.emplace_back(content.substr(begin, end - begin));
    if (line.ends_with('\r')) line.pop_back();
    begin = end + 1;
  }
  if (file.lines.empty()) throw base::FormatError(path + " has no lines; it has a sample on each");
  return file;
}

std::vector<double> numbers_of(const Lines& file) {
  std::vector<double> numbers;
  for (const std::string& line : file.lines) {
    const char *begin = line.data(), *end = begin + line.size();
    double& number = numbers.emplace_back();
    if (const auto read = std::from_chars(begin, end, number); read.ec != std::errc{} || read.ptr != end)
      throw base::FormatError(
          fmt::format("{}:{}: '{}' is not a number, which correlations are of", file.path, numbers.size(), line));
  }
  return numbers;
}

using References = std::vector<Lines>;
using Measure = std::function<double(const Lines& written, const References& references)>;

/// The mean over the samples of what `of` makes of each and its best reference.
Measure mean_of(double (*of)(const std::string& written, const std::string& reference)) {
  return [of](const Lines& written, const References& references) {
    double sum = 0;
    for (size_t i = 0; i < written.lines.size(); ++i) {
      double best = 0;
      for (const Lines& file : references) best = std::max(best, of(written.lines[i], file.lines[i]));
      sum += best;
    }
    return sum / static_cast<double>(written.lines.size());
  };
}

Measure correlation(double (*of)(std::span<const double>, std::span<const double>)) {
  return [of](const Lines& written, const References& references) {
    if (references.size() > 1)
      throw base::ConfigError(fmt::format("correlations are with one file of references, not {}", references.size()));
    const double value = of(numbers_of(written), numbers_of(references[0]));
    if (std::isnan(value))
      throw base::ConfigError(fmt::format("correlation of {} numbers of {} with those of {} is not defined; give at least two that differ",
                                          written.lines.size(), written.path, references[0].path));
    return value;
  };
}

double bleu_of(const Lines& written, const References& references) {
  std::vector<std::vector<std::string>> all(written.lines.size());
  for (const Lines& file : references)
    for (size_t i = 0; i < all.size(); ++i) all[i].push_back(file.lines[i]);
  return text::bleu(written.lines, all);
}

const std::vector<std::pair<std::string, Measure>>& measures() {
  using Text = const std::string&;
  static const std::vector<std::pair<std::string, Measure>> all = {
      {"bleu", bleu_of},
      {"rouge1", mean_of([](Text a, Text b) { return text::rouge_n(a, b, 1).f1; })},
      {"rouge2", mean_of([](Text a, Text b) { return text::rouge_n(a, b, 2).f1; })},
      {"rougeL", mean_of([](Text a, Text b) { return text::rouge_l(a, b).f1; })},
      {"exact_match", mean_of([](Text a, Text b) { return text::exact_match(a, b) ? 1.0 : 0.0; })},
      {"f1", mean_of([](Text a, Text b) { return text::answer_overlap(a, b).f1; })},
      {"pearson", correlation(data::pearson)},
      {"spearman", correlation(data::spearman)}};
  return all;
}

struct Flags {
  std::string written;
  std::vector<std::string> references, metrics = {"bleu", "rouge1", "rouge2", "rougeL", "exact_match", "f1"};
  bool json = false;
};

void run(const Flags& flags) {
  const Lines written = read_lines(flags.written);
  References references;
  for (const std::string& path : flags.references) {
    const Lines& file = references.emplace_back(read_lines(path));
    if (file.lines.size() != written.lines.size())
      throw base::FormatError(fmt::format("{} has {} lines, but {} has {}: line by line they belong together", file.path,
                                          file.lines.size(), written.path, written.lines.size()));
  }
  base::Json document = {{"samples", written.lines.size()}};
  for (const auto& [name, measure] : measures())
    if (std::ranges::find(flags.metrics, name) != flags.metrics.end()) document[name] = measure(written, references);
  if (flags.json) {
    std::printf("%s\n", document.dump().c_str());
    return;
  }
  std::printf("%-12s %zu\n", "samples", written.lines.size());
  for (const auto& [name, _] : measures())
    if (document.contains(name)) std::printf("%-12s %.4f\n", name.c_str(), document[name].get<double>());
}

}  // namespace

void add_score(CLI::App& program) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = program.add_subcommand("score", "BLEU, ROUGE, matches and correlations of what a model has written");
  std::vector<std::string> names;
  for (const auto& [name, _] : measures()) names.push_back(name);
  command->add_option("written", flags->written, "file with a sample a line")->required();
  command->add_option("references", flags->references, "files of as many lines; of several the best counts (BLEU: all)")->required();
  command->add_option("--metrics", flags->metrics, fmt::format("any of {}", fmt::join(names, ",")))
      ->delimiter(',')
      ->check(CLI::IsMember(names));
  command->add_flag("--json", flags->json, "one JSON document");
  command->callback([flags] { run(*flags); });
}

}  // namespace trireme::tools
