#pragma once
// Vocabulary: tokens and their ids, both ways. Ids may have holes; a hole's token is empty.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace trireme::text {

class Vocabulary {
 public:
  Vocabulary() = default;
  /// Tokens by id. Of equal tokens the first counts.
  explicit Vocabulary(std::vector<std::string> tokens) : tokens_(std::move(tokens)) {
    ids_.reserve(tokens_.size());
    for (size_t id = 0; id < tokens_.size(); ++id) {
      if (!tokens_[id].empty()) ids_.emplace(tokens_[id], static_cast<int32_t>(id));
    }
  }
  // The keys of ids_ point into tokens_, whose strings stay where they are when it is moved.
  Vocabulary(Vocabulary&&) = default;
  Vocabulary& operator=(Vocabulary&&) = default;

  const std::vector<std::string>& tokens() const { return tokens_; }
  const std::string& token(int32_t id) const { return tokens_[id]; }
  /// The id, or -1.
  int32_t find(std::string_view token) const {
    const auto found = ids_.find(token);
    return found == ids_.end() ? -1 : found->second;
  }
  /// Highest id + 1.
  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }
  /// How many tokens there are.
  int32_t count() const { return static_cast<int32_t>(ids_.size()); }

 private:
  std::vector<std::string> tokens_;
  std::unordered_map<std::string_view, int32_t> ids_;
};

}  // namespace trireme::text
