#include "trireme/data/image.h"

#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"

namespace trireme::data {
namespace {

/// Pixels behind each pixel of one axis and their weights, in fixed point as Pillow computes with.
struct Weights {
  static constexpr int kBits = 22;
  std::vector<int64_t> begins;
  std::vector<std::vector<int32_t>> weights;
};

double triangle(double x) {
  return std::max(0.0, 1.0 - std::abs(x));
}

/// Keys' cubic with a = -0.5.
double cubic(double x) {
  constexpr double a = -0.5;
  x = std::abs(x);
  if (x < 1) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
  return 0;
}

Weights weights_of(int64_t size, double begin, double end, int64_t out, Interpolation how) {
  const double scale = (end - begin) / static_cast<double>(out), wide = std::max(scale, 1.0);
  const double support = (how == Interpolation::bicubic ? 2.0 : 1.0) * wide;
  Weights result;
  for (int64_t i = 0; i < out; ++i) {
    const double center = begin + (static_cast<double>(i) + 0.5) * scale;
    const auto first = std::max<int64_t>(static_cast<int64_t>(center - support + 0.5), 0);
    const auto last = std::min<int64_t>(static_cast<int64_t>(center + support + 0.5), size);
    std::vector<double> exact;
    double sum = 0;
    for (int64_t x = first; x < last; ++x) {
      const double at = (static_cast<double>(x) - center + 0.5) / wide;
      exact.push_back(how == Interpolation::bicubic ? cubic(at) : triangle(at));
      sum += exact.back();
    }
    result.begins.push_back(first);
    auto& fixed = result.weights.emplace_back();
    for (double w : exact) {
      const double scaled = (sum != 0 ? w / sum : w) * (1 << Weights::kBits);
      fixed.push_back(static_cast<int32_t>(scaled + (w < 0 ? -0.5 : 0.5)));
    }
  }
  return result;
}

uint8_t clip(int64_t value) {
  return static_cast<uint8_t>(std::clamp<int64_t>(value, 0, 255));
}

/// Resamples along x, or along y.
Image resample(const Image& image, const Weights& weights, bool along_x) {
  const auto size = std::ssize(weights.begins);
  Image out{along_x ? image.height : size, along_x ? size : image.width, image.channels};
  out.pixels.resize(static_cast<size_t>(out.height * out.width * out.channels));
  uint8_t* to = out.pixels.data();
  for (int64_t y = 0; y < out.height; ++y) {
    for (int64_t x = 0; x < out.width; ++x) {
      const int64_t i = along_x ? x : y, first = weights.begins[i];
      for (int64_t c = 0; c < out.channels; ++c) {
        int64_t sum = int64_t{1} << (Weights::kBits - 1);
        for (size_t k = 0; k < weights.weights[i].size(); ++k) {
          const int64_t at = first + static_cast<int64_t>(k);
          sum +=
              int64_t{weights.weights[i][k]} * (along_x ? image.at(y, at, c) : image.at(at, x, c));
        }
        *to++ = clip(sum >> Weights::kBits);
      }
    }
  }
  return out;
}

/// The pixel behind each pixel of an axis. Steps are added up, as Pillow does, which decides ties.
std::vector<int64_t> nearest_places(int64_t size, double begin, double end, int64_t out) {
  const double step = (end - begin) / static_cast<double>(out);
  std::vector<int64_t> places;
  double at = begin + 0.5 * step;
  for (int64_t i = 0; i < out; ++i, at += step)
    places.push_back(std::clamp<int64_t>(static_cast<int64_t>(at), 0, size - 1));
  return places;
}

Image nearest(const Image& image, int64_t height, int64_t width, const Box& box) {
  Image out{height, width, image.channels};
  const auto columns = nearest_places(image.width, box.left, box.right, width);
  for (int64_t y : nearest_places(image.height, box.top, box.bottom, height))
    for (int64_t x : columns)
      for (int64_t c = 0; c < image.channels; ++c) out.pixels.push_back(image.at(y, x, c));
  return out;
}

/// a + factor (b - a), as Pillow's blend: truncated inside of [0, 1], clipped outside.
uint8_t blend(uint8_t a, uint8_t b, double factor) {
  const float value =
      static_cast<float>(a) + static_cast<float>(factor) * static_cast<float>(int{b} - int{a});
  return value <= 0 ? 0 : value >= 255 ? 255 : static_cast<uint8_t>(value);
}

uint8_t luma(const uint8_t* rgb) {
  return static_cast<uint8_t>((rgb[0] * 19595 + rgb[1] * 38470 + rgb[2] * 7471 + 0x8000) >> 16);
}

/// One box blur along rows; the edge's pixels are repeated outside.
void box_blur(const uint8_t* in, uint8_t* out, int64_t count, int64_t stride, float radius) {
  const auto whole = static_cast<int64_t>(radius);
  const auto weight = static_cast<uint32_t>(static_cast<float>(1 << 24) / (radius * 2 + 1));
  const uint32_t edge = ((1U << 24) - static_cast<uint32_t>(whole * 2 + 1) * weight) / 2;
  const auto at = [&](int64_t i) -> uint32_t {
    return in[std::clamp<int64_t>(i, 0, count - 1) * stride];
  };
  uint32_t sum = 0;
  for (int64_t i = -whole; i <= whole; ++i) sum += at(i);
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bulk = sum * weight + (at(i - whole - 1) + at(i + whole + 1)) * edge;
    out[i * stride] = static_cast<uint8_t>((bulk + (1U << 23)) >> 24);
    sum += at(i + whole + 1) - at(i - whole);
  }
}

float box_radius(double sigma, int passes) {
  const float variance =
      static_cast<float>(sigma) * static_cast<float>(sigma) / static_cast<float>(passes);
  const float length = std::sqrt(12.0F * variance + 1.0F),
              whole = std::floor((length - 1.0F) / 2.0F);
  float part = (2 * whole + 1) * (whole * (whole + 1) - 3 * variance);
  part /= 6 * (variance - (whole + 1) * (whole + 1));
  return whole + part;
}

}  // namespace

Interpolation interpolation_of(const std::string& name) {
  if (name == "nearest") return Interpolation::nearest;
  if (name == "bilinear") return Interpolation::bilinear;
  if (name == "bicubic") return Interpolation::bicubic;
  throw base::ConfigError(
      fmt::format("interpolation '{}'; expected nearest, bilinear or bicubic", name));
}

Image resize(const Image& image, int64_t height, int64_t width, Interpolation how, const Box& box) {
  if (how == Interpolation::nearest) return nearest(image, height, width, box);
  const bool whole_x =
      width == image.width && box.left == 0 && box.right == static_cast<double>(width);
  const bool whole_y =
      height == image.height && box.top == 0 && box.bottom == static_cast<double>(height);
  Image out = image;
  if (!whole_x) out = resample(out, weights_of(image.width, box.left, box.right, width, how), true);
  if (!whole_y)
    out = resample(out, weights_of(image.height, box.top, box.bottom, height, how), false);
  return out;
}

Image resize(const Image& image, int64_t height, int64_t width, Interpolation how) {
  return resize(
      image, height, width, how,
      {.right = static_cast<double>(image.width), .bottom = static_cast<double>(image.height)});
}

Image crop(const Image& image, int64_t top, int64_t left, int64_t height, int64_t width,
           uint8_t fill) {
  Image out{height, width, image.channels,
            std::vector<uint8_t>(static_cast<size_t>(height * width * image.channels), fill)};
  const int64_t first = std::max<int64_t>(left, 0), last = std::min(left + width, image.width);
  for (int64_t y = std::max<int64_t>(top, 0);
       first < last && y < std::min(top + height, image.height); ++y) {
    std::copy_n(image.pixels.begin() + (y * image.width + first) * image.channels,
                (last - first) * image.channels,
                out.pixels.begin() + ((y - top) * width + first - left) * image.channels);
  }
  return out;
}

Image flip_horizontally(const Image& image) {
  Image out = image;
  for (int64_t y = 0; y < image.height; ++y)
    for (int64_t x = 0; x < image.width; ++x)
      for (int64_t c = 0; c < image.channels; ++c)
        out.pixels[(y * image.width + x) * image.channels + c] =
            image.at(y, image.width - 1 - x, c);
  return out;
}

Image flip_vertically(const Image& image) {
  Image out = image;
  const int64_t row = image.width * image.channels;
  for (int64_t y = 0; y < image.height; ++y)
    std::copy_n(image.pixels.begin() + (image.height - 1 - y) * row, row,
                out.pixels.begin() + y * row);
  return out;
}

Image with_channels(const Image& image, int64_t channels) {
  if (image.channels == channels) return image;
  Image out{image.height, image.width, channels};
  for (int64_t i = 0; i < image.height * image.width; ++i) {
    if (channels == 1) {
      out.pixels.push_back(luma(&image.pixels[i * 3]));
    } else {
      out.pixels.insert(out.pixels.end(), 3, image.pixels[i]);
    }
  }
  return out;
}

Image adjust_brightness(const Image& image, double factor) {
  Image out = image;
  for (uint8_t& value : out.pixels) value = blend(0, value, factor);
  return out;
}

Image adjust_contrast(const Image& image, double factor) {
  const Image grey = with_channels(image, 1);
  double sum = 0;
  for (uint8_t value : grey.pixels) sum += value;
  const auto mean = static_cast<uint8_t>(sum / static_cast<double>(grey.pixels.size()) + 0.5);
  Image out = image;
  for (uint8_t& value : out.pixels) value = blend(mean, value, factor);
  return out;
}

Image adjust_saturation(const Image& image, double factor) {
  if (image.channels == 1) return image;
  Image out = image;
  for (size_t i = 0; i < out.pixels.size(); i += 3) {
    const uint8_t grey = luma(&image.pixels[i]);
    for (size_t c = 0; c < 3; ++c) out.pixels[i + c] = blend(grey, out.pixels[i + c], factor);
  }
  return out;
}

Image adjust_hue(const Image& image, double turn) {
  if (image.channels == 1) return image;
  // Hue, saturation and value have 8 bits each in between.
  const int steps = static_cast<int>(turn * 255);
  Image out = image;
  for (size_t i = 0; i < out.pixels.size(); i += 3) {
    const uint8_t* in = &image.pixels[i];
    const uint8_t low = std::min({in[0], in[1], in[2]}), v = std::max({in[0], in[1], in[2]});
    if (low == v) continue;
    // In floats where Pillow has them: a hue that is one step off is several grey levels.
    const auto range = static_cast<float>(v - low);
    const auto below = [&](int c) { return static_cast<float>(v - in[c]) / range; };
    const auto sector = in[0] == v   ? below(2) - below(1)
                        : in[1] == v ? static_cast<float>(2.0 + below(0) - below(2))
                                     : static_cast<float>(4.0 + below(1) - below(0));
    const auto circle = static_cast<float>(std::fmod(sector / 6.0 + 1.0, 1.0));
    const int hue = (static_cast<int>(circle * 255.0) + steps) & 255;
    const float s =
        static_cast<float>(static_cast<int>(range / static_cast<float>(v) * 255.0)) / 255.0F;
    const double place = hue * 6.0 / 255.0;
    const auto part = static_cast<float>(place - std::floor(place));
    const auto shade = [&](double share) { return clip(std::lround(v * (1.0 - share))); };
    const uint8_t p = shade(s), q = shade(s * part), t = shade(s * (1.0 - part));
    const uint8_t colours[6][3] = {{v, t, p}, {q, v, p}, {p, v, t},
                                   {p, q, v}, {t, p, v}, {v, p, q}};
    std::copy_n(colours[static_cast<int>(place) % 6], 3, &out.pixels[i]);
  }
  return out;
}

Image solarize(const Image& image, int64_t threshold) {
  Image out = image;
  for (uint8_t& value : out.pixels)
    if (value >= threshold) value = static_cast<uint8_t>(255 - value);
  return out;
}

Image blur(const Image& image, double sigma) {
  constexpr int kPasses = 3;
  const float radius = box_radius(sigma, kPasses);
  Image out = image, next = image;
  const int64_t row = image.width * image.channels;
  for (bool along_x : {true, false}) {
    for (int pass = 0; pass < kPasses; ++pass) {
      for (int64_t line = 0; line < (along_x ? image.height : image.width); ++line) {
        for (int64_t c = 0; c < image.channels; ++c) {
          const int64_t at = (along_x ? line * row : line * image.channels) + c;
          box_blur(&out.pixels[at], &next.pixels[at], along_x ? image.width : image.height,
                   along_x ? image.channels : row, radius);
        }
      }
      std::swap(out, next);
    }
  }
  return out;
}

}  // namespace trireme::data
