#include "trireme/formats/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "trireme/base/error.h"
#include "trireme/base/json.h"
#include "trireme/base/pages.h"

namespace trireme::formats {
namespace {

using base::DType;
using base::FormatError;
using base::Json;

static_assert(std::endian::native == std::endian::little, "safetensors is little-endian");

constexpr int64_t kMaxHeaderBytes = 100'000'000;

// In the order in which the Python package writes them: last first.
constexpr std::pair<DType, std::string_view> kTypes[] = {
    {DType::boolean, "BOOL"}, {DType::u8, "U8"},   {DType::i8, "I8"},     {DType::i16, "I16"},
    {DType::u16, "U16"},      {DType::f16, "F16"}, {DType::bf16, "BF16"}, {DType::i32, "I32"},
    {DType::f32, "F32"},      {DType::f64, "F64"}, {DType::i64, "I64"}};

size_t rank_of(DType dtype) {
  return static_cast<size_t>(std::find_if(std::begin(kTypes), std::end(kTypes),
                                          [&](const auto& t) { return t.first == dtype; }) -
                             std::begin(kTypes));
}

int64_t non_negative(const Json& value, const std::string& where) {
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX) ||
      value.get<int64_t>() < 0) {
    throw FormatError(
        fmt::format("{}: {} is not a non-negative 64-bit integer", where, value.dump()));
  }
  return value.get<int64_t>();
}

std::vector<int64_t> integers(const Json& entry, const char* key, const std::string& where) {
  auto found = entry.find(key);
  if (found == entry.end() || !found->is_array()) {
    throw FormatError(fmt::format("{}: \"{}\" is missing or not a list of integers", where, key));
  }
  std::vector<int64_t> values;
  for (const Json& value : *found)
    values.push_back(non_negative(value, where + ", \"" + key + "\""));
  return values;
}

DType dtype_of_entry(const Json& entry, const std::string& where) {
  auto found = entry.find("dtype");
  if (found == entry.end() || !found->is_string()) {
    throw FormatError(fmt::format("{}: \"dtype\" is missing or not a string", where));
  }
  std::string name = found->get<std::string>(), known;
  for (const auto& [dtype, text] : kTypes) {
    if (text == name) return dtype;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", text);
  }
  throw FormatError(
      fmt::format("{}: dtype \"{}\" is not supported; supported are {}", where, name, known));
}

}  // namespace

std::string_view safetensors_name(DType dtype) {
  return kTypes[rank_of(dtype)].second;
}

int64_t checked_bytes(const layout::Shape& shape, DType dtype, const std::string& where) {
  int64_t bytes = base::size_of(dtype);
  for (int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes)) {
      throw FormatError(
          fmt::format("{}: shape [{}] has no valid size", where, fmt::join(shape, ", ")));
    }
  }
  return bytes;
}

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(path) {
  std::span<const std::byte> bytes = file_.bytes();
  if (bytes.size() < 8) {
    throw FormatError(
        path, 0,
        fmt::format("the file has {} bytes, a safetensors file at least 8; it was cut "
                    "off or is no safetensors file",
                    bytes.size()));
  }
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  if (length > static_cast<uint64_t>(kMaxHeaderBytes) || length > bytes.size() - 8) {
    throw FormatError(
        path, 0,
        fmt::format("the header is said to have {} bytes, but the file has {} in all and "
                    "a header at most {}; it was cut off or is no safetensors file",
                    length, bytes.size(), kMaxHeaderBytes));
  }
  std::string_view text(reinterpret_cast<const char*>(bytes.data()) + 8, length);
  if (text.empty() || text[0] != '{')
    throw FormatError(path, 8, "the header does not start with '{'");
  Json header = base::parse_json(text, fmt::format("{} (header at byte 8)", path));
  std::span<const std::byte> data = bytes.subspan(8 + length);

  struct Place {
    int64_t begin, end;
    std::string name;
  };
  std::vector<Place> places;
  for (const auto& [name, entry] : header.items()) {
    std::string where = fmt::format("{}: tensor \"{}\"", path, name);
    if (!entry.is_object()) throw FormatError(where + ": its header entry is not an object");
    if (name == "__metadata__") {
      for (const auto& [key, value] : entry.items()) {
        if (!value.is_string()) {
          throw FormatError(fmt::format("{}: metadata \"{}\" is not a string", path, key));
        }
        metadata_[key] = value.get<std::string>();
      }
      continue;
    }
    StoredTensor tensor{dtype_of_entry(entry, where), integers(entry, "shape", where), {}};
    std::vector<int64_t> offsets = integers(entry, "data_offsets", where);
    int64_t size = checked_bytes(tensor.shape, tensor.dtype, where);
    if (offsets.size() != 2 || offsets[0] > offsets[1] ||
        offsets[1] > static_cast<int64_t>(data.size())) {
      throw FormatError(fmt::format("{}: data_offsets [{}] do not lie in the {} bytes of data",
                                    where, fmt::join(offsets, ", "), data.size()));
    }
    if (offsets[1] - offsets[0] != size) {
      throw FormatError(
          fmt::format("{}: data_offsets [{}] span {} bytes, but {} of shape [{}] takes {}", where,
                      fmt::join(offsets, ", "), offsets[1] - offsets[0],
                      safetensors_name(tensor.dtype), fmt::join(tensor.shape, ", "), size));
    }
    tensor.bytes = data.subspan(static_cast<size_t>(offsets[0]), static_cast<size_t>(size));
    places.push_back({offsets[0], offsets[1], name});
    tensors_.emplace(name, std::move(tensor));
  }
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  int64_t end = 0;
  for (const Place& place : places) {
    if (place.begin != end) {
      throw FormatError(fmt::format(
          "{}: tensor \"{}\" starts at data byte {}, but the tensor before it ends at {} "
          "({})",
          path, place.name, place.begin, end,
          place.begin < end ? "they overlap" : "there is a hole"));
    }
    end = place.end;
  }
  if (end != static_cast<int64_t>(data.size())) {
    throw FormatError(
        path, static_cast<int64_t>(8 + length) + end,
        fmt::format("{} bytes follow the last tensor", static_cast<int64_t>(data.size()) - end));
  }
}

const StoredTensor& SafetensorsFile::at(const std::string& name) const {
  auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    throw FormatError(
        fmt::format("{}: there is no tensor \"{}\" among its {}", path(), name, tensors_.size()));
  }
  return found->second;
}

void SafetensorsFile::release(const std::string& name) const {
  base::release_pages(at(name).bytes);
}

bool written_before(const TensorEntry& a, const TensorEntry& b) {
  size_t rank_a = rank_of(a.dtype), rank_b = rank_of(b.dtype);
  return rank_a != rank_b ? rank_a > rank_b : a.name < b.name;
}

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<TensorEntry> entries,
                                     const std::map<std::string, std::string>& metadata)
    : order_(std::move(entries)), file_(path, base::FileWriter::Caching::bypassed) {
  std::sort(order_.begin(), order_.end(), written_before);
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t offset = 0;
  for (const TensorEntry& entry : order_) {
    base::check(!header.contains(entry.name), "tensor {} appears twice in {}", entry.name, path);
    int64_t end = offset + checked_bytes(entry.shape, entry.dtype, entry.name);
    header[entry.name] = {{"dtype", safetensors_name(entry.dtype)},
                          {"shape", entry.shape},
                          {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  uint64_t length = text.size();
  file_.write(&length, 8);
  file_.write(text);
  if (!order_.empty()) missing_ = checked_bytes(order_[0].shape, order_[0].dtype, order_[0].name);
}

void SafetensorsWriter::write(const std::string& name, std::span<const std::byte> bytes) {
  // Tensors without elements take no call.
  while (missing_ == 0 && next_ < order_.size() && order_[next_].name != name) {
    if (++next_ < order_.size()) {
      missing_ = checked_bytes(order_[next_].shape, order_[next_].dtype, order_[next_].name);
    }
  }
  base::check(next_ < order_.size() && order_[next_].name == name, "tensor {} written out of order",
              name);
  base::check(static_cast<int64_t>(bytes.size()) <= missing_, "tensor {} has {} bytes too many",
              name, static_cast<int64_t>(bytes.size()) - missing_);
  file_.write(bytes.data(), bytes.size());
  missing_ -= static_cast<int64_t>(bytes.size());
}

void SafetensorsWriter::close() {
  base::check(missing_ == 0, "tensor {} lacks {} bytes",
              next_ < order_.size() ? order_[next_].name : "", missing_);
  for (size_t i = next_ + 1; i < order_.size(); ++i) {
    base::check(checked_bytes(order_[i].shape, order_[i].dtype, order_[i].name) == 0,
                "tensor {} was not written", order_[i].name);
  }
  file_.close();
}

}  // namespace trireme::formats
