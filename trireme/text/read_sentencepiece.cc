#include <algorithm>
#include <cmath>
#include <tuple>
#include <unordered_map>

#include "trireme/base/error.h"
#include "trireme/base/io.h"
#include "trireme/base/json.h"
#include "trireme/text/charsmap.h"
#include "trireme/text/protobuf.h"
#include "trireme/text/sentencepiece_model.h"
#include "trireme/text/unicode.h"

namespace trireme::text {
namespace {

using base::FormatError;
using base::Json;

constexpr const char* kSpace = "\u2581";  // how SentencePiece writes a space

SentencePiece read_piece(std::string_view bytes, const std::string& file, size_t offset) {
  SentencePiece piece;
  ProtobufReader reader(bytes, file, offset);
  while (auto field = reader.next()) {
    if (field->number == 1) piece.text = field->bytes;
    if (field->number == 2) piece.score = field->real();
    if (field->number == 3) piece.type = static_cast<int>(field->integer);
  }
  if (piece.text.empty() || !is_utf8(piece.text)) reader.fail("a piece that is empty or not UTF-8");
  if (!std::isfinite(piece.score)) reader.fail(fmt::format("piece \"{}\" has no finite score", piece.text));
  if (piece.type < kNormal || piece.type > kByte) {
    reader.fail(fmt::format("piece \"{}\" has the unknown type {}", piece.text, piece.type));
  }
  return piece;
}

SentencePieceModel read_model(const std::string& content, const std::string& file) {
  SentencePieceModel model;
  ProtobufReader reader(content, file);
  while (auto field = reader.next()) {
    if (field->number == 1) {
      model.pieces.push_back(read_piece(field->bytes, file, reader.field_offset()));
    } else if (field->number == 2) {
      ProtobufReader trainer(field->bytes, file, reader.field_offset());
      while (auto f = trainer.next()) {
        if (f->number == 3) model.model_type = static_cast<int>(f->integer);
        if (f->number == 22) model.split_by_whitespace = f->integer != 0;
        if (f->number == 24) model.whitespace_as_suffix = f->integer != 0;
        if (f->number == 35) model.byte_fallback = f->integer != 0;
        if (f->number == 41) model.bos = static_cast<int32_t>(f->integer);
        if (f->number == 42) model.eos = static_cast<int32_t>(f->integer);
        if (f->number == 43) model.pad = static_cast<int32_t>(f->integer);
      }
    } else if (field->number == 3) {
      ProtobufReader normalizer(field->bytes, file, reader.field_offset());
      while (auto f = normalizer.next()) {
        if (f->number == 2) model.charsmap = f->bytes;
        if (f->number == 3) model.dummy_prefix = f->integer != 0;
        if (f->number == 4) model.remove_extra_whitespaces = f->integer != 0;
        if (f->number == 5) model.escape_whitespaces = f->integer != 0;
      }
    }
  }
  if (model.pieces.empty()) throw FormatError(fmt::format("{}: no SentencePiece model: it holds no pieces", file));
  return model;
}

// SentencePiece merges the neighbours that make the piece with the highest score: every cut of a
// piece into two others is a merge, the best piece first.
std::vector<MergeRule> merges_of(const SentencePieceModel& model) {
  std::unordered_map<std::string_view, int32_t> ids;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    ids.emplace(model.pieces[id].text, static_cast<int32_t>(id));
  }
  struct Candidate {
    double score;
    int64_t left_characters, right_characters;
    MergeRule rule;
  };
  std::vector<Candidate> candidates;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePiece& piece = model.pieces[id];
    if (piece.type != kNormal) continue;
    const std::string_view text = piece.text;
    const char *begin = text.data(), *end = begin + text.size();
    std::vector<Candidate> of_piece;
    for (const char* p = begin; p < end;) {
      p += decode_utf8(p, end).length;
      if (p == end) break;
      const std::string_view head(begin, p - begin), tail(p, end - p);
      const auto left = ids.find(head), right = ids.find(tail);
      if (left == ids.end() || right == ids.end()) continue;
      of_piece.push_back({piece.score, count_characters(head), count_characters(tail),
                          {left->second, right->second, static_cast<int32_t>(id)}});
    }
    std::sort(of_piece.begin(), of_piece.end(), [](const Candidate& a, const Candidate& b) {
      return std::tie(a.rule.left, a.rule.right) < std::tie(b.rule.left, b.rule.right);
    });
    candidates.insert(candidates.end(), of_piece.begin(), of_piece.end());
  }
  std::stable_sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return std::tie(b.score, b.left_characters, b.right_characters) <
           std::tie(a.score, a.left_characters, a.right_characters);
  });
  std::vector<MergeRule> merges;
  for (const Candidate& candidate : candidates) merges.push_back(candidate.rule);
  return merges;
}

Json sequence(const char* members, Json steps) {
  return steps.size() == 1 ? steps[0] : Json{{"type", "Sequence"}, {members, std::move(steps)}};
}

Json metaspace(const char* scheme, bool split) {
  return {{"type", "Metaspace"}, {"replacement", kSpace}, {"prepend_scheme", scheme}, {"split", split}};
}

Json replace(Json pattern, const char* content) {
  return {{"type", "Replace"}, {"pattern", std::move(pattern)}, {"content", content}};
}

// Whether the map turns line ends into spaces, as the ones with "nmt" in their names do.
bool maps_whitespace(const std::string& charsmap) {
  if (charsmap.empty()) return false;
  const auto found = Charsmap(charsmap).find("\n");
  return found && *found == " ";
}

void set_stages(const SentencePieceModel& model, bool symbols, TokenizerSpec& spec) {
  Json normalizers = Json::array(), cutters = Json::array(), decoders = Json::array();
  if (!model.charsmap.empty()) {
    normalizers.push_back(
        {{"type", "Precompiled"}, {"precompiled_charsmap", encode_base64(model.charsmap)}});
  }
  const bool split = model.model_type == kUnigram && model.split_by_whitespace;
  const bool trims = model.remove_extra_whitespaces;
  if (trims && model.dummy_prefix && split && !symbols && maps_whitespace(model.charsmap)) {
    // Words that are cut out one by one need no other step against extra spaces, and are
    // independent of each other.
    cutters = {{{"type", "WhitespaceSplit"}}, metaspace("always", true)};
  } else if (trims || symbols) {
    if (trims) {
      normalizers.push_back(replace({{"Regex", "\\A +| +\\z"}}, ""));
      normalizers.push_back(replace({{"Regex", " {2,}"}}, " "));
    }
    // Text after a symbol has no prefix.
    cutters.push_back(metaspace(!model.dummy_prefix ? "never"
                                : symbols           ? "first"
                                                    : "always",
                                split));
  } else {  // the prefix comes before spaces too
    if (model.dummy_prefix) normalizers.push_back({{"type", "Prepend"}, {"prepend", kSpace}});
    normalizers.push_back(replace({{"String", " "}}, kSpace));
    if (split) cutters.push_back(metaspace("never", true));
  }
  decoders.push_back(replace({{"String", kSpace}}, " "));
  if (model.byte_fallback) decoders.push_back({{"type", "ByteFallback"}});
  decoders.push_back({{"type", "Fuse"}});
  if (model.dummy_prefix) {
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  if (!normalizers.empty()) spec.normalizer = sequence("normalizers", normalizers).dump();
  if (!cutters.empty()) spec.pre_tokenizer = sequence("pretokenizers", cutters).dump();
  spec.decoder = sequence("decoders", decoders).dump();
}

}  // namespace

TokenizerSpec read_sentencepiece_model(const std::string& path) {
  const SentencePieceModel model = read_model(base::read_file(path), path);
  TokenizerSpec spec = tokenizer_of(model, path);
  use_as_companions_say(model, path, spec);
  return spec;
}

TokenizerSpec tokenizer_of(const SentencePieceModel& model, const std::string& path) {
  auto unsupported = [&](const std::string& what) {
    throw FormatError(fmt::format("{}: {} is not supported", path, what));
  };
  if (model.model_type != kUnigram && model.model_type != kBpe) {
    unsupported(fmt::format("SentencePiece model type {}", model.model_type == 3   ? "word"
                                                           : model.model_type == 4 ? "char"
                                                                                   : "unknown"));
  }
  if (model.whitespace_as_suffix) unsupported("treat_whitespace_as_suffix");
  if (!model.escape_whitespaces) unsupported("escape_whitespaces = false");
  TokenizerSpec spec;
  spec.source = path;
  std::vector<std::string> vocabulary;
  std::vector<double> scores;
  std::unordered_map<std::string_view, int32_t> seen;
  std::optional<int32_t> unk;
  bool symbols = false;
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const SentencePiece& piece = model.pieces[i];
    const auto id = static_cast<int32_t>(i);
    if (!seen.emplace(piece.text, id).second) {
      throw FormatError(fmt::format("{}: piece \"{}\" appears twice", path, piece.text));
    }
    if (piece.type == kUnused) unsupported(fmt::format("the unused piece \"{}\"", piece.text));
    if (piece.type == kUnknown) unk = id;
    symbols |= piece.type == kUserDefined;
    if (piece.type == kUnknown || piece.type == kControl || piece.type == kUserDefined) {
      spec.added.push_back(
          {.id = id, .content = piece.text, .special = piece.type != kUserDefined});
    }
    vocabulary.push_back(piece.text);
    scores.push_back(piece.score);
  }
  if (!unk) throw FormatError(fmt::format("{}: no piece stands for unknown text", path));
  if (model.model_type == kUnigram) {
    spec.model = UnigramSpec{.vocabulary = vocabulary,
                             .scores = scores,
                             .unk = unk,
                             .byte_fallback = model.byte_fallback};
  } else {
    BpeSpec bpe;
    bpe.merges = merges_of(model);
    bpe.unk_token = vocabulary[*unk];
    bpe.vocabulary = vocabulary;
    bpe.fuse_unk = true;
    bpe.byte_fallback = model.byte_fallback;
    spec.model = std::move(bpe);
  }
  set_stages(model, symbols, spec);
  const auto size = static_cast<int64_t>(vocabulary.size());
  if (model.eos >= 0 && model.eos < size) spec.end_of_document = static_cast<int32_t>(model.eos);
  for (const auto& [role, id] : {std::pair("bos_token", model.bos), std::pair("eos_token", model.eos),
                                 std::pair("unk_token", static_cast<int64_t>(*unk)),
                                 std::pair("pad_token", model.pad)}) {
    if (id >= 0 && id < size) spec.settings[role] = vocabulary[static_cast<size_t>(id)];
  }
  spec.settings["model_input_names"] = {"input_ids", "attention_mask"};
  return spec;
}

}  // namespace trireme::text
