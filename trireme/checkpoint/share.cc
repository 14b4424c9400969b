#include "trireme/checkpoint/share.h"

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme::checkpoint {
namespace {

using base::Json;

// Pieces of a part begin on multiples of so many elements: small parts stay whole.
constexpr int64_t kGranule = 1024;

/// A part, the elements of it that are to be written, and the ranks that hold it alike.
struct Block {
  const HeldPart* part;
  layout::Range flat;
  std::vector<int> holders;

  int64_t bytes() const { return flat.size() * base::size_of(part->dtype); }
};

/// Leaves to each block of a tensor what no block before it holds. What tp does not split has
/// overlapping blocks where the buffers that dp splits are longer on some tensor ranks.
std::vector<Block> without_overlaps(std::vector<Block> blocks) {
  std::ranges::stable_sort(blocks, {}, [](const Block& block) { return block.flat.begin; });
  std::vector<Block> apart;
  for (Block& block : blocks) {
    auto before = std::find_if(apart.rbegin(), apart.rend(), [&](const Block& other) {
      return other.part->slice == block.part->slice;
    });
    if (before != apart.rend()) {
      block.flat.begin = std::max(block.flat.begin, before->flat.end);
      if (block.flat.end <= block.flat.begin) continue;
    }
    apart.push_back(std::move(block));
  }
  return apart;
}

/// The end of the `index`-th of `holders` pieces of `total` bytes, in elements of a block that
/// begins at byte `begin`.
int64_t cut(int64_t total, int64_t holders, int64_t index, int64_t begin, const Block& block) {
  if (index == holders) return block.flat.size();
  const int64_t bytes = total / holders * index + total % holders * index / holders - begin;
  if (bytes <= 0) return 0;
  const int64_t elements = bytes / base::size_of(block.part->dtype);
  return std::min((elements + kGranule - 1) / kGranule * kGranule, block.flat.size());
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
      of_tensor.push_back({&part, part.flat, {part.rank}});
    } else {
      same->holders.push_back(part.rank);
    }
  }
  Index index;
  std::map<std::pair<bool, std::vector<int>>, std::vector<const Block*>> held_by;
  for (auto& [name, of_tensor] : blocks) {
    of_tensor = without_overlaps(std::move(of_tensor));
    const HeldPart& first = *of_tensor.front().part;
    index[name] = {first.dtype, first.shape, first.optimizer, {}};
    int64_t covered = 0;
    for (const Block& block : of_tensor) {
      covered += block.flat.size();
      held_by[{first.optimizer, block.holders}].push_back(&block);
    }
    base::check(covered == layout::element_count(first.shape), "{}: the ranks hold {} elements of {}",
                name, covered, layout::element_count(first.shape));
  }
  for (const auto& [key, shared] : held_by) {
    const auto& [optimizer, holders] = key;
    const int64_t count = static_cast<int64_t>(holders.size());
    int64_t total = 0, begin = 0;
    for (const Block* block : shared) total += block->bytes();
    for (const Block* block : shared) {
      std::vector<StoredPart>& stored = index[block->part->name].parts;
      for (int64_t i = 0, from = 0; i < count; ++i) {
        const int64_t to = cut(total, count, i + 1, begin, *block);
        if (to > from || (block->flat.size() == 0 && i == 0)) {
          stored.push_back({rank_file(optimizer, holders[static_cast<size_t>(i)]),
                            block->part->slice,
                            {block->flat.begin + from, block->flat.begin + to}});
        }
        from = to;
      }
      begin += block->bytes();
    }
  }
  return index;
}

}  // namespace trireme::checkpoint
