#include "trireme/text/post_processor.h"

#include <algorithm>

#include "trireme/text/byte_alphabet.h"
#include "trireme/text/json_node.h"
#include "trireme/text/unicode.h"

namespace trireme::text {
namespace {

int32_t special_id(const Node& id, int64_t vocab_size) {
  const int64_t value = id.integer();
  if (value < 0 || value >= vocab_size) {
    id.fail(fmt::format("id {} is outside the vocabulary of {}", value, vocab_size));
  }
  return static_cast<int32_t>(value);
}

// Leaves the spaces at a token's ends out of its offsets.
void trim_token(std::string_view token, Encoding::Offsets& at, bool may_keep) {
  auto is_outer = [](CodePoint c) { return c.value == alphabet_char(' ') || is_space(c.value); };
  const char *begin = token.data(), *end = begin + token.size();
  int64_t leading = 0, trailing = 0;
  for (const char* p = begin; p < end; ++leading) {
    const CodePoint c = decode_utf8(p, end);
    if (!is_outer(c)) break;
    p += c.length;
  }
  for (const char* p = end; p > begin; ++trailing) {
    const CodePoint c = decode_utf8_before(begin, p);
    if (!is_outer(c)) break;
    p -= c.length;
  }
  if (may_keep && leading == 1) leading = 0;
  at.begin = std::min(at.begin + leading, at.end);
  if (at.end >= trailing) at.end = std::max(at.end - trailing, at.begin);
}

void trim(Encoding& encoding, bool keeps_prefix) {
  for (size_t i = 0; i < encoding.size(); ++i) {
    Encoding::Offsets& at = encoding.offsets[i];
    trim_token(encoding.tokens[i], at, (i == 0 || at.begin == 0) && keeps_prefix);
  }
  for (Encoding& window : encoding.overflowing) trim(window, keeps_prefix);
}

void set_sequence(Encoding& encoding, int32_t sequence, std::optional<int32_t> type) {
  encoding.sequences.assign(encoding.size(), sequence);
  if (type) encoding.type_ids.assign(encoding.size(), *type);
  for (Encoding& window : encoding.overflowing) set_sequence(window, sequence, type);
}

}  // namespace

PostProcessor::PostProcessor(const Node& node, int64_t vocab_size) {
  read(node, vocab_size, 0);
}

void PostProcessor::read(const Node& node, int64_t vocab_size, int depth) {
  node.check_depth(depth);
  const std::string_view type = node.type();
  if (type == "Sequence") {
    for (const Node& step : node.at("processors").items()) read(step, vocab_size, depth + 1);
    return;
  }
  if (type == "ByteLevel") {
    if (node.at("trim_offsets").boolean()) {
      trims_.push_back({.keeps_prefix = node.at("add_prefix_space").boolean()});
    }
    return;
  }
  if (has_template_) node.unsupported("a second post-processor that adds special tokens");
  has_template_ = true;
  if (type == "TemplateProcessing") {
    read_template(node, vocab_size);
  } else if (type == "BertProcessing") {
    surround(node, vocab_size, false);
  } else if (type == "RobertaProcessing") {
    zero_types_ = true;
    if (node.flag("trim_offsets", true)) {
      trims_.push_back({.keeps_prefix = node.flag("add_prefix_space", true)});
    }
    surround(node, vocab_size, true);
  } else {
    node.unsupported(fmt::format("post-processor \"{}\"", type));
  }
}

void PostProcessor::surround(const Node& node, int64_t vocab_size, bool roberta) {
  auto special = [&](const char* key, int32_t type) {
    const std::vector<Node> pair = node.at(key).items();
    if (pair.size() != 2) node.at(key).fail("expected a token and its id");
    return Part{.sequence = -1,
                .type = type,
                .ids = {special_id(pair[1], vocab_size)},
                .tokens = {std::string(pair[0].text())}};
  };
  const Part cls = special("cls", 0), sep = special("sep", 0);
  const Part a = single_[0], b = pair_[1];
  single_ = {cls, a, sep};
  pair_ = roberta ? std::vector<Part>{cls, a, sep, sep, b, sep}
                  : std::vector<Part>{cls, a, sep, b, special("sep", 1)};
}

void PostProcessor::read_template(const Node& node, int64_t vocab_size) {
  const Node tokens = node.at("special_tokens");
  auto parts = [&](const char* key) {
    std::vector<Part> list;
    for (const Node& piece : node.at(key).items()) {
      Part part;
      if (auto sequence = piece.find("Sequence")) {
        const std::string_view name = sequence->at("id").text();
        if (name != "A" && name != "B") sequence->unsupported(fmt::format("sequence \"{}\"", name));
        part.sequence = name == "A" ? 0 : 1;
        part.type = static_cast<int32_t>(sequence->at("type_id").integer(0, INT32_MAX));
        if (part.sequence == 1 && std::string_view(key) == "single") {
          sequence->fail("the template of a single text uses a second one");
        }
      } else {
        const Node special = piece.at("SpecialToken");
        part.type = static_cast<int32_t>(special.at("type_id").integer(0, INT32_MAX));
        const Node token = tokens.at(special.at("id").text());
        for (const Node& id : token.at("ids").items()) {
          part.ids.push_back(special_id(id, vocab_size));
        }
        for (const Node& text : token.at("tokens").items()) part.tokens.emplace_back(text.text());
        if (part.ids.size() != part.tokens.size()) token.fail("has not as many ids as tokens");
      }
      list.push_back(std::move(part));
    }
    return list;
  };
  single_ = parts("single");
  pair_ = parts("pair");
}

int64_t PostProcessor::added(bool pair) const {
  int64_t count = 0;
  for (const Part& part : pair ? pair_ : single_) count += static_cast<int64_t>(part.ids.size());
  return count;
}

std::vector<int32_t> PostProcessor::around(bool before) const {
  std::vector<int32_t> ids;
  bool seen = false;
  for (const Part& part : single_) {
    if (part.sequence >= 0) {
      seen = true;
    } else if (seen != before) {
      ids.insert(ids.end(), part.ids.begin(), part.ids.end());
    }
  }
  return ids;
}

Encoding PostProcessor::apply(Encoding& first, Encoding* second, bool add_special) const {
  Encoding* texts[] = {&first, second};
  for (int i = 0; i < (second ? 2 : 1); ++i) {
    for (const Trim& step : trims_) trim(*texts[i], step.keeps_prefix);
    set_sequence(*texts[i], i, zero_types_ ? 0 : i);
  }
  Encoding all;
  for (const Part& part : second ? pair_ : single_) {
    if (part.sequence >= 0) {
      set_sequence(*texts[part.sequence], part.sequence, part.type);
      all.append(*texts[part.sequence]);
    } else if (add_special) {
      Encoding special;
      for (size_t i = 0; i < part.ids.size(); ++i) {
        special.add(part.ids[i], *part.type, part.tokens[i], -1, {}, true);
      }
      all.append(special);
    }
  }
  return all;
}

}  // namespace trireme::text
