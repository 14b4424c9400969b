#include "trireme/checkpoint/index.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/formats/safetensors.h"

namespace trireme::checkpoint {

using base::FormatError;
using base::Json;

namespace {

layout::Range range_from(const Json& json) {
  layout::Range range{json.at(0).get<int64_t>(), json.at(1).get<int64_t>()};
  if (json.size() != 2 || range.begin < 0 || range.end < range.begin) {
    throw FormatError(fmt::format("{} is no range", json.dump()));
  }
  return range;
}

void check_slice(const layout::Slice& slice, const layout::Shape& shape) {
  bool fits = slice.dims.size() == shape.size();
  for (size_t d = 0; fits && d < shape.size(); ++d) {
    int64_t end = 0;
    for (const layout::Range& range : slice.dims[d]) {
      fits = fits && range.begin >= end && range.end <= shape[d];
      end = range.end;
    }
  }
  if (!fits) throw FormatError("a slice does not lie within the tensor's shape");
}

}  // namespace

layout::Shape stored_shape(const layout::Slice& slice, const layout::Range& flat) {
  return flat == layout::Range{0, slice.count()} ? slice.shape() : layout::Shape{flat.size()};
}

Json to_json(const layout::Slice& slice) {
  Json dims = Json::array();
  for (const auto& ranges : slice.dims) {
    Json list = Json::array();
    for (const layout::Range& range : ranges) list.push_back(Json::array({range.begin, range.end}));
    dims.push_back(std::move(list));
  }
  return dims;
}

layout::Slice slice_from_json(const Json& json) {
  layout::Slice slice;
  for (const Json& ranges : json) {
    auto& dim = slice.dims.emplace_back();
    for (const Json& range : ranges) dim.push_back(range_from(range));
  }
  return slice;
}

std::string to_text(const Index& index) {
  Json tensors = Json::object();
  for (const auto& [name, tensor] : index) {
    Json parts = Json::array();
    for (const StoredPart& part : tensor.parts) {
      parts.push_back({{"file", part.file},
                       {"slice", to_json(part.slice)},
                       {"flat", Json::array({part.flat.begin, part.flat.end})}});
    }
    tensors[name] = {{"kind", tensor.optimizer ? "optimizer" : "parameter"},
                     {"dtype", base::name_of(tensor.dtype)},
                     {"shape", tensor.shape},
                     {"parts", std::move(parts)}};
  }
  return Json{{"tensors", std::move(tensors)}}.dump() + "\n";
}

Index index_from_text(const std::string& text, const std::string& source) {
  Json json = base::parse_json(text, source);
  Index index;
  std::string place = source;
  try {
    for (const auto& [name, entry] : json.at("tensors").items()) {
      place = fmt::format("{}: tensor \"{}\"", source, name);
      LogicalTensor tensor;
      tensor.optimizer = entry.at("kind").get<std::string>() == "optimizer";
      tensor.dtype = base::dtype_of(entry.at("dtype").get<std::string>());
      tensor.shape = entry.at("shape").get<layout::Shape>();
      formats::checked_bytes(tensor.shape, tensor.dtype, place);
      int64_t covered = 0, total = layout::element_count(tensor.shape);
      for (const Json& item : entry.at("parts")) {
        StoredPart part{item.at("file"), slice_from_json(item.at("slice")),
                        range_from(item.at("flat"))};
        check_slice(part.slice, tensor.shape);
        if (part.flat.end > part.slice.count() || part.file.find('/') != std::string::npos) {
          throw FormatError("a part lies outside of its slice or of the folder");
        }
        covered += part.flat.size();
        tensor.parts.push_back(std::move(part));
      }
      if (covered != total) {
        throw FormatError(fmt::format("its parts hold {} elements, its shape {}", covered, total));
      }
      index.emplace(name, std::move(tensor));
    }
  } catch (const nlohmann::json::exception& e) {
    throw FormatError(fmt::format("{}: {}", place, base::message_of(e)));
  } catch (const base::Error& e) {
    throw FormatError(fmt::format("{}: {}", place, e.what()));
  }
  return index;
}

void for_each_shared(const layout::Slice& from_slice, const layout::Range& from,
                     const layout::Slice& to_slice, const layout::Range& to,
                     const layout::Shape& shape,
                     const std::function<void(layout::Overlap)>& visit) {
  auto clip = [&](const layout::Overlap& run) {
    int64_t skip = std::max<int64_t>({0, from.begin - run.from, to.begin - run.to});
    int64_t count = std::min({run.count, from.end - run.from, to.end - run.to}) - skip;
    if (count > 0) visit({run.from + skip - from.begin, run.to + skip - to.begin, count});
  };
  if (from_slice == to_slice) return clip({0, 0, from_slice.count()});
  for (const layout::Overlap& run : layout::overlap(from_slice, to_slice, shape)) clip(run);
}

}  // namespace trireme::checkpoint
