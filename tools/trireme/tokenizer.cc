// trireme tokenizer: train, encode, decode, info.

#include "trireme/text/tokenizer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>

#include "tools/trireme/subcommands.h"
#include "tools/trireme/tokenizer_encode.h"
#include "trireme/base/error.h"
#include "trireme/base/io.h"
#include "trireme/base/json.h"
#include "trireme/text/bpe_trainer.h"
#include "trireme/text/unicode.h"
#include "trireme/text/unigram_trainer.h"
#include "trireme/text/wordpiece_trainer.h"

namespace trireme::tools {
namespace {

using base::Json;
using text::Tokenizer;

struct TrainFlags {
  std::string type = "bpe", out;
  std::vector<std::string> files;
  text::BpeTrainOptions options;
  int64_t limit_alphabet = 0;  // 0: the trainer's own; so for `coverage`
  double coverage = 0;
  int64_t max_words = 0;
  std::string alphabet;
  bool special_given = false, cased = false, overwrite = false;
};

struct TokenizerFlags {
  EncodeFlags encode;
  std::vector<std::string> ids;
  bool skip_special = false;
};

// Calls `use` for each line (without its end) of `file`, or of standard input where there is none.
template <class Use>
void for_each_line(const std::string& file, const Use& use) {
  std::ifstream opened;
  if (!file.empty()) {
    opened.open(file, std::ios::binary);
    if (!opened) throw base::IoError(file, errno, "opening");
  }
  std::istream& in = file.empty() ? std::cin : opened;
  for (std::string line; std::getline(in, line);) use(line);
  if (in.bad()) throw base::IoError(file.empty() ? "standard input" : file, errno, "reading");
}

std::string kind(const Tokenizer& tokenizer) {
  return tokenizer.type() == "BPE" ? tokenizer.find("Ġ") ? "byte-level bpe" : "bpe"
                                   : tokenizer.type();
}

// One line on a terminal that is written over, at most ten times a second; nothing elsewhere.
class ProgressLine {
 public:
  void operator()(const char* doing, int64_t done, int64_t total) {
    const auto now = std::chrono::steady_clock::now();
    if (!terminal_ || now - shown_ < std::chrono::milliseconds(100)) return;
    shown_ = now;
    fmt::print(stderr, "\r\033[K{} {:.0f}%", doing,
               100.0 * static_cast<double>(done) / static_cast<double>(total));
    std::fflush(stderr);
  }
  ~ProgressLine() {
    if (terminal_) std::fputs("\r\033[K", stderr);
  }

 private:
  bool terminal_ = ::isatty(STDERR_FILENO);
  std::chrono::steady_clock::time_point shown_;
};

std::vector<std::string> characters(const std::string& text) {
  std::vector<std::string> all;
  for (const char *p = text.data(), *end = p + text.size(); p < end;) {
    const auto length = text::decode_utf8(p, end).length;
    all.emplace_back(p, length);
    p += length;
  }
  return all;
}

// A flag that only some types of tokenizers have.
void check_type(bool given, const char* flag, const std::string& type,
                std::initializer_list<std::string_view> types) {
  if (!given || std::find(types.begin(), types.end(), type) != types.end()) return;
  throw base::ConfigError(
      fmt::format("{} is for --type {}, not for {}", flag, fmt::join(types, " or "), type));
}

std::unique_ptr<Tokenizer> train_as(const TrainFlags& flags) {
  const text::BpeTrainOptions& options = flags.options;
  check_type(flags.cased, "--cased", flags.type, {"wordpiece"});
  check_type(options.add_prefix_space, "--add-prefix-space", flags.type, {"bpe"});
  check_type(options.min_frequency != 0, "--min-frequency", flags.type, {"bpe", "wordpiece"});
  check_type(options.max_token_length != 0, "--max-token-length", flags.type, {"bpe", "unigram"});
  check_type(flags.limit_alphabet != 0, "--limit-alphabet", flags.type, {"wordpiece"});
  check_type(flags.coverage != 0, "--character-coverage", flags.type, {"unigram"});
  if (flags.type == "bpe" && !flags.alphabet.empty()) {
    throw base::ConfigError(
        "--initial-alphabet is for --type wordpiece or unigram: the vocabulary of bpe holds all 256 bytes, of which every "
        "character consists");
  }
  const std::vector<std::string> alphabet = characters(flags.alphabet);
  if (flags.type == "bpe") return text::train_bpe(flags.files, options);
  if (flags.type == "wordpiece") {
    text::WordPieceTrainOptions wordpiece{.vocab_size = options.vocab_size,
                                          .min_frequency = options.min_frequency,
                                          .lowercase = !flags.cased,
                                          .max_words = options.max_words,
                                          .initial_alphabet = alphabet,
                                          .threads = options.threads,
                                          .progress = options.progress,
                                          .note = options.note};
    if (flags.special_given) wordpiece.special_tokens = options.special_tokens;
    if (flags.limit_alphabet != 0) wordpiece.limit_alphabet = flags.limit_alphabet;
    return text::train_wordpiece(flags.files, wordpiece);
  }
  if (flags.type == "unigram") {
    text::UnigramTrainOptions unigram{.vocab_size = options.vocab_size,
                                      .initial_alphabet = alphabet,
                                      .threads = options.threads,
                                      .progress = options.progress,
                                      .note = options.note};
    if (flags.max_words != 0) unigram.max_words = flags.max_words;
    if (flags.special_given) unigram.special_tokens = options.special_tokens;
    if (options.max_token_length != 0) unigram.max_piece_length = options.max_token_length;
    if (flags.coverage != 0) unigram.character_coverage = flags.coverage;
    return text::train_unigram(flags.files, unigram);
  }
  throw base::ConfigError(
      fmt::format("--type {}: expected bpe, wordpiece or unigram", flags.type));
}

/// Whether `folder` holds this very tokenizer. ConfigError where it holds another one.
bool is_there(const Tokenizer& tokenizer, const std::string& folder) {
  namespace fs = std::filesystem;
  const std::string file = folder + "/tokenizer.json";
  if (!fs::exists(file)) return false;
  std::string beside = (fs::temp_directory_path() / "trireme-tokenizer-XXXXXX").string();
  if (!::mkdtemp(beside.data())) throw base::IoError(beside, errno, "creating the folder");
  tokenizer.save(beside);
  const bool same = base::read_file(beside + "/tokenizer.json") == base::read_file(file);
  fs::remove_all(beside);
  if (!same)
    throw base::ConfigError(fmt::format(
        "{} exists already, and is another tokenizer; choose another --out, or replace it with --overwrite", file));
  return true;
}

void train(TrainFlags& flags) {
  std::unique_ptr<Tokenizer> tokenizer;
  std::string notes;
  {
    ProgressLine line;
    flags.options.progress = std::ref(line);
    flags.options.note = [&](const std::string& note) { notes += "; " + note; };
    if (flags.max_words != 0) flags.options.max_words = flags.max_words;
    tokenizer = train_as(flags);
  }
  const bool there = !flags.overwrite && is_there(*tokenizer, flags.out);
  if (!there) tokenizer->save(flags.out);
  if (tokenizer->vocab_size() < flags.options.vocab_size) {
    fmt::print(stderr,
               "trireme: warning: the files hold no more tokens to learn: {} tokens instead of {}\n",
               tokenizer->vocab_size(), flags.options.vocab_size);
  }
  print_text(fmt::format("{}: {}, {} tokens{}{}\n", flags.out, kind(*tokenizer), tokenizer->vocab_size(),
                    there ? "; it is there already" : "", notes));
}

// Ids between anything that is no digit: "1 2 3", "1,2,3" and "[1, 2, 3]".
std::vector<int32_t> parse_ids(const std::string& line) {
  constexpr const char* kBetween = " \t\r,[]";
  std::vector<int32_t> ids;
  for (size_t begin = line.find_first_not_of(kBetween); begin != std::string::npos;) {
    const size_t end = std::min(line.find_first_of(kBetween, begin), line.size());
    const std::string word = line.substr(begin, end - begin);
    int32_t id = 0;
    auto [rest, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || rest != word.data() + word.size()) {
      throw base::ConfigError(
          fmt::format("\"{}\" is no token id; give ids such as \"15496 995\"", word));
    }
    ids.push_back(id);
    begin = line.find_first_not_of(kBetween, end);
  }
  return ids;
}

void decode(const TokenizerFlags& flags) {
  auto tokenizer = Tokenizer::load(flags.encode.tokenizer);
  auto decode_one = [&](const std::string& line) {
    const std::vector<int32_t> ids = parse_ids(line);
    const std::string text = tokenizer->decode(ids, flags.skip_special);
    print_text(flags.encode.json ? json_line({{"text", text}, {"ids", ids}}) : text + "\n");
  };
  if (!flags.ids.empty()) {
    decode_one(fmt::format("{}", fmt::join(flags.ids, " ")));
  } else {
    for_each_line(flags.encode.file, decode_one);
  }
}

void info(const TokenizerFlags& flags) {
  auto tokenizer = Tokenizer::load(flags.encode.tokenizer);
  Json special = Json::object();
  for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
    if (tokenizer->is_special(id)) special[tokenizer->token(id)] = id;
  }
  const auto end = tokenizer->end_of_document();
  Json facts = {{"type", kind(*tokenizer)},
                {"vocab_size", tokenizer->vocab_size()},
                {"end_of_document", end ? Json(*end) : Json()},
                {"special_tokens", special}};
  if (flags.encode.json) return print_text(json_line(facts));
  for (const auto& [name, value] : facts.items()) {
    print_text(fmt::format("{:16} {}\n", name,
                      value.is_string() ? value.get<std::string>() : value.dump()));
  }
}

void add_tokenizer_flag(CLI::App& command, TokenizerFlags& flags) {
  command
      .add_option(
          "--tokenizer", flags.encode.tokenizer,
          "folder with tokenizer.json, vocab.json and merges.txt, vocab.txt or a .model; or such a file")
      ->required();
  command.add_flag("--json", flags.encode.json, "print JSON, a line for each line of input");
}

}  // namespace

void add_tokenizer(CLI::App& program) {
  auto flags = std::make_shared<TokenizerFlags>();
  CLI::App& tokenizer = *program.add_subcommand("tokenizer", "train and use a tokenizer");
  tokenizer.require_subcommand(1);

  auto training = std::make_shared<TrainFlags>();
  CLI::App& train_command = *tokenizer.add_subcommand("train", "learn a tokenizer from text files");
  train_command.add_option("--type", training->type, "bpe (byte-level), wordpiece or unigram")
      ->capture_default_str();
  train_command
      .add_option("--vocab-size", training->options.vocab_size,
                  "tokens, special tokens and bytes or characters included")
      ->required();
  train_command.add_option("--out", training->out, "folder to write")->required();
  train_command.add_flag("--overwrite", training->overwrite, "replace another tokenizer there");
  train_command.add_flag("--cased", training->cased, "wordpiece: do not lowercase");
  CLI::Option* special = train_command
      .add_option("--special-token", training->options.special_tokens,
                  "a special token; may be repeated, the first ends documents")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->capture_default_str();
  train_command.add_option("--min-frequency", training->options.min_frequency,
                           "merge only pairs seen at least so often");
  train_command.add_option("--max-token-length", training->options.max_token_length,
                           "bpe: tokens stay shorter, in bytes; unigram: longest in characters");
  train_command.add_option("--limit-alphabet", training->limit_alphabet,
                           "wordpiece: keep so many of the most frequent characters (1000)");
  train_command.add_option("--character-coverage", training->coverage,
                           "unigram: share of the text's characters to keep (0.9995)");
  train_command.add_option("--initial-alphabet", training->alphabet,
                           "wordpiece, unigram: characters to keep though the text may lack them");
  train_command.add_option("--max-words", training->max_words,
                           "count at most so many different words at once and forget the rarest (8000000; unigram 4000000)");
  train_command.add_flag("--add-prefix-space", training->options.add_prefix_space,
                         "treat the first word of a text like the others");
  train_command.add_option("--threads", training->options.threads, "default: all cores")->check(CLI::Range(0, 1024));
  train_command.add_option("files", training->files, "text files")->required();
  train_command.callback([training, special] {
    training->special_given = special->count() > 0;
    train(*training);
  });

  CLI::App& encode_command = *tokenizer.add_subcommand("encode", "text to token ids");
  add_tokenizer_flag(encode_command, *flags);
  CLI::Option* text = encode_command.add_option("--text", flags->encode.text, "the text, as one input");
  encode_command
      .add_option("--file", flags->encode.file, "a file, each line an input (default: standard input)")
      ->excludes(text);
  encode_command.add_flag("--special", flags->encode.special, "add the special tokens around each text");
  CLI::Option* pair = encode_command.add_option(
      "--pair", flags->encode.pair, "a second text; pairs are cut and padded as the tokenizer's files say");
  encode_command.add_flag("--pairs", flags->encode.pairs, "each line is two texts with a tab between them")->excludes(text);
  encode_command.add_option("--threads", flags->encode.threads, "default: all cores")->check(CLI::Range(0, 1024));
  encode_command.callback(
      [flags, text, pair] { encode_texts(flags->encode, text->count() > 0, pair->count() > 0); });

  CLI::App& decode_command = *tokenizer.add_subcommand("decode", "token ids to text");
  add_tokenizer_flag(decode_command, *flags);
  CLI::Option* ids = decode_command.add_option("ids", flags->ids, "token ids");
  decode_command
      .add_option("--file", flags->encode.file,
                  "a file with ids, each line a text (default: standard input)")
      ->excludes(ids);
  decode_command.add_flag("--skip-special", flags->skip_special, "leave special tokens out");
  decode_command.callback([flags] { decode(*flags); });

  CLI::App& info_command = *tokenizer.add_subcommand("info", "what a tokenizer is");
  add_tokenizer_flag(info_command, *flags);
  info_command.callback([flags] { info(*flags); });
}

}  // namespace trireme::tools
