#include "trireme/checkpoint/share.h"

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme::checkpoint {
namespace {

using base::Json;

// Pieces of a part begin on multiples of so many elements: small parts stay whole.
constexpr int64_t kGranule = 1024;

/// A part and the ranks that hold it alike.
struct Block {
  const HeldPart* part;
  std::vector<int> holders;
};

/// The end of the `index`-th of `holders` pieces of `total` bytes, in elements of a block that
/// begins at byte `begin`.
int64_t cut(int64_t total, int64_t holders, int64_t index, int64_t begin, const HeldPart& part) {
  if (index == holders) return part.flat.size();
  const int64_t bytes = total / holders * index + total % holders * index / holders - begin;
  if (bytes <= 0) return 0;
  const int64_t elements = bytes / base::size_of(part.dtype);
  return std::min((elements + kGranule - 1) / kGranule * kGranule, part.flat.size());
}

}  // namespace

std::string to_text(const std::vector<HeldPart>& parts) {
  Json list = Json::array();
  for (const HeldPart& part : parts) {
    list.push_back({part.name,
                    part.shape,
                    to_json(part.slice),
                    {part.flat.begin, part.flat.end},
                    base::name_of(part.dtype),
                    part.optimizer});
  }
  return list.dump();
}

std::vector<HeldPart> held_from_text(const std::string& text, int rank) {
  std::vector<HeldPart> parts;
  for (const Json& item : base::parse_json(text, "announced parts")) {
    parts.push_back({.rank = rank,
                     .name = item[0],
                     .shape = item[1].get<layout::Shape>(),
                     .slice = slice_from_json(item[2]),
                     .flat = {item[3][0].get<int64_t>(), item[3][1].get<int64_t>()},
                     .dtype = base::dtype_of(item[4].get<std::string>()),
                     .optimizer = item[5]});
  }
  return parts;
}

std::string rank_file(bool optimizer, int rank) {
  return fmt::format("{}_rank_{:05}.safetensors", optimizer ? "optimizer" : "model", rank);
}

Index share_out(const std::vector<HeldPart>& held) {
  std::map<std::string, std::vector<Block>> blocks;  // by tensor
  for (const HeldPart& part : held) {
    if (part.flat.size() == 0 && layout::element_count(part.shape) > 0) continue;
    std::vector<Block>& of_tensor = blocks[part.name];
    const HeldPart& first = of_tensor.empty() ? part : *of_tensor.front().part;
    base::check(part.shape == first.shape && part.dtype == first.dtype &&
                    part.optimizer == first.optimizer,
                "ranks {} and {} disagree on the shape or type of {}", first.rank, part.rank,
                part.name);
    auto same = std::ranges::find_if(of_tensor, [&](const Block& block) {
      return block.part->flat == part.flat && block.part->slice == part.slice;
    });
    if (same == of_tensor.end()) {
      of_tensor.push_back({&part, {part.rank}});
    } else {
      same->holders.push_back(part.rank);
    }
  }
  Index index;
  std::map<std::pair<bool, std::vector<int>>, std::vector<const Block*>> held_by;
  for (const auto& [name, of_tensor] : blocks) {
    const HeldPart& first = *of_tensor.front().part;
    index[name] = {first.dtype, first.shape, first.optimizer, {}};
    int64_t covered = 0;
    for (const Block& block : of_tensor) {
      const HeldPart& part = *block.part;
      covered += part.flat.size();
      held_by[{part.optimizer, block.holders}].push_back(&block);
    }
    base::check(covered == layout::element_count(first.shape), "{}: the ranks hold {} elements of {}",
                name, covered, layout::element_count(first.shape));
  }
  for (const auto& [key, shared] : held_by) {
    const auto& [optimizer, holders] = key;
    const int64_t count = static_cast<int64_t>(holders.size());
    int64_t total = 0, begin = 0;
    for (const Block* block : shared)
      total += block->part->flat.size() * base::size_of(block->part->dtype);
    for (const Block* block : shared) {
      const HeldPart& part = *block->part;
      std::vector<StoredPart>& stored = index[part.name].parts;
      for (int64_t i = 0, from = 0; i < count; ++i) {
        const int64_t to = cut(total, count, i + 1, begin, part);
        if (to > from || (part.flat.size() == 0 && i == 0)) {
          stored.push_back({rank_file(optimizer, holders[static_cast<size_t>(i)]),
                            part.slice,
                            {part.flat.begin + from, part.flat.begin + to}});
        }
        from = to;
      }
      begin += part.flat.size() * base::size_of(part.dtype);
    }
  }
  return index;
}

}  // namespace trireme::checkpoint
