#pragma once
// `trireme tokenizer encode`: texts to ids as they are printed, line by line, over threads; and how the
// other subcommands of `trireme tokenizer` print.

#include <string>

#include "trireme/base/json.h"

namespace trireme::tools {

/// `text`, `pair`: of --text and --pair. `file`: whose lines are texts, or, with `pairs`, two texts with a tab between
/// them; empty: standard input.
struct EncodeFlags {
  std::string tokenizer, text, pair, file;
  bool special = false, json = false, pairs = false;
  int threads = 0;  // 0: all cores
};

/// Prints a line for each text. ConfigError for --pair without --text and for a line that is not two texts;
/// IoError where a file cannot be read.
void encode_texts(const EncodeFlags& flags, bool text_given, bool pair_given);

/// To standard output, zeros included.
void print_text(const std::string& text);
/// A document as one line; what is not UTF-8 is replaced.
std::string json_line(const base::Json& json);

}  // namespace trireme::tools
