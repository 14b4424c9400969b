#pragma once
// Node: a value of a JSON document with the path that leads to it, so that every complaint about a
// tokenizer's file names its place. It points into a parser's document, which must outlive it.
//
//   const Node document(path, "", parsed);
//   document.at("model").at("vocab").fail("is empty");   // FormatError "FILE: model.vocab: ..."

#include <simdjson.h>

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/base/error.h"

namespace trireme::text {

class Node {
 public:
  using Element = simdjson::dom::element;

  Node(const std::string& file, std::string place, Element value)
      : file_(file), place_(std::move(place)), value_(value) {}

  [[noreturn]] void fail(const std::string& message) const {
    throw base::FormatError(fmt::format("{}: {}: {}", file_, shown_place(), message));
  }
  /// Refuses a part that is well-formed but not supported.
  [[noreturn]] void unsupported(const std::string& what) const {
    fail(what + " is not supported");
  }
  /// Refuses steps that lie within more than 32 sequences.
  void check_depth(int depth) const {
    if (depth > 32) fail("sequences are nested too deep");
  }
  bool null() const { return value_.is_null(); }
  /// The member of an object; nothing where it is absent or null.
  std::optional<Node> find(std::string_view key) const {
    Element member;
    if (object().at_key(key).get(member) != simdjson::SUCCESS || member.is_null())
      return std::nullopt;
    return Node(file_, place_.empty() ? std::string(key) : fmt::format("{}.{}", place_, key),
                member);
  }
  Node at(std::string_view key) const {
    if (auto member = find(key)) return *member;
    fail(fmt::format("\"{}\" is missing", key));
  }
  simdjson::dom::object object() const { return get<simdjson::dom::object>("an object"); }
  std::string_view text() const { return get<std::string_view>("a string"); }
  int64_t integer() const { return get<int64_t>("an integer"); }
  /// An integer in [low, high].
  int64_t integer(int64_t low, int64_t high) const {
    const int64_t value = integer();
    if (value < low || value > high) {
      fail(fmt::format("{} is outside of {} to {}", value, low, high));
    }
    return value;
  }
  double number() const { return get<double>("a number"); }
  bool boolean() const { return get<bool>("true or false"); }
  bool is_text() const { return value_.is_string(); }
  bool is_object() const { return value_.is_object(); }
  std::vector<Node> items() const {
    std::vector<Node> nodes;
    for (Element item : get<simdjson::dom::array>("a list")) {
      nodes.emplace_back(file_, fmt::format("{}[{}]", place_, nodes.size()), item);
    }
    return nodes;
  }
  bool flag(std::string_view key, bool otherwise) const {
    auto member = find(key);
    return member ? member->boolean() : otherwise;
  }
  std::string_view type() const { return at("type").text(); }
  /// Duplicate keys would leave it open which value counts.
  void refuse_duplicate_keys() const {
    std::set<std::string_view> keys;
    for (auto [key, value] : object()) {
      if (!keys.insert(key).second) fail(fmt::format("key \"{}\" appears twice", key));
    }
  }
  /// The value as JSON text.
  std::string dump() const { return simdjson::minify(value_); }
  /// Runs `make`, giving its errors this place.
  template <class Make>
  auto here(const Make& make) const {
    try {
      return make();
    } catch (const base::FormatError& e) {
      fail(e.what());
    }
  }

 private:
  std::string shown_place() const { return place_.empty() ? "document" : place_; }
  template <class T>
  T get(const char* expected) const {
    T result;
    if (value_.get(result) != simdjson::SUCCESS) fail(fmt::format("expected {}", expected));
    return result;
  }
  const std::string& file_;
  std::string place_;
  Element value_;
};

/// Parses the content of a file. FormatError with the place of a syntax error.
Node::Element parse_document(simdjson::dom::parser& parser, const std::string& content,
                             const std::string& file);

}  // namespace trireme::text
