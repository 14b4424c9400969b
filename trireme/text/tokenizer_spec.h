#pragma once
// TokenizerSpec: all that a tokenizer's files say, as values. Readers, importers and trainers make
// it; PipelineTokenizer runs it; write_tokenizer_files writes it back.
//
// The stages around the model are kept as the JSON of Hugging Face's tokenizer.json (format 1.0):
// that is their whole definition, and what is written is what was read.

#include <optional>
#include <string>
#include <vector>

#include "trireme/base/json.h"
#include "trireme/text/added_tokens.h"
#include "trireme/text/model.h"

namespace trireme::text {

struct TokenizerSpec {
  ModelSpec model;
  std::vector<AddedToken> added;  // ids may lie in the vocabulary or behind it
  /// JSON texts; empty where the file has none.
  std::string truncation, padding, normalizer, pre_tokenizer, post_processor, decoder;
  std::optional<int32_t> end_of_document;
  std::string source = "tokenizer";  // the file, for messages
};

/// Hugging Face's tokenizer.json. FormatError with the file and the place for a damaged file and for
/// what is not supported.
TokenizerSpec read_tokenizer_json(const std::string& path);
/// GPT-2's files: vocab.json (encoder.json) with merges.txt (vocab.bpe), and RoBERTa's where
/// tokenizer_config.json beside them says so.
TokenizerSpec read_gpt2_files(const std::string& vocabulary_path, const std::string& merges_path);
/// BERT's vocab.txt, a token a line, with the settings of tokenizer_config.json beside it.
TokenizerSpec read_wordpiece_vocabulary(const std::string& path);
/// A SentencePiece model (spiece.model, tokenizer.model): Unigram or BPE.
TokenizerSpec read_sentencepiece_model(const std::string& path);
/// The tokenizer in a GGUF file's metadata (`tokenizer.ggml.*`): byte-level BPE ("gpt2") or SentencePiece's BPE ("llama").
/// `source` is the file, for messages.
TokenizerSpec read_gguf_tokenizer(const base::Json& metadata, const std::string& source);
/// tiktoken's ranks, base64 and rank a line; the file's name says which pattern cuts words.
TokenizerSpec read_tiktoken_file(const std::string& path);

/// Looks up what ends a document: `eos_token` of tokenizer_config.json or special_tokens_map.json
/// beside `path`, else "<|endoftext|>".
void find_end_of_document(const std::string& path, TokenizerSpec& spec);

/// Writes tokenizer.json and tokenizer_config.json into a folder, which it creates.
void write_tokenizer_files(const TokenizerSpec& spec, const std::string& folder);

}  // namespace trireme::text
