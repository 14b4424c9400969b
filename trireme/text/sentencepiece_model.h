#pragma once
// SentencePieceModel: what a SentencePiece model says, from its own file or from another that carries it (GGUF).

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/text/tokenizer_spec.h"

namespace trireme::text {

// Numbers of sentencepiece_model.proto; GGUF has the same.
enum PieceType { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };
enum SentencePieceType { kUnigram = 1, kBpe = 2 };

struct SentencePiece {
  std::string text;
  double score = 0;
  int type = kNormal;
};

struct SentencePieceModel {
  std::vector<SentencePiece> pieces;
  int model_type = kUnigram;
  bool byte_fallback = false, split_by_whitespace = true, whitespace_as_suffix = false;
  std::string charsmap;
  bool dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
  int64_t bos = 1, eos = 2, pad = -1;
};

/// The tokenizer that it stands for; FormatError with `source` in front for what is not supported.
TokenizerSpec tokenizer_of(const SentencePieceModel& model, const std::string& source);

/// Completes it as the class of transformers does that tokenizer_config.json beside `path` names, else
/// the type of model that config.json does: T5's extra tokens and end, ALBERT's and XLNet's ways of
/// normalizing, tokens around texts. FormatError for a class that is not known.
void use_as_companions_say(const SentencePieceModel& model, const std::string& path, TokenizerSpec& spec);

}  // namespace trireme::text
