#pragma once
// Image files: collections of images with labels as people have them on disk.

#include <cstdint>
#include <memory>
#include <string>

#include "trireme/data/image.h"

namespace trireme::data {

/// Images with a class each. Thread-safe.
class ImageFiles {
 public:
  virtual ~ImageFiles() = default;
  virtual int64_t size() const = 0;
  virtual Image image(int64_t i) const = 0;
  virtual int64_t label(int64_t i) const = 0;
  virtual int64_t classes() const = 0;
  virtual uint64_t fingerprint() const = 0;

  /// By what lies at the path:
  ///   PREFIX-images-idx3-ubyte (or .gz) with PREFIX-labels-idx1-ubyte beside it: MNIST
  ///   a .bin file or several of a pattern, of 3073 or 3074 bytes an image: CIFAR-10 and -100
  ///   X.npy, uint8 [n, height, width] or [n, height, width, 3], with labels in `labels`
  ///   a folder of folders of .png, .jpg and .jpeg files, one folder a class in the order of names
  /// ConfigError, FormatError: file, byte, given, expected.
  static std::unique_ptr<ImageFiles> open(const std::string& path, const std::string& labels);
};

/// A PNG or JPEG file, as 8-bit grey or RGB. FormatError where it is damaged.
Image read_image(const std::string& path);

}  // namespace trireme::data
