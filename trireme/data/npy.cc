#include "trireme/data/npy.h"

#include <charconv>
#include <cstring>

#include "trireme/base/error.h"

namespace trireme::data {

using base::FormatError;

namespace {

/// The text behind `'key':` of the header, which is a Python dictionary.
std::string_view value_of(std::string_view header, std::string_view key, const std::string& path) {
  const size_t at = header.find(fmt::format("'{}':", key));
  if (at == header.npos) throw FormatError(path, 10, fmt::format("the header has no '{}'", key));
  std::string_view rest = header.substr(at + key.size() + 3);
  rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
  return rest;
}

}  // namespace

Npy::Npy(const std::string& path) : file_(path) {
  const std::string_view all(reinterpret_cast<const char*>(file_.bytes().data()),
                             file_.bytes().size());
  if (all.size() < 10 || all.substr(0, 6) != "\x93NUMPY" || (all[6] != 1 && all[6] != 2))
    throw FormatError(path, 0, "expected a .npy file of version 1 or 2");
  const size_t width = all[6] == 1 ? 2 : 4;
  uint32_t length = 0;
  if (all.size() < 8 + width) throw FormatError(path, 8, "the file ends inside its header");
  std::memcpy(&length, all.data() + 8, width);
  if (length > all.size() - 8 - width)
    throw FormatError(path, 8, "the file ends inside its header");
  const std::string_view header = all.substr(8 + width, length);
  begin_ = static_cast<int64_t>(8 + width + length);

  const std::string_view type = value_of(header, "descr", path);
  if (type.size() < 5 || type[0] != '\'' || type[4] != '\'' || (type[1] != '<' && type[1] != '|'))
    throw FormatError(path, 10,
                      fmt::format("type {}; expected little-endian numbers", type.substr(0, 6)));
  type_ = std::string(type.substr(2, 2));
  if (!value_of(header, "fortran_order", path).starts_with("False"))
    throw FormatError(path, 10,
                      "is in Fortran's order; expected C's: save numpy.ascontiguousarray(a)");
  std::string_view shape = value_of(header, "shape", path);
  shape = shape.substr(0, shape.find(')'));
  int64_t count = 1;
  for (size_t at = 1; at < shape.size();) {
    int64_t size = 0;
    const auto [end, error] = std::from_chars(shape.data() + at, shape.data() + shape.size(), size);
    if (error != std::errc() || size < 0 || (size > 0 && count > (int64_t{1} << 50) / size))
      throw FormatError(path, 10, fmt::format("shape {}) is none", shape));
    shape_.push_back(size);
    count *= size;
    at = static_cast<size_t>(end - shape.data());
    while (at < shape.size() && (shape[at] == ',' || shape[at] == ' ')) ++at;
  }
  const int64_t element = type_[1] - '0';
  if (const int64_t expected = begin_ + count * element;
      element < 1 || element > 8 || std::ssize(all) != expected)
    throw FormatError(path, begin_,
                      fmt::format("the file has {} bytes; its shape takes {}", all.size(),
                                  begin_ + count * element));
}

std::string_view Npy::bytes() const {
  return {reinterpret_cast<const char*>(file_.bytes().data()) + begin_,
          file_.bytes().size() - static_cast<size_t>(begin_)};
}

std::vector<int64_t> Npy::integers() const {
  const size_t element = static_cast<size_t>(type_[1] - '0');
  if (type_[0] != 'u' && type_[0] != 'i')
    throw FormatError(file_.path(), 10, fmt::format("type {}; expected integers", type_));
  std::vector<int64_t> values(bytes().size() / element);
  for (size_t i = 0; i < values.size(); ++i) {
    std::memcpy(&values[i], bytes().data() + i * element, element);
    const int unused = 64 - static_cast<int>(8 * element);
    if (type_[0] == 'i' && unused > 0)
      values[i] = static_cast<int64_t>(static_cast<uint64_t>(values[i]) << unused) >> unused;
  }
  return values;
}

}  // namespace trireme::data
