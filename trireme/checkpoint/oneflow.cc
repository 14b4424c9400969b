#include "trireme/checkpoint/oneflow.h"

#include <filesystem>
#include <sstream>

#include "trireme/base/error.h"
#include "trireme/formats/pickle.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;
using base::FormatError;

constexpr const char *kPickle = "pickled_data", *kDone = "snapshot_done", *kBytes = "out",
                     *kMeta = "meta";

// OneFlow's names of types.
constexpr std::pair<std::string_view, base::DType> kTypes[] = {
    {"kFloat", base::DType::f32},   {"kDouble", base::DType::f64},
    {"kFloat16", base::DType::f16}, {"kBFloat16", base::DType::bf16},
    {"kInt8", base::DType::i8},     {"kInt32", base::DType::i32},
    {"kInt64", base::DType::i64},   {"kUInt8", base::DType::u8},
    {"kBool", base::DType::boolean}};

/// `shape { dim: 3 dim: 4 } data_type: kFloat`, whatever the line breaks.
formats::StoredTensor read_meta(const std::string& path) {
  formats::StoredTensor tensor;
  bool typed = false;
  std::istringstream words(base::read_file(path));
  for (std::string word; words >> word;) {
    if (word == "dim:") {
      int64_t size = -1;
      if (!(words >> size) || size < 0) throw FormatError(path + ": a dimension that is no number");
      tensor.shape.push_back(size);
    } else if (word == "data_type:") {
      words >> word;
      const auto* known =
          std::ranges::find(kTypes, word, [](const auto& type) { return type.first; });
      if (known == std::end(kTypes))
        throw FormatError(fmt::format("{}: numbers of type \"{}\" are not known", path, word));
      tensor.dtype = known->second;
      typed = true;
    } else if (word != "shape" && word != "{" && word != "}") {
      throw FormatError(fmt::format("{}: \"{}\" has no place in it", path, word));
    }
  }
  if (!typed) throw FormatError(path + ": it does not say of which type the numbers are");
  return tensor;
}

}  // namespace

bool is_oneflow_folder(const std::string& folder) {
  return fs::exists(fs::path(folder) / kPickle) || fs::exists(fs::path(folder) / kDone);
}

OneflowFolder::OneflowFolder(const std::string& folder) {
  const fs::path root(folder);
  if (!fs::exists(root / kPickle)) {
    for (const auto& entry : fs::directory_iterator(root))
      if (fs::exists(entry.path() / kBytes))
        entries_[entry.path().filename().string()] = {.folder = entry.path().string()};
    return;
  }
  const std::string pickle = (root / kPickle).string(), bytes = base::read_file(pickle);
  constexpr std::string_view kData = "data.", kPath = ".path";
  const formats::PickledTree tree = formats::read_tree(bytes, pickle);
  for (const auto& [name, value] : tree.values.items()) {
    if (!name.starts_with(kData) || !name.ends_with(kPath) || !value.is_string()) continue;
    const auto place = value.get<std::string>();
    if (place.empty() || place.find('/') != place.npos || place.starts_with('.'))
      throw FormatError(fmt::format("{}: \"{}\" is no folder of a tensor", pickle, place));
    entries_[name.substr(kData.size(), name.size() - kData.size() - kPath.size())] = {
        .folder = (root / place).string()};
  }
}

std::set<std::string> OneflowFolder::names() const {
  std::set<std::string> names;
  for (const auto& [name, entry] : entries_) names.insert(name);
  return names;
}

formats::StoredTensor OneflowFolder::at(const std::string& name) {
  const auto found = entries_.find(name);
  base::check(found != entries_.end(), "there is no tensor {}", name);
  Entry& entry = found->second;
  formats::StoredTensor tensor = read_meta(entry.folder + "/" + kMeta);
  if (!entry.bytes) entry.bytes = std::make_unique<base::MappedFile>(entry.folder + "/" + kBytes);
  tensor.bytes = entry.bytes->bytes();
  const int64_t expected = formats::checked_bytes(tensor.shape, tensor.dtype, entry.folder);
  if (std::ssize(tensor.bytes) != expected)
    throw FormatError(fmt::format("{}/{}: {} bytes, its shape and type take {}", entry.folder,
                                  kBytes, tensor.bytes.size(), expected));
  return tensor;
}

}  // namespace trireme::checkpoint
