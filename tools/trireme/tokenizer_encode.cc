#include "tools/trireme/tokenizer_encode.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <string_view>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/threads.h"
#include "trireme/text/tokenizer.h"

namespace trireme::tools {
namespace {

using base::Json;
using text::Tokenizer;

// The lines of a file or of standard input as they arrive: what is typed or piped is there at once,
// a megabyte where there is more.
class LineBatches {
 public:
  /// An empty name: standard input.
  explicit LineBatches(const std::string& file)
      : name_(file.empty() ? "standard input" : file),
        file_(file.empty() ? 0 : ::open(file.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (file_ < 0) throw base::IoError(file, errno, "opening");
  }
  ~LineBatches() {
    if (file_ > 0) ::close(file_);
  }
  LineBatches(const LineBatches&) = delete;
  LineBatches& operator=(const LineBatches&) = delete;

  /// The next lines without their ends, valid until the next call; none at the end.
  const std::vector<std::string_view>& next() {
    first_ += std::ssize(lines_);
    lines_.clear();
    buffer_.erase(0, used_);
    used_ = 0;
    while (used_ == 0 && !ended_) read();
    for (std::string_view rest = std::string_view(buffer_).substr(0, used_); !rest.empty();) {
      const size_t end = std::min(rest.find('\n'), rest.size());
      lines_.push_back(rest.substr(0, end));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    return lines_;
  }
  /// The place of a line of the last batch, for messages.
  std::string place(int64_t line) const { return fmt::format("{}:{}", name_, first_ + line + 1); }

 private:
  void read() {
    constexpr size_t kMost = 1 << 20;
    const size_t before = buffer_.size();
    buffer_.resize(before + kMost);
    ssize_t size = -1;
    do {
      size = ::read(file_, buffer_.data() + before, kMost);
    } while (size < 0 && errno == EINTR);
    if (size < 0) throw base::IoError(name_, errno, "reading");
    buffer_.resize(before + static_cast<size_t>(size));
    ended_ = size == 0;
    const size_t line = std::string_view(buffer_).substr(before).rfind('\n');
    if (ended_) {
      used_ = buffer_.size();
    } else if (line != std::string_view::npos) {
      used_ = before + line + 1;
    }
  }

  std::string name_;
  int file_;
  std::string buffer_;
  size_t used_ = 0;  // bytes of the lines that are out
  bool ended_ = false;
  int64_t first_ = 0;
  std::vector<std::string_view> lines_;
};

// What is printed for a text.
std::string encoded(const Tokenizer& tokenizer, const EncodeFlags& flags, std::string_view text) {
  if (!flags.json) return fmt::format("{}\n", fmt::join(tokenizer.encode(text, flags.special), " "));
  Json ids = Json::array(), tokens = Json::array(), offsets = Json::array();
  for (const text::Token& token : tokenizer.encode_with_offsets(text, flags.special)) {
    ids.push_back(token.id);
    tokens.push_back(tokenizer.token(token.id));
    offsets.push_back({token.begin, token.end});
  }
  return json_line({{"ids", ids}, {"tokens", tokens}, {"offsets", offsets}});
}

std::string encoded_pair(const Tokenizer& tokenizer, const EncodeFlags& flags, std::string_view text,
                         std::string_view pair) {
  const text::Encoding both = tokenizer.encoding(text, pair, flags.special);
  if (!flags.json) return fmt::format("{}\n", fmt::join(both.ids, " "));
  Json offsets = Json::array();
  for (const auto& at : both.offsets) offsets.push_back({at.begin, at.end});
  return json_line({{"ids", both.ids}, {"type_ids", both.type_ids}, {"tokens", both.tokens}, {"offsets", offsets}});
}

void encode_lines(const Tokenizer& tokenizer, const EncodeFlags& flags) {
  constexpr int64_t kTogether = 32;  // lines that a thread takes at a time
  const int threads = flags.threads > 0 ? flags.threads : base::available_cores();
  LineBatches batches(flags.file);
  std::vector<std::string> answers;
  for (const auto* lines = &batches.next(); !lines->empty(); lines = &batches.next()) {
    const int64_t count = std::ssize(*lines);
    answers.assign(static_cast<size_t>((count + kTogether - 1) / kTogether), "");
    base::parallel_for(std::ssize(answers), threads, [&](int64_t part) {
      for (int64_t i = part * kTogether; i < std::min(count, (part + 1) * kTogether); ++i) {
        const std::string_view line = (*lines)[static_cast<size_t>(i)];
        if (!flags.pairs) {
          answers[static_cast<size_t>(part)] += encoded(tokenizer, flags, line);
          continue;
        }
        const size_t tab = line.find('\t');
        if (tab == std::string_view::npos || line.find('\t', tab + 1) != std::string_view::npos) {
          throw base::ConfigError(
              fmt::format("{}: expected two texts with one tab between them", batches.place(i)));
        }
        answers[static_cast<size_t>(part)] +=
            encoded_pair(tokenizer, flags, line.substr(0, tab), line.substr(tab + 1));
      }
    });
    for (const std::string& answer : answers) print_text(answer);
    std::fflush(stdout);
  }
}

}  // namespace

void print_text(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
}

std::string json_line(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

void encode_texts(const EncodeFlags& flags, bool text_given, bool pair_given) {
  if (pair_given && !text_given) {
    throw base::ConfigError("--pair is the second text to --text; lines with two texts each need --pairs");
  }
  const auto tokenizer = Tokenizer::load(flags.tokenizer);
  if (!text_given) return encode_lines(*tokenizer, flags);
  print_text(pair_given ? encoded_pair(*tokenizer, flags, flags.text, flags.pair)
                   : encoded(*tokenizer, flags, flags.text));
}

}  // namespace trireme::tools
