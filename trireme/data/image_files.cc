#include "trireme/data/image_files.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <span>

#include "trireme/base/error.h"
#include "trireme/base/hash.h"
#include "trireme/base/io.h"
#include "trireme/data/compressed.h"
#include "trireme/data/inputs.h"
#include "trireme/data/npy.h"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;
using base::ConfigError;
using base::FormatError;

/// Images of one size, back to back in memory.
class Packed : public ImageFiles {
 public:
  Packed(int64_t height, int64_t width, int64_t channels, bool channels_first, int64_t record,
         int64_t skip)
      : height_(height),
        width_(width),
        channels_(channels),
        channels_first_(channels_first),
        record_(record),
        skip_(skip) {}
  int64_t size() const override { return std::ssize(labels); }
  int64_t label(int64_t i) const override { return labels[i]; }
  int64_t classes() const override {
    return labels.empty() ? 0 : 1 + *std::ranges::max_element(labels);
  }
  uint64_t fingerprint() const override {
    return base::hash_combine(base::hash_text(bytes),
                              base::hash_bytes(labels.data(), labels.size() * sizeof(int64_t)));
  }
  Image image(int64_t i) const override {
    Image out{height_, width_, channels_};
    const auto* from = reinterpret_cast<const uint8_t*>(bytes.data()) + i * record_ + skip_;
    const int64_t plane = height_ * width_;
    if (!channels_first_) {
      out.pixels.assign(from, from + plane * channels_);
      return out;
    }
    for (int64_t p = 0; p < plane; ++p)
      for (int64_t c = 0; c < channels_; ++c) out.pixels.push_back(from[c * plane + p]);
    return out;
  }

  std::string bytes;
  std::vector<int64_t> labels;

 private:
  int64_t height_, width_, channels_;
  bool channels_first_;
  int64_t record_, skip_;  // bytes of an image, and before its pixels
};

std::string read_whole(const std::string& path) {
  if (!is_stream(path)) return base::read_file(path);
  auto stream = open_stream(path);
  std::string all;
  std::vector<char> chunk(1 << 20);
  while (size_t n = stream->read(chunk.data(), chunk.size())) all.append(chunk.data(), n);
  return all;
}

/// The sizes in the header of an MNIST file, big-endian; checks magic and size.
std::vector<int64_t> idx_sizes(const std::string& path, const std::string& bytes,
                               size_t dimensions) {
  const auto word = [&](size_t at) {
    uint32_t value = 0;
    for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
    return value;
  };
  const size_t header = 4 + 4 * dimensions;
  if (bytes.size() < header || word(0) != 0x800 + dimensions)
    throw FormatError(path, 0,
                      fmt::format("expected MNIST's header: the number {} and {} sizes",
                                  0x800 + dimensions, dimensions));
  std::vector<int64_t> sizes;
  uint64_t product = 1;
  for (size_t d = 0; d < dimensions; ++d) {
    sizes.push_back(word(4 + 4 * d));
    if (sizes.back() > (int64_t{1} << 40) / static_cast<int64_t>(std::max<uint64_t>(product, 1)))
      throw FormatError(path, static_cast<int64_t>(4 + 4 * d), "sizes beyond what a file can hold");
    product *= static_cast<uint64_t>(sizes.back());
  }
  if (bytes.size() != header + product)
    throw FormatError(path,
                      static_cast<int64_t>(std::min<uint64_t>(bytes.size(), header + product)),
                      fmt::format("the file has {} bytes; its sizes {} take {}", bytes.size(),
                                  fmt::join(sizes, " x "), header + product));
  return sizes;
}

std::unique_ptr<ImageFiles> open_mnist(const std::string& path) {
  std::string labels_path = path;
  labels_path.replace(labels_path.find("images"), 6, "labels");
  labels_path.replace(labels_path.find("idx3"), 4, "idx1");
  std::string images = read_whole(path), labels = read_whole(labels_path);
  const auto sizes = idx_sizes(path, images, 3);
  if (const auto count = idx_sizes(labels_path, labels, 1)[0]; count != sizes[0])
    throw FormatError(labels_path, 4,
                      fmt::format("{} labels for {} images in {}", count, sizes[0], path));
  auto files = std::make_unique<Packed>(sizes[1], sizes[2], 1, false, sizes[1] * sizes[2], 0);
  files->bytes = images.substr(16);
  for (char label : labels.substr(8)) files->labels.push_back(static_cast<uint8_t>(label));
  return files;
}

std::unique_ptr<ImageFiles> open_cifar(const std::string& path) {
  std::unique_ptr<Packed> files;
  int64_t record = 0;
  for (const std::string& file : expand_inputs({path})) {
    const std::string bytes = base::read_file(file);
    if (record == 0) record = bytes.size() % 3073 == 0 ? 3073 : 3074;
    if (bytes.empty() || std::ssize(bytes) % record != 0)
      throw FormatError(
          file, 0,
          fmt::format("{} bytes; expected a multiple of 3073 (CIFAR-10) or 3074 (CIFAR-100)",
                      bytes.size()));
    if (!files) files = std::make_unique<Packed>(32, 32, 3, true, record, record - 3072);
    for (int64_t at = 0; at < std::ssize(bytes); at += record)
      files->labels.push_back(
          static_cast<uint8_t>(bytes[at + record - 3073]));  // CIFAR-100: the fine one
    files->bytes += bytes;
  }
  return files;
}

std::unique_ptr<ImageFiles> open_npy(const std::string& path, const std::string& labels_path) {
  if (labels_path.empty())
    throw ConfigError(
        fmt::format("{}: give the option label_file, a .npy file with the classes", path));
  const Npy images(path), labels(labels_path);
  const auto& shape = images.shape();
  const bool fits =
      (shape.size() == 3 || (shape.size() == 4 && (shape[3] == 1 || shape[3] == 3))) &&
      images.type() == "u1";
  if (!fits)
    throw FormatError(
        path, 0,
        fmt::format(
            "an array of {} [{}]; expected u1 [n, height, width] or [n, height, width, 1 or 3]",
            images.type(), fmt::join(shape, ", ")));
  if (labels.shape().size() != 1 || labels.shape()[0] != shape[0])
    throw FormatError(labels_path, 0,
                      fmt::format("an array of [{}]; expected [{}], a class an image",
                                  fmt::join(labels.shape(), ", "), shape[0]));
  const int64_t channels = shape.size() == 4 ? shape[3] : 1;
  auto files = std::make_unique<Packed>(shape[1], shape[2], channels, false,
                                        shape[1] * shape[2] * channels, 0);
  files->bytes = std::string(images.bytes());
  files->labels = labels.integers();
  return files;
}

class Folders : public ImageFiles {
 public:
  explicit Folders(const std::string& path) : path_(path) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(path))
      if (entry.is_directory() && !entry.path().filename().string().starts_with('.'))
        names.push_back(entry.path().string());
    std::ranges::sort(names);
    for (const std::string& name : names) {
      const size_t before = files_.size();
      for (const std::string& file :
           fs::is_empty(name) ? std::vector<std::string>() : expand_inputs({name})) {
        std::string ending = fs::path(file).extension().string();
        std::ranges::transform(ending, ending.begin(),
                               [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
        if (ending == ".png" || ending == ".jpg" || ending == ".jpeg")
          files_.push_back({file, classes_});
      }
      if (files_.size() == before)
        throw ConfigError(
            fmt::format("{}: no .png, .jpg or .jpeg file; a folder stands for a class", name));
      ++classes_;
    }
    if (files_.empty())
      throw ConfigError(fmt::format("{}: expected a folder a class, with images in them", path));
  }
  int64_t size() const override { return std::ssize(files_); }
  int64_t label(int64_t i) const override { return files_[i].label; }
  int64_t classes() const override { return classes_; }
  Image image(int64_t i) const override { return read_image(files_[i].path); }
  uint64_t fingerprint() const override {
    uint64_t hash = 0;
    for (const File& file : files_) {
      hash = base::hash_combine(
          hash, base::hash_text(fs::path(file.path).lexically_relative(path_).string()));
      hash = base::hash_combine(hash, fs::file_size(file.path));
    }
    return hash;
  }

 private:
  struct File {
    std::string path;
    int64_t label;
  };
  std::string path_;
  std::vector<File> files_;
  int64_t classes_ = 0;
};

}  // namespace

std::unique_ptr<ImageFiles> ImageFiles::open(const std::string& path, const std::string& labels) {
  if (fs::is_directory(path)) return std::make_unique<Folders>(path);
  const std::string name = fs::path(path).filename().string();
  if (name.find("images") != name.npos && name.find("idx3") != name.npos) return open_mnist(path);
  if (name.ends_with(".npy")) return open_npy(path, labels);
  if (name.ends_with(".bin")) return open_cifar(path);
  throw ConfigError(
      fmt::format("{}: expected MNIST's ...-images-idx3-ubyte, CIFAR's .bin, a .npy file or a "
                  "folder of folders of images",
                  path));
}

}  // namespace trireme::data
