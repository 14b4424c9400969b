// Times the tokenizer, for bench/bench_tokenizer.py. LIST is a file with a path on each line; each file is a document.
// Prints seconds.
//
//   tokenizer_bench encode TOKENIZER LIST THREADS OUT   writes the ids, 32 bits each, -1 behind each document
//   tokenizer_bench train VOCAB_SIZE LIST THREADS OUT   writes nothing
//   tokenizer_bench train_unigram OUT FILE...   not timed: a vocabulary of 8,000 to encode with

#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/io.h"
#include "trireme/text/bpe_trainer.h"
#include "trireme/text/tokenizer.h"
#include "trireme/text/unigram_trainer.h"

namespace {

double seconds(const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

int run(const std::string& what, const std::string& how, const std::string& list, int threads,
        const std::string& out) {
  std::vector<std::string> paths, documents;
  std::istringstream lines(trireme::base::read_file(list));
  for (std::string path; std::getline(lines, path);) paths.push_back(path);
  if (what == "train") {
    std::printf("%.6f\n", seconds([&] {
                  trireme::text::train_bpe(paths, {.vocab_size = std::stoll(how), .threads = threads});
                }));
    return 0;
  }
  for (const std::string& path : paths) documents.push_back(trireme::base::read_file(path));
  auto tokenizer = trireme::text::Tokenizer::load(how);
  const std::vector<std::string_view> texts(documents.begin(), documents.end());
  std::vector<std::vector<int32_t>> ids;
  const double taken = seconds([&] { ids = tokenizer->encode_batch(texts, false, threads); });
  std::ofstream file(out, std::ios::binary);
  for (auto& document : ids) {
    document.push_back(-1);
    file.write(reinterpret_cast<const char*>(document.data()), static_cast<std::streamsize>(4 * document.size()));
  }
  std::printf("%.6f\n", taken);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 3 && std::string(argv[1]) == "train_unigram") {
    trireme::text::train_unigram({argv + 3, argv + argc}, {.vocab_size = 8000})->save(argv[2]);
    return 0;
  }
  if (argc != 6) {
    std::fprintf(stderr, "usage: tokenizer_bench encode TOKENIZER LIST THREADS OUT | train VOCAB_SIZE LIST THREADS OUT\n");
    return 2;
  }
  try {
    return run(argv[1], argv[2], argv[3], std::stoi(argv[4]), argv[5]);
  } catch (const trireme::base::Error& e) {
    std::fprintf(stderr, "tokenizer_bench: %s\n", e.what());
    return e.exit_code();
  }
}
