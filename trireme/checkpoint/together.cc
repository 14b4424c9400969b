#include "trireme/checkpoint/together.h"

#include "trireme/base/error.h"

namespace trireme::checkpoint {
namespace {

using base::DType;

std::vector<std::string> all_gather(const comm::Comm& world, const std::string& text) {
  int size = world.size();
  std::vector<int64_t> lengths(static_cast<size_t>(size)), ones(static_cast<size_t>(size), 1);
  int64_t length = static_cast<int64_t>(text.size()), total = 0;
  world.all_gather(&length, lengths.data(), ones, DType::i64).wait();
  for (int64_t n : lengths) total += n;
  std::string all(static_cast<size_t>(total), '\0');
  world.all_gather(text.data(), all.data(), lengths, DType::u8).wait();
  std::vector<std::string> texts;
  size_t begin = 0;
  for (int64_t n : lengths) {
    texts.push_back(all.substr(begin, static_cast<size_t>(n)));
    begin += static_cast<size_t>(n);
  }
  return texts;
}

// The first letter of a text tells how the rank fared.
constexpr char kSuccess = '+', kConfig = 'c', kFormat = 'f', kIo = 'i', kInternal = 'x';

[[noreturn]] void rethrow(char kind, const std::string& message) {
  if (kind == kConfig) throw base::ConfigError(message);
  if (kind == kFormat) throw base::FormatError(message);
  if (kind == kIo) throw base::IoError(message);
  throw base::InternalError(message);
}

}  // namespace

std::vector<std::string> together(const comm::Comm& world,
                                  const std::function<std::string()>& work) {
  std::string outcome;
  try {
    outcome = kSuccess + work();
  } catch (const base::CommError&) {
    throw;
  } catch (const base::ConfigError& e) {
    outcome = kConfig + std::string(e.what());
  } catch (const base::FormatError& e) {
    outcome = kFormat + std::string(e.what());
  } catch (const base::IoError& e) {
    outcome = kIo + std::string(e.what());
  } catch (const std::exception& e) {
    outcome = kInternal + std::string(e.what());
  }
  std::vector<std::string> outcomes = all_gather(world, outcome);
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    char kind = outcomes[rank][0];
    outcomes[rank].erase(0, 1);
    if (kind != kSuccess) {
      rethrow(kind, world.size() == 1
                        ? outcomes[rank]
                        : fmt::format("rank {}: {}", world.ranks()[rank], outcomes[rank]));
    }
  }
  return outcomes;
}

}  // namespace trireme::checkpoint
