#include "trireme/formats/gguf.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "trireme/base/error.h"

namespace trireme::formats {
namespace {

using base::FormatError;
using Bytes = std::span<const std::byte>;

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

float from_bf16(const std::byte* from) {
  return std::bit_cast<float>(static_cast<uint32_t>(load<uint16_t>(from)) << 16);
}

float from_f16(const std::byte* from) {
  const uint32_t bits = load<uint16_t>(from), sign = (bits & 0x8000u) << 16;
  uint32_t exponent = (bits >> 10) & 0x1F, fraction = bits & 0x3FF;
  if (exponent == 0x1F) return std::bit_cast<float>(sign | 0x7F800000u | (fraction << 13));
  if (exponent == 0) {  // zero or subnormal
    const float value = static_cast<float>(fraction) * 0x1p-24f;
    return sign ? -value : value;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
}

int low(std::byte b) { return std::to_integer<int>(b & std::byte{0x0F}); }
int high(std::byte b) { return std::to_integer<int>(b >> 4); }

// A block of each quantised type, to floats.
void f32(const std::byte* in, float* out) { *out = load<float>(in); }
void f16(const std::byte* in, float* out) { *out = from_f16(in); }
void bf16(const std::byte* in, float* out) { *out = from_bf16(in); }

void q8_0(const std::byte* in, float* out) {
  const float scale = from_f16(in);
  for (int i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(load<int8_t>(in + 2 + i));
}

void q4_0(const std::byte* in, float* out) {
  const float scale = from_f16(in);
  for (int i = 0; i < 16; ++i) {
    out[i] = scale * static_cast<float>(low(in[2 + i]) - 8);
    out[i + 16] = scale * static_cast<float>(high(in[2 + i]) - 8);
  }
}

void q4_1(const std::byte* in, float* out) {
  const float scale = from_f16(in), least = from_f16(in + 2);
  for (int i = 0; i < 16; ++i) {
    out[i] = scale * static_cast<float>(low(in[4 + i])) + least;
    out[i + 16] = scale * static_cast<float>(high(in[4 + i])) + least;
  }
}

// Eight groups of 32; the scale and the least value of each have six bits, packed into twelve bytes.
void q4_k(const std::byte* in, float* out) {
  const float scale = from_f16(in), least = from_f16(in + 2);
  const std::byte *packed = in + 4, *quants = in + 16;
  for (int group = 0; group < 8; ++group) {
    const auto byte = [&](int i) { return std::to_integer<int>(packed[i]); };
    const int factor = group < 4 ? byte(group) & 63 : (byte(group + 4) & 15) | ((byte(group - 4) >> 6) << 4);
    const int minus = group < 4 ? byte(group + 4) & 63 : (byte(group + 4) >> 4) | ((byte(group) >> 6) << 4);
    for (int i = 0; i < 32; ++i) {
      const std::byte pair = quants[group / 2 * 32 + i];
      const int quant = group % 2 == 0 ? low(pair) : high(pair);
      out[group * 32 + i] =
          scale * static_cast<float>(factor) * static_cast<float>(quant) - least * static_cast<float>(minus);
    }
  }
}

// Four low bits and two high ones of each value, apart; a signed scale for every 16.
void q6_k(const std::byte* in, float* out) {
  const std::byte *lows = in, *highs = in + 128, *scales = in + 192;
  const float scale = from_f16(in + 208);
  for (int half = 0; half < 2; ++half)
    for (int quarter = 0; quarter < 4; ++quarter)
      for (int i = 0; i < 32; ++i) {
        const std::byte four = lows[half * 64 + quarter % 2 * 32 + i];
        const int two = (std::to_integer<int>(highs[half * 32 + i]) >> (2 * quarter)) & 3;
        const int quant = ((quarter < 2 ? low(four) : high(four)) | (two << 4)) - 32;
        const int8_t factor = load<int8_t>(scales + half * 8 + quarter * 2 + i / 16);
        out[half * 128 + quarter * 32 + i] = scale * static_cast<float>(factor) * static_cast<float>(quant);
      }
}

struct Encoding {
  uint32_t code;
  const char* name;
  int64_t elements, bytes;  // of a block
  void (*decode)(const std::byte* in, float* out) = nullptr;  // none: named, not read
};

constexpr Encoding kEncodings[] = {
    {0, "F32", 1, 4, f32},          {1, "F16", 1, 2, f16},        {30, "BF16", 1, 2, bf16},
    {8, "Q8_0", 32, 34, q8_0},      {2, "Q4_0", 32, 18, q4_0},    {3, "Q4_1", 32, 20, q4_1},
    {12, "Q4_K", 256, 144, q4_k},   {14, "Q6_K", 256, 210, q6_k}, {6, "Q5_0", 32, 22},
    {7, "Q5_1", 32, 24},            {10, "Q2_K", 256, 84},        {11, "Q3_K", 256, 110},
    {13, "Q5_K", 256, 176},
};

/// Reads the header; every error names the offset.
class Reader {
 public:
  Reader(Bytes bytes, const std::string& path) : bytes_(bytes), path_(path) {}

  template <class T>
  T number() {
    return load<T>(take(sizeof(T)));
  }
  std::string text() {
    const auto length = number<uint64_t>();
    const std::byte* begin = take(length);
    return {reinterpret_cast<const char*>(begin), length};
  }
  base::Json value(uint32_t type, int depth = 0) {
    switch (type) {
      case 0: return number<uint8_t>();
      case 1: return number<int8_t>();
      case 2: return number<uint16_t>();
      case 3: return number<int16_t>();
      case 4: return number<uint32_t>();
      case 5: return number<int32_t>();
      case 6: return number<float>();
      case 7: return number<uint8_t>() != 0;
      case 8: return text();
      case 10: return number<uint64_t>();
      case 11: return number<int64_t>();
      case 12: return number<double>();
      case 9: {
        if (depth > 4) fail("arrays within arrays");
        const auto of = number<uint32_t>();
        const auto count = number<uint64_t>();
        if (count > bytes_.size()) fail(fmt::format("an array of {} values", count));
        base::Json array = base::Json::array();
        for (uint64_t i = 0; i < count; ++i) array.push_back(value(of, depth + 1));
        return array;
      }
      default: fail(fmt::format("the unknown type {} of a value", type));
    }
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw FormatError(fmt::format("{}: at byte {}: {}: the file is damaged or no GGUF that this version reads", path_, at_, what));
  }
  size_t at() const { return at_; }

 private:
  const std::byte* take(uint64_t count) {
    if (count > bytes_.size() - at_)
      fail(fmt::format("{} bytes are due, but the file ends after {}", count, bytes_.size() - at_));
    const std::byte* begin = bytes_.data() + at_;
    at_ += count;
    return begin;
  }
  Bytes bytes_;
  const std::string& path_;
  size_t at_ = 0;
};

const Encoding& encoding_of(std::string_view name) {
  for (const Encoding& encoding : kEncodings)
    if (encoding.name == name) return encoding;
  throw base::InternalError(fmt::format("no GGUF type {}", name));
}

}  // namespace

GgufFile::GgufFile(const std::string& path) : file_(path) {
  Reader reader(file_.bytes(), path);
  if (reader.number<uint32_t>() != 0x46554747) reader.fail("it does not begin with \"GGUF\"");
  const auto version = reader.number<uint32_t>();
  if (version != 2 && version != 3) reader.fail(fmt::format("version {}; versions 2 and 3 are known", version));
  const auto tensors = reader.number<uint64_t>(), values = reader.number<uint64_t>();
  for (uint64_t i = 0; i < values; ++i) {
    const std::string key = reader.text();
    const auto type = reader.number<uint32_t>();
    if (metadata_.contains(key)) reader.fail(fmt::format("the key \"{}\" appears twice", key));
    metadata_[key] = reader.value(type);
  }
  struct Place {
    std::string name;
    uint64_t offset;
    int64_t bytes;
  };
  std::vector<Place> places;
  for (uint64_t i = 0; i < tensors; ++i) {
    Place place{.name = reader.text(), .offset = 0, .bytes = 0};
    Tensor tensor;
    const auto dims = reader.number<uint32_t>();
    if (dims > 8) reader.fail(fmt::format("tensor \"{}\" has {} dimensions", place.name, dims));
    int64_t count = 1;
    for (uint32_t d = 0; d < dims; ++d) {
      const auto size = reader.number<uint64_t>();
      if (size > uint64_t{1} << 40 || __builtin_mul_overflow(count, static_cast<int64_t>(size), &count) ||
          count > int64_t{1} << 50)
        reader.fail(fmt::format("tensor \"{}\" is too large", place.name));
      tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(size));
    }
    const auto code = reader.number<uint32_t>();
    const Encoding* encoding = nullptr;
    for (const Encoding& known : kEncodings)
      if (known.code == code) encoding = &known;
    if (!encoding) reader.fail(fmt::format("tensor \"{}\" has the unknown type {}", place.name, code));
    if (const int64_t row = dims > 0 ? tensor.shape.back() : 1; row % encoding->elements != 0)
      reader.fail(fmt::format("rows of tensor \"{}\" have {} elements, no multiple of the {} of a block of {}", place.name,
                              row, encoding->elements, encoding->name));
    tensor.type = encoding->name;
    place.bytes = count / encoding->elements * encoding->bytes;
    place.offset = reader.number<uint64_t>();
    if (!tensors_.emplace(place.name, std::move(tensor)).second)
      reader.fail(fmt::format("the tensor \"{}\" appears twice", place.name));
    places.push_back(std::move(place));
  }
  const base::Json& given = metadata_.contains("general.alignment") ? metadata_["general.alignment"] : base::Json(32);
  if (!given.is_number_unsigned() && !given.is_number_integer()) reader.fail("general.alignment is no number");
  const auto alignment = given.get<uint64_t>();
  if (alignment == 0 || alignment > 1 << 20) reader.fail(fmt::format("general.alignment is {}", alignment));
  const uint64_t data = (reader.at() + alignment - 1) / alignment * alignment, size = file_.bytes().size();
  for (const Place& place : places) {
    if (data > size || place.offset > size - data || static_cast<uint64_t>(place.bytes) > size - data - place.offset)
      reader.fail(fmt::format("tensor \"{}\" lies beyond the end of the file", place.name));
    tensors_[place.name].bytes = file_.bytes().subspan(data + place.offset, static_cast<size_t>(place.bytes));
  }
}

std::vector<float> GgufFile::dequantize(const std::string& name, std::optional<int64_t> part) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) throw FormatError(fmt::format("{}: there is no tensor \"{}\"", path(), name));
  const Encoding& encoding = encoding_of(found->second.type);
  if (!encoding.decode)
    throw FormatError(fmt::format("{}: tensor \"{}\" is {}, which is not read; expected F32, F16, BF16, Q8_0, Q4_0, Q4_1, "
                                  "Q4_K or Q6_K: quantise the model again",
                                  path(), name, encoding.name));
  Bytes bytes = found->second.bytes;
  if (part) {
    const layout::Shape& shape = found->second.shape;
    base::check(shape.size() > 1 && *part >= 0 && *part < shape[0], "{} has no part {}", name, *part);
    const size_t size = bytes.size() / static_cast<size_t>(shape[0]);
    bytes = bytes.subspan(static_cast<size_t>(*part) * size, size);
  }
  const auto blocks = static_cast<int64_t>(bytes.size()) / encoding.bytes;
  std::vector<float> values(static_cast<size_t>(blocks * encoding.elements));
  for (int64_t b = 0; b < blocks; ++b)
    encoding.decode(bytes.data() + b * encoding.bytes, values.data() + b * encoding.elements);
  return values;
}

}  // namespace trireme::formats
