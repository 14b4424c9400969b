// trireme models: which families there are and what each can do.
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>

#include "tools/trireme/subcommands.h"
#include "trireme/models/family.h"

namespace trireme::tools {
namespace {

using Row = std::vector<std::string>;

const Row kColumns = {"family", "Hugging Face's class", "head", "tensor parallel size", "sequence", "pipeline",
                      "ties", "import", "export", "tokenizer"};
// The same as JSON has them.
const Row kKeys = {"family", "architecture", "heads", "tensor_parallel_size", "sequence_parallel", "pipeline_parallel",
                   "ties", "import", "export", "tokenizer"};

Row row_of(const std::string& name) {
  const models::Support& s = models::families().get(name).support;
  Row row{name, s.architecture, s.task.empty() ? models::in_words(s.heads) : s.task, s.tensor, s.sequence, s.pipeline, s.ties, s.import, s.export_, s.tokenizer};
  for (std::string& cell : row)
    if (cell.empty()) cell = "-";
  return row;
}

void print(bool json, bool markdown) {
  std::vector<Row> rows;
  for (const std::string& name : models::families().names()) rows.push_back(row_of(name));
  if (json) {
    base::Json document = base::Json::array();
    for (const Row& row : rows) {
      base::Json& entry = document.emplace_back();
      for (size_t i = 0; i < row.size(); ++i) entry[kKeys[i]] = row[i];
    }
    std::printf("%s\n", document.dump().c_str());
    return;
  }
  rows.insert(rows.begin(), kColumns);
  if (markdown) {
    rows.insert(rows.begin() + 1, Row(kColumns.size(), "---"));
    for (const Row& row : rows) std::printf("| %s |\n", fmt::format("{}", fmt::join(row, " | ")).c_str());
    return;
  }
  std::vector<size_t> widths(kColumns.size());
  for (const Row& row : rows)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  for (const Row& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) line += fmt::format("{:<{}}  ", row[i], widths[i]);
    std::printf("%s\n", line.c_str());
  }
}

}  // namespace

void add_models(CLI::App& program) {
  auto json = std::make_shared<bool>(false), markdown = std::make_shared<bool>(false);
  CLI::App* command = program.add_subcommand("models", "the families of models and what each can do");
  command->add_flag("--json", *json, "one JSON document");
  command->add_flag("--markdown", *markdown, "the table of docs/models.md");
  command->callback([json, markdown] { print(*json, *markdown); });
}

}  // namespace trireme::tools
