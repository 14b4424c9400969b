#include "trireme/data/document_encoder.h"

#include <simdjson.h>

#include <algorithm>
#include <variant>

#include "trireme/base/error.h"
#include "trireme/base/hash.h"
#include "trireme/text/sentences.h"

namespace trireme::data {
namespace {

using Texts = std::vector<std::string_view>;

/// The value of a key: a text, or a list of them, which are sentences.
std::variant<Texts, std::string> texts_of(simdjson::dom::object object, const std::string& key) {
  simdjson::dom::element value;
  if (object.at_key(key).get(value)) {
    std::vector<std::string_view> keys;
    for (auto field : object) keys.push_back(field.key);
    return fmt::format("no key \"{}\"; the object has: {} (choose with --key)", key,
                       fmt::join(keys, ", "));
  }
  std::string_view text;
  if (!value.get(text)) return Texts{text};
  simdjson::dom::array list;
  Texts texts;
  if (value.get(list)) return fmt::format("key \"{}\" holds no string", key);
  for (simdjson::dom::element item : list) {
    if (item.get(text)) return fmt::format("key \"{}\" holds a list of more than strings", key);
    texts.push_back(text);
  }
  return texts;
}

}  // namespace

EncodedPiece DocumentEncoder::operator()(const Piece& piece) const {
  EncodedPiece result;
  result.path = piece.path == "-" ? "standard input" : piece.path;
  result.begins = piece.begins;
  result.ends = piece.ends;
  result.input_bytes = std::ssize(piece.text);
  result.columns.resize(options_.keys.size());
  if (piece.json_lines) {
    add_lines(piece.text, result);
  } else if (piece.text.find('\0') != std::string_view::npos) {
    result.errors.push_back({0, "holds zero bytes, so it is no text"});
  } else if (piece.partial()) {
    add_part(piece, result);
  } else {
    add({{piece.text}}, 0, result);
  }
  return result;
}

std::optional<size_t> DocumentEncoder::last_cut(std::string_view text) const {
  if (!options_.split_sentences) return tokenizer_.last_cut(text);
  const size_t empty_line = text.rfind("\n\n");  // ends a sentence wherever it stands
  return empty_line == text.npos ? std::nullopt : std::optional(empty_line + 2);
}

void DocumentEncoder::add_part(const Piece& piece, EncodedPiece& result) const {
  EncodedPiece::Column& column = result.columns.front();
  const auto append = [&](const std::vector<int32_t>& ids) {
    column.ids.insert(column.ids.end(), ids.begin(), ids.end());
    if (!ids.empty()) column.lengths.push_back(std::ssize(ids));
  };
  try {
    if (options_.split_sentences) {
      for (std::string_view sentence : text::split_sentences(piece.text))
        append(tokenizer_.encode(sentence));
    } else {
      append(piece.begins ? tokenizer_.encode(piece.text) : tokenizer_.encode_rest(piece.text));
    }
    column.sequences.push_back(std::ssize(column.lengths));
    result.text_bytes.push_back(std::ssize(piece.text));
  } catch (const base::ConfigError& e) {
    result.errors.push_back({0, e.what()});
  }
}

/// `line`: of the piece; 0: a whole file.
void DocumentEncoder::add(const std::vector<Texts>& values, int64_t line,
                          EncodedPiece& result) const {
  std::vector<std::vector<std::vector<int32_t>>> encoded(values.size());
  try {
    for (size_t k = 0; k < values.size(); ++k) {
      for (std::string_view text : values[k]) {
        const Texts sentences =
            options_.split_sentences ? text::split_sentences(text) : Texts{text};
        for (std::string_view sentence : sentences) {
          auto ids = tokenizer_.encode(sentence);
          if (!ids.empty()) encoded[k].push_back(std::move(ids));
        }
      }
      if (options_.end && !encoded[k].empty()) encoded[k].back().push_back(*options_.end);
    }
  } catch (const base::ConfigError& e) {
    result.errors.push_back({line, e.what()});
    return;
  }
  int64_t bytes = 0;
  TextHash hash{};
  for (size_t k = 0; k < values.size(); ++k) {
    EncodedPiece::Column& column = result.columns[k];
    for (const auto& ids : encoded[k]) {
      column.ids.insert(column.ids.end(), ids.begin(), ids.end());
      column.lengths.push_back(std::ssize(ids));
    }
    column.sequences.push_back(std::ssize(encoded[k]));
    for (std::string_view text : values[k]) {
      if (!encoded[k].empty()) bytes += std::ssize(text);
      if (!options_.hash) continue;
      for (uint64_t half : {0, 1})
        hash[half] = base::hash_combine(hash[half], base::hash_text(text, half + 1));
    }
  }
  result.text_bytes.push_back(bytes);
  if (options_.hash) result.hashes.push_back(hash);
}

void DocumentEncoder::add_lines(std::string_view rest, EncodedPiece& result) const {
  simdjson::dom::parser parser;
  std::vector<Texts> values;
  const auto read = [&](std::string_view line) -> std::string {
    simdjson::dom::element value;
    if (auto error = parser.parse(line.data(), line.size()).get(value))
      return fmt::format("not valid JSON ({}); expected one object a line",
                         simdjson::error_message(error));
    simdjson::dom::object object;
    if (value.get(object))
      return "not an object; expected an object with the key \"" + options_.keys.front() + "\"";
    values.clear();
    for (const std::string& key : options_.keys) {
      auto texts = texts_of(object, key);
      if (auto* error = std::get_if<std::string>(&texts)) return std::move(*error);
      values.push_back(std::get<Texts>(std::move(texts)));
    }
    return "";
  };
  while (!rest.empty()) {
    size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    ++result.lines;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;  // a blank line holds no document
    if (std::string error = read(line); !error.empty()) {
      result.errors.push_back({result.lines, std::move(error)});
    } else {
      add(values, result.lines, result);
    }
  }
}

}  // namespace trireme::data
