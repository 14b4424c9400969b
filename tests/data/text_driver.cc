// Lets tests in Python ask the tokenizer about any bytes. Texts come on standard input, each as its
// length in 8 bytes (little endian) and its bytes; a line of JSON answers each.
//
//   text_driver encode TOKENIZER
//   text_driver train OUT VOCAB_SIZE MIN_FREQUENCY THREADS ADD_PREFIX_SPACE SPECIAL_TOKEN FILE...

#include <cstdio>
#include <string>

#include "trireme/base/error.h"
#include "trireme/base/json.h"
#include "trireme/text/bpe_trainer.h"
#include "trireme/text/tokenizer.h"

namespace {

using trireme::base::Json;
using trireme::text::Tokenizer;

Json answer(const Tokenizer& tokenizer, const std::string& text) {
  Json tokens = Json::array(), offsets = Json::array(), with_offsets = Json::array();
  for (const auto& token : tokenizer.encode_with_offsets(text)) {
    with_offsets.push_back(token.id);
    tokens.push_back(tokenizer.token(token.id));
    offsets.push_back({token.begin, token.end});
  }
  const auto ids = tokenizer.encode(text);
  return {{"ids", ids},
          {"tokens", tokens},
          {"offsets", offsets},
          {"same_ids", Json(ids) == with_offsets},
          {"special_ids", tokenizer.encode(text, true)},
          {"round_trip", tokenizer.decode(ids) == text}};
}

int run(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "encode" && argc == 3) {
    auto tokenizer = Tokenizer::load(argv[2]);
    uint64_t length = 0;
    while (std::fread(&length, sizeof length, 1, stdin) == 1) {
      std::string text(length, '\0');
      if (std::fread(text.data(), 1, length, stdin) != length) return 1;
      std::printf("%s\n", answer(*tokenizer, text).dump().c_str());
    }
    return 0;
  }
  if (what == "train" && argc > 8) {
    trireme::text::train_bpe({argv + 8, argv + argc}, {.vocab_size = std::stoll(argv[3]),
                                                       .min_frequency = std::stoll(argv[4]),
                                                       .special_tokens = {argv[7]},
                                                       .add_prefix_space = argv[6][0] == '1',
                                                       .threads = std::stoi(argv[5])})
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
