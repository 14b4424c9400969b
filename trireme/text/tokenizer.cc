#include "trireme/text/tokenizer.h"

#include <filesystem>

#include "trireme/base/error.h"
#include "trireme/base/io.h"
#include "trireme/base/threads.h"
#include "trireme/text/companions.h"
#include "trireme/text/pipeline_tokenizer.h"
#include "trireme/text/tokenizer_spec.h"
#include "trireme/text/unicode.h"

namespace trireme::text {
namespace {

namespace fs = std::filesystem;

// Whether a text ends within a character.
bool ends_early(std::string_view text) {
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  if (text.ends_with(kReplacement)) return true;
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const auto byte = static_cast<uint8_t>(text[text.size() - back]);
    if (byte < 0x80) return false;
    if (byte >= 0xC0) {
      const size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : 2;
      return byte < 0xF5 && back < length;
    }
  }
  return false;
}

// A .model file is SentencePiece's, or Llama 3's lines of base64 and rank.
TokenizerSpec read_model_file(const std::string& path) {
  const std::string content = base::read_file(path);
  const std::string_view line = std::string_view(content).substr(0, content.find('\n'));
  const size_t space = line.find(' ');
  const bool ranks = space != std::string_view::npos && space > 0 &&
                     line.substr(space + 1).find_first_not_of("0123456789\r") ==
                         std::string_view::npos;
  return ranks ? read_tiktoken_file(path) : read_sentencepiece_model(path);
}

// The tokenizer.json beside a vocabulary file, where that is what the class named beside them reads;
// such a vocabulary does not say how texts are cut. Empty where there is none.
std::string whole_file(const std::string& vocabulary) {
  const fs::path file = fs::path(vocabulary).parent_path() / "tokenizer.json";
  if (!fs::exists(file) || Companions(vocabulary).tokenizer_class() != "PreTrainedTokenizer") return "";
  return file.string();
}

}  // namespace

std::vector<std::vector<int32_t>> Tokenizer::encode_batch(std::span<const std::string_view> texts,
                                                          bool add_special, int threads) const {
  std::vector<std::vector<int32_t>> ids(texts.size());
  base::parallel_for(static_cast<int64_t>(texts.size()),
                     threads > 0 ? threads : base::available_cores(),
                     [&](int64_t i) { ids[i] = encode(texts[i], add_special); });
  return ids;
}

std::string DecodeStream::put(int32_t id) {
  ids_.push_back(id);
  std::string text = tokenizer_.decode(ids_, skip_special_);
  if (text.size() <= shown_.size() || ends_early(text) || !text.starts_with(shown_)) return "";
  std::string fresh = text.substr(shown_.size());
  // The window moves on to the ids since the last time that something came out.
  const size_t kept = ids_.size() - next_window_;
  ids_.erase(ids_.begin(), ids_.begin() + static_cast<int64_t>(next_window_));
  shown_ = tokenizer_.decode(ids_, skip_special_);
  next_window_ = kept;
  return fresh;
}

std::string DecodeStream::finish() {
  const std::string text = tokenizer_.decode(ids_, skip_special_);
  std::string rest = text.starts_with(shown_) ? text.substr(shown_.size()) : "";
  ids_.clear();
  shown_.clear();
  next_window_ = 0;
  return rest;
}

std::unique_ptr<Tokenizer> Tokenizer::load(const std::string& path) {
  auto make = [](TokenizerSpec spec) {
    return std::make_unique<PipelineTokenizer>(std::move(spec));
  };
  auto beside = [](const fs::path& folder,
                   std::initializer_list<const char*> names) -> std::string {
    for (const char* name : names) {
      if (fs::exists(folder / name)) return (folder / name).string();
    }
    return "";
  };
  const bool is_folder = fs::is_directory(path);
  if (!fs::exists(path)) {
    throw base::ConfigError(fmt::format(
        "tokenizer {0}: there is no such file or folder; expected a tokenizer.json (or another "
        "tokenizer's file) or a folder that holds it. `trireme tokenizer train --vocab-size N "
        "--out DIR FILES` makes one",
        path));
  }
  const fs::path folder = is_folder ? fs::path(path) : fs::path(path).parent_path();
  std::string vocabulary = beside(folder, {"vocab.json", "encoder.json"});
  std::string merges = beside(folder, {"merges.txt", "vocab.bpe"});
  if (is_folder) {
    if (auto file = beside(folder, {"tokenizer.json"}); !file.empty())
      return make(read_tokenizer_json(file));
  } else {
    const std::string name = fs::path(path).filename().string();
    if (name == "merges.txt" || name == "vocab.bpe") {
      merges = path;
    } else if (name == "vocab.json" || name == "encoder.json") {
      vocabulary = path;
    } else if (name.ends_with(".tiktoken")) {
      return make(read_tiktoken_file(path));
    } else if (name.ends_with(".model")) {
      return make(read_model_file(path));
    } else if (name.ends_with(".txt")) {
      const std::string whole = whole_file(path);
      return make(whole.empty() ? read_wordpiece_vocabulary(path) : read_tokenizer_json(whole));
    } else {
      return make(read_tokenizer_json(path));
    }
  }
  if (!vocabulary.empty() && !merges.empty()) {
    const std::string whole = whole_file(vocabulary);
    return make(whole.empty() ? read_gpt2_files(vocabulary, merges) : read_tokenizer_json(whole));
  }
  if (is_folder && vocabulary.empty() && merges.empty()) {
    if (auto file = beside(folder, {"vocab.txt"}); !file.empty()) {
      return make(read_wordpiece_vocabulary(file));
    }
    if (auto file = beside(folder, {"spiece.model", "tokenizer.model", "sentencepiece.bpe.model"});
        !file.empty()) {
      return make(read_model_file(file));
    }
  }
  throw base::FormatError(fmt::format(
      "{}: no tokenizer here: expected {}; found {}. `trireme tokenizer train --vocab-size N --out "
      "DIR FILES` makes one, and so does `save_pretrained` of transformers",
      path,
      is_folder ? "tokenizer.json, vocab.json (encoder.json) with merges.txt (vocab.bpe), "
                  "vocab.txt, spiece.model or tokenizer.model"
                : "vocab.json (encoder.json) and merges.txt (vocab.bpe) side by side",
      vocabulary.empty() && merges.empty() ? "none of them"
      : vocabulary.empty()                 ? merges
                                           : vocabulary));
}

}  // namespace trireme::text
