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
  /// What tokenizer_config.json says besides: roles ("bos_token": its text), "chat_template",
  /// "model_max_length" and others, by their names there.
  base::Json settings = base::Json::object();
  std::string source = "tokenizer";  // the file, for messages
};

/// Hugging Face's tokenizer.json. FormatError with the file and the place for a damaged file and
/// for what is not supported.
TokenizerSpec read_tokenizer_json(const std::string& path);
/// GPT-2's files: vocab.json (encoder.json) with merges.txt (vocab.bpe), and RoBERTa's where
/// tokenizer_config.json beside them says so.
TokenizerSpec read_gpt2_files(const std::string& vocabulary_path, const std::string& merges_path);
/// BERT's vocab.txt, a token a line, with the settings of tokenizer_config.json beside it.
TokenizerSpec read_wordpiece_vocabulary(const std::string& path);
/// A SentencePiece model (spiece.model, tokenizer.model): Unigram or BPE.
TokenizerSpec read_sentencepiece_model(const std::string& path);
/// The tokenizer in a GGUF file's metadata (`tokenizer.ggml.*`): byte-level BPE ("gpt2") or
/// SentencePiece's BPE ("llama"). `source` is the file, for messages.
TokenizerSpec read_gguf_tokenizer(const base::Json& metadata, const std::string& source);
/// tiktoken's ranks, base64 and rank a line; the file's name says which pattern cuts words.
TokenizerSpec read_tiktoken_file(const std::string& path);

/// The spec as tokenizer.json has it.
base::Json tokenizer_json(const TokenizerSpec& spec);
/// Writes tokenizer.json, tokenizer_config.json and special_tokens_map.json into a folder, which it
/// creates; vocab.json and merges.txt of a byte-level BPE, vocab.txt of a WordPiece. Removes such
/// files of another tokenizer.
void write_tokenizer_files(const TokenizerSpec& spec, const std::string& folder);

}  // namespace trireme::text
