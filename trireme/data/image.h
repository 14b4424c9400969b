#pragma once
// Image: 8-bit pixels, rows from the top, channels last, and the operations that prepare images for
// training, as Pillow does them (tests hold each to within one grey level of it).

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::data {

struct Image {
  int64_t height = 0, width = 0, channels = 0;  // 1: grey, 3: RGB
  std::vector<uint8_t> pixels = {};
  uint8_t at(int64_t y, int64_t x, int64_t c) const {
    return pixels[(y * width + x) * channels + c];
  }
  bool operator==(const Image&) const = default;
};

struct Box {
  double left = 0, top = 0, right = 0, bottom = 0;
};

enum class Interpolation { nearest, bilinear, bicubic };
/// ConfigError for another word.
Interpolation interpolation_of(const std::string& name);

/// The part `box` of the image, resampled along rows, then along columns; shrinking averages over
/// all pixels behind one (antialias).
Image resize(const Image& image, int64_t height, int64_t width, Interpolation how, const Box& box);
Image resize(const Image& image, int64_t height, int64_t width, Interpolation how);
/// The part from (top, left); what lies outside is `fill`.
Image crop(const Image& image, int64_t top, int64_t left, int64_t height, int64_t width,
           uint8_t fill = 0);
Image flip_horizontally(const Image& image);
Image flip_vertically(const Image& image);
/// Grey to RGB by repetition, RGB to grey by ITU-R 601-2 luma.
Image with_channels(const Image& image, int64_t channels);

/// Factor 1 leaves the image as it is, 0 gives black, the mean grey, and the image in grey.
Image adjust_brightness(const Image& image, double factor);
Image adjust_contrast(const Image& image, double factor);
Image adjust_saturation(const Image& image, double factor);
/// Turns the circle of hues by `turn` of its length, in 255 steps; grey stays as it is.
Image adjust_hue(const Image& image, double turn);
/// Inverts what is at least `threshold`.
Image solarize(const Image& image, int64_t threshold);
/// Three box blurs that come close to a Gaussian of this standard deviation (Gwosdek et al., 2011).
Image blur(const Image& image, double sigma);

}  // namespace trireme::data
