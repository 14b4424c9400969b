#include "tools/trireme/preprocess_report.h"

#include <fmt/format.h>

#include <algorithm>

namespace trireme::tools {
namespace {

double bytes_per_token(int64_t bytes, int64_t tokens) {
  return double(bytes) / double(std::max<int64_t>(tokens, 1));
}

}  // namespace

ProgressReport::~ProgressReport() {
  if (drawn_ && terminal_) put_("\r\033[K");
}

void ProgressReport::show(const data::PreprocessProgress& p) {
  const double now = seconds_();
  if (first_bytes_ < 0) {
    first_bytes_ = p.bytes;
    start_ = last_ = now;
    if (!terminal_) return;
  }
  if ((drawn_ || !terminal_) && now - last_ < (terminal_ ? 0.1 : 10)) return;
  last_ = now;
  drawn_ = true;
  const double rate = double(p.bytes - first_bytes_) / std::max(now - start_, 1e-3);
  std::string line = p.documents < 0 ? "" : fmt::format("{} documents  ", p.documents);
  line += fmt::format("{:.1f} MB/s", rate / 1e6);
  if (p.total_bytes > 0) {  // of compressed input the whole size is not known
    const double done = std::min(1.0, double(p.bytes) / double(p.total_bytes));
    const auto left =
        static_cast<int64_t>(rate > 0 ? std::max(0.0, double(p.total_bytes - p.bytes)) / rate : 0);
    const int filled = static_cast<int>(30 * done);
    const std::string bar =
        terminal_ ? fmt::format("[{}{}] ", std::string(filled, '='), std::string(30 - filled, ' '))
                  : "";
    line =
        fmt::format("{}{:3.0f}%  {}  {}:{:02} left", bar, 100 * done, line, left / 60, left % 60);
  }
  if (p.tokens > 0)
    line += fmt::format("  {:.2f} bytes per token", bytes_per_token(p.bytes, p.tokens));
  put_(terminal_ ? fmt::format("\r{}\033[K", line) : fmt::format("{}: {}\n", doing_, line));
}

std::string summary_text(const data::PreprocessSummary& s, double seconds) {
  std::string text;
  if (s.resumed_bytes > 0) {
    text += fmt::format("went on after {:.1f} MB that an earlier run had done\n",
                        double(s.resumed_bytes) / 1e6);
  }
  text += fmt::format("{} documents, {} tokens, {:.3f} bytes per token ({:.1f} s)\n", s.documents,
                      s.tokens, bytes_per_token(s.text_bytes, s.tokens), seconds);
  if (s.empty > 0) text += fmt::format("{} empty documents left out\n", s.empty);
  if (s.duplicates > 0) text += fmt::format("{} duplicates left out\n", s.duplicates);
  if (s.skipped > 0) text += fmt::format("{} bad documents skipped\n", s.skipped);
  for (const auto& o : s.outputs)
    text += fmt::format("{}: {} documents, {} tokens\n", o.prefix, o.documents, o.tokens);
  return text;
}

base::Json summary_json(const data::PreprocessSummary& s, double seconds) {
  base::Json outputs = base::Json::array();
  for (const auto& o : s.outputs)
    outputs.push_back({{"prefix", o.prefix}, {"documents", o.documents}, {"tokens", o.tokens}});
  return {
      {"documents", s.documents},   {"tokens", s.tokens},
      {"bytes", s.text_bytes},      {"bytes_per_token", bytes_per_token(s.text_bytes, s.tokens)},
      {"empty", s.empty},           {"skipped", s.skipped},
      {"duplicates", s.duplicates}, {"errors", s.errors},
      {"outputs", outputs},         {"seconds", seconds}};
}

}  // namespace trireme::tools
