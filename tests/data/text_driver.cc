// Lets tests in Python ask the tokenizer about any bytes. Texts come on standard input, each as its
// length in 8 bytes (little endian) and its bytes; a line of JSON answers each. Every text whose ids
// are asked for is also encoded in two parts wherever the tokenizer says that it may be.
//
//   text_driver encode TOKENIZER
//   text_driver encodings TOKENIZER [pairs]          all fields; `pairs`: two texts an answer
//   text_driver ids|sample|sample_decoded TOKENIZER  ids alone; with dropout, the key is the text's number
//   text_driver stream TOKENIZER                     what comes out after each id, one text each
//   text_driver save TOKENIZER OUT
//   text_driver save_gguf METADATA OUT               the metadata of a GGUF file as JSON
//   text_driver train_wordpiece OUT VOCAB_SIZE THREADS FILE...   the same for train_unigram
//   text_driver train_with OUT OPTIONS FILE...       options as JSON, "type" among them; prints the notes
//   text_driver train OUT VOCAB_SIZE MIN_FREQUENCY MAX_TOKEN_LENGTH THREADS ADD_PREFIX_SPACE
//   SPECIAL_TOKEN
//               FILE...

#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/json.h"
#include "trireme/text/bpe_trainer.h"
#include "trireme/text/tokenizer.h"
#include "trireme/text/tokenizer_spec.h"
#include "trireme/text/unigram_trainer.h"
#include "trireme/text/wordpiece_trainer.h"

namespace {

using trireme::base::Json;
using trireme::text::Encoding;
using trireme::text::Tokenizer;

/// Cuts of a text at some of the places that the tokenizer names: the ids stay. InternalError else.
void check_cuts(const Tokenizer& tokenizer, const std::string& text,
                const std::vector<int32_t>& whole) {
  constexpr size_t kPlaces = 8;
  std::optional<size_t> last;
  for (size_t k = 1; k <= kPlaces; ++k) {
    const std::string_view part = std::string_view(text).substr(0, text.size() * k / kPlaces);
    const auto at = tokenizer.last_cut(part);
    if (!at || at == last) continue;
    last = at;
    auto ids = tokenizer.encode(part.substr(0, *at));
    const auto rest = tokenizer.encode_rest(std::string_view(text).substr(*at));
    ids.insert(ids.end(), rest.begin(), rest.end());
    trireme::base::check(ids == whole, "cut at byte {}, other ids of: {}", *at, Json(text).dump(-1, ' ', true, Json::error_handler_t::replace));
  }
}

Json answer(const Tokenizer& tokenizer, const std::string& text) {
  Json tokens = Json::array(), offsets = Json::array(), with_offsets = Json::array();
  for (const auto& token : tokenizer.encode_with_offsets(text)) {
    with_offsets.push_back(token.id);
    tokens.push_back(tokenizer.token(token.id));
    offsets.push_back({token.begin, token.end});
  }
  const auto ids = tokenizer.encode(text);
  check_cuts(tokenizer, text, ids);
  return {{"ids", ids},
          {"tokens", tokens},
          {"offsets", offsets},
          {"same_ids", with_offsets == Json(ids)},
          {"special_ids", tokenizer.encode(text, true)},
          {"round_trip", tokenizer.decode(ids) == text}};
}

Json fields(const Encoding& encoding) {
  Json offsets = Json::array(), overflowing = Json::array();
  for (const auto& at : encoding.offsets) offsets.push_back({at.begin, at.end});
  for (const Encoding& window : encoding.overflowing) overflowing.push_back(window.ids);
  return {{"ids", encoding.ids},
          {"type_ids", encoding.type_ids},
          {"tokens", encoding.tokens},
          {"words", encoding.words},
          {"offsets", offsets},
          {"special_tokens_mask", encoding.special_tokens_mask},
          {"attention_mask", encoding.attention_mask},
          {"sequences", encoding.sequences},
          {"overflowing", overflowing}};
}

std::optional<std::string> next_text() {
  uint64_t length = 0;
  if (std::fread(&length, sizeof length, 1, stdin) != 1) return std::nullopt;
  std::string text(length, '\0');
  if (std::fread(text.data(), 1, length, stdin) != length) return std::nullopt;
  return text;
}

void print(const Json& json) {
  std::printf("%s\n", json.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
}

void encodings(const Tokenizer& tokenizer, bool pairs) {
  while (auto text = next_text()) {
    Json all;
    if (pairs) {
      const auto second = next_text();
      all = fields(tokenizer.encoding(*text, *second));
      all["plain"] = fields(tokenizer.encoding(*text, *second, false));
    } else {
      all = fields(tokenizer.encoding(*text));
      const auto ids = tokenizer.encode(*text);
      check_cuts(tokenizer, *text, ids);
      all["plain"] = fields(tokenizer.encoding(*text, {}, false));
      all["fast"] = ids;
      all["fast_special"] = tokenizer.encode(*text, true);
      all["decoded"] = tokenizer.decode(ids);
      all["decoded_special"] = tokenizer.decode(tokenizer.encode(*text, true), true);
    }
    print(all);
  }
}

void stream(const Tokenizer& tokenizer) {
  while (auto text = next_text()) {
    Json parts = Json::array();
    trireme::text::DecodeStream stream(tokenizer);
    for (int32_t id : tokenizer.encode(*text)) parts.push_back(stream.put(id));
    print({{"parts", parts}, {"rest", stream.finish()}});
  }
}

void train_with(const std::string& out, const Json& given, const std::vector<std::string>& files) {
  const std::string type = given.at("type");
  auto note = [](const std::string& sentence) { std::printf("%s\n", sentence.c_str()); };
  auto set = [&](const char* name, auto& option) {
    if (given.contains(name)) given.at(name).get_to(option);
  };
  auto train = [&](auto options, auto trainer, const auto& more) {
    set("vocab_size", options.vocab_size);
    set("special_tokens", options.special_tokens);
    set("max_words", options.max_words);
    set("threads", options.threads);
    options.note = note;
    more(options);
    trainer(files, options)->save(out);
  };
  if (type == "bpe") {
    train(trireme::text::BpeTrainOptions(), trireme::text::train_bpe,
          [&](auto& options) { set("min_frequency", options.min_frequency); });
  } else if (type == "wordpiece") {
    train(trireme::text::WordPieceTrainOptions(), trireme::text::train_wordpiece, [&](auto& options) {
      set("min_frequency", options.min_frequency);
      set("limit_alphabet", options.limit_alphabet);
      set("initial_alphabet", options.initial_alphabet);
      set("lowercase", options.lowercase);
    });
  } else {
    train(trireme::text::UnigramTrainOptions(), trireme::text::train_unigram, [&](auto& options) {
      set("character_coverage", options.character_coverage);
      set("max_piece_length", options.max_piece_length);
      set("initial_alphabet", options.initial_alphabet);
    });
  }
}

int run(int argc, char** argv) {
  const std::string what = argc > 2 ? argv[1] : "";
  if (what == "encode" && argc == 3) {
    auto tokenizer = Tokenizer::load(argv[2]);
    while (auto text = next_text()) std::printf("%s\n", answer(*tokenizer, *text).dump().c_str());
    return 0;
  }
  if (what == "ids" || what == "sample" || what == "sample_decoded") {
    auto tokenizer = Tokenizer::load(argv[2]);
    for (uint64_t key = 0; auto text = next_text(); ++key) {
      const auto ids = what == "ids" ? tokenizer->encode(*text) : tokenizer->sample(*text, key);
      if (what == "ids") check_cuts(*tokenizer, *text, ids);
      print(what == "sample_decoded" ? Json(tokenizer->decode(ids)) : Json(ids));
    }
    return 0;
  }
  if (what == "encodings") {
    encodings(*Tokenizer::load(argv[2]), argc > 3);
    return 0;
  }
  if (what == "stream") {
    stream(*Tokenizer::load(argv[2]));
    return 0;
  }
  if (what == "save" && argc == 4) {
    Tokenizer::load(argv[2])->save(argv[3]);
    return 0;
  }
  if (what == "save_gguf" && argc == 4) {
    const Json metadata = trireme::base::read_json(argv[2]);
    trireme::text::write_tokenizer_files(trireme::text::read_gguf_tokenizer(metadata, argv[2]), argv[3]);
    return 0;
  }
  if (what == "train_wordpiece" && argc > 5) {
    trireme::text::train_wordpiece(
        {argv + 5, argv + argc},
        {.vocab_size = std::stoll(argv[3]), .threads = std::stoi(argv[4])})
        ->save(argv[2]);
    return 0;
  }
  if (what == "train_unigram" && argc > 5) {
    trireme::text::train_unigram(
        {argv + 5, argv + argc},
        {.vocab_size = std::stoll(argv[3]), .threads = std::stoi(argv[4])})
        ->save(argv[2]);
    return 0;
  }
  if (what == "train_with" && argc > 4) {
    train_with(argv[2], trireme::base::parse_json(argv[3], "options"), {argv + 4, argv + argc});
    return 0;
  }
  if (what == "train" && argc > 9) {
    trireme::text::train_bpe({argv + 9, argv + argc}, {.vocab_size = std::stoll(argv[3]),
                                                       .min_frequency = std::stoll(argv[4]),
                                                       .max_token_length = std::stoll(argv[5]),
                                                       .special_tokens = {argv[8]},
                                                       .add_prefix_space = argv[7][0] == '1',
                                                       .threads = std::stoi(argv[6])})
        ->save(argv[2]);
    return 0;
  }
  std::fprintf(stderr, "see the head of text_driver.cc\n");
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const trireme::base::Error& e) {
    std::fprintf(stderr, "%s: %s\n", e.kind(), e.what());
    return e.exit_code();
  }
}
