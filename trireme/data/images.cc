// Samples of images: chosen, cut, changed at random, normalised.

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numbers>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/base/hash.h"
#include "trireme/base/io.h"
#include "trireme/data/dataset_kinds.h"
#include "trireme/data/image.h"
#include "trireme/data/image_files.h"
#include "trireme/data/options.h"

namespace trireme::data {
namespace {

using base::ConfigError;

struct ImageOptions {
  std::string label_file = "", caption_file = "", interpolation = "bilinear";
  std::optional<int64_t> eos = {}, pad = {};
  int64_t size = 0, channels = 0, resize = 0, padding = 0, classes = 0, solarize_threshold = 128,
          views = 1;
  bool random_crop = false, random_resized_crop = false;
  double scale_min = 0.08, horizontal_flip = 0, vertical_flip = 0;
  double brightness = 0, contrast = 0, saturation = 0, hue = 0, grayscale = 0, blur = 0,
         blur_min = 0.1, blur_max = 2.0, solarize = 0;
  double mixup = 0, cutmix = 0;
  std::vector<double> mean = {}, std = {};

  template <class Self, class V>
  static void visit(Self& self, V&& v) {
    using base::Field;
    v("label_file", self.label_file, Field{"classes of a .npy file's images"});
    v("caption_file", self.caption_file, Field{"a text of each image, a line each in their order"});
    v("eos", self.eos, Field{"id that ends a caption; null: as the tokenizer ends it", 0});
    v("pad", self.pad, Field{"id after it; null: the tokenizer's", 0});
    v("size", self.size,
      Field{"height and width of a sample; 0: as the images are, all of one size", 0, 65536});
    v("channels", self.channels, Field{"1 or 3; 0: as the first image has", 0, 3});
    v("resize", self.resize, Field{"the shorter side before cutting; 0: size", 0, 65536});
    v("interpolation", self.interpolation,
      Field{.help = "", .choices = {"nearest", "bilinear", "bicubic"}});
    v("padding", self.padding, Field{"black pixels around before a random crop", 0, 4096});
    v("random_crop", self.random_crop, Field{"training: cut out anywhere, else in the middle"});
    v("random_resized_crop", self.random_resized_crop,
      Field{"training: a part of random size and shape, resized"});
    v("scale_min", self.scale_min, Field{"of that: the smallest share of the area", 0.01, 1});
    v("horizontal_flip", self.horizontal_flip, Field{"probability", 0, 1});
    v("vertical_flip", self.vertical_flip, Field{"probability", 0, 1});
    v("brightness", self.brightness, Field{"factors of 1 - x to 1 + x", 0, 1});
    v("contrast", self.contrast, Field{"", 0, 1});
    v("saturation", self.saturation, Field{"", 0, 1});
    v("hue", self.hue, Field{"turns of -x to x of the circle", 0, 0.5});
    v("grayscale", self.grayscale, Field{"probability", 0, 1});
    v("blur", self.blur, Field{"probability", 0, 1});
    v("blur_min", self.blur_min, Field{"standard deviation", 0.01, 100});
    v("blur_max", self.blur_max, Field{"", 0.01, 100});
    v("solarize", self.solarize, Field{"probability", 0, 1});
    v("solarize_threshold", self.solarize_threshold, Field{"", 0, 256});
    v("mixup", self.mixup,
      Field{"alpha of the mix with another image; labels are shares then; 0: off", 0, 100});
    v("cutmix", self.cutmix, Field{"alpha of a part from another image; 0: off", 0, 100});
    v("views", self.views,
      Field{"of each image, each changed on its own: pixel_values get a dimension of so many", 1,
            64});
    v("classes", self.classes, Field{"0: what the labels show", 0});
    v("mean", self.mean, Field{"of each channel, of values from 0 to 1", 0, 1});
    v("std", self.std, Field{"", 1e-6, 100});
  }
};

/// A Gamma(shape, 1) number (Marsaglia and Tsang, 2000).
double draw_gamma(double shape, Draws& draws) {
  if (shape < 1) {
    const double u = 1.0 - draws.uniform();
    return draw_gamma(shape + 1, draws) * std::pow(u, 1.0 / shape);
  }
  const double d = shape - 1.0 / 3.0, c = 1.0 / std::sqrt(9.0 * d);
  while (true) {
    const double u = 1.0 - draws.uniform();
    const double x = std::sqrt(-2.0 * std::log(1.0 - draws.uniform())) *
                     std::cos(2 * std::numbers::pi * draws.uniform());
    const double v = std::pow(1.0 + c * x, 3);
    if (v > 0 && std::log(u) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
  }
}

double draw_beta(double alpha, Draws& draws) {
  const double a = draw_gamma(alpha, draws), b = draw_gamma(alpha, draws);
  return a + b > 0 ? a / (a + b) : 0.5;
}

/// Texts that belong to images, made to ids.
class Captions {
 public:
  Captions(const ImageOptions& options, const SampleOptions& run, int64_t images)
      : tools_(run, "images with captions", true),
        eos_(options.eos),
        pad_(tools_.id("pad", options.pad, {"[PAD]", "<pad>", "<|endoftext|>"})),
        length_(run.seq_length) {
    const std::string content = base::read_file(options.caption_file);
    for (size_t begin = 0, end; begin < content.size(); begin = end + 1) {
      end = std::min(content.find('\n', begin), content.size());
      lines_.push_back(content.substr(begin, end - begin));
    }
    if (std::ssize(lines_) != images)
      throw base::FormatError(fmt::format("{} has {} lines for {} images; expected one each",
                                          options.caption_file, lines_.size(), images));
    fingerprint_ = base::hash_text(content);
  }
  std::vector<FieldSpec> fields() const {
    return {{"input_ids", {length_}}, {"attention_mask", {length_}}};
  }
  uint64_t fingerprint() const { return fingerprint_; }
  void read(int64_t example, Row row) const {
    const auto encoding =
        tools_.tokenizer()->encoding(lines_[static_cast<size_t>(example)], {},
                                     text::Truncation{.max_length = length_ - (eos_ ? 1 : 0)});
    std::vector<int64_t> ids(encoding.ids.begin(), encoding.ids.end());
    if (eos_) ids.push_back(*eos_);
    put(row[0], ids, length_, pad_);
    put_ones(row[1], std::ssize(ids));
  }

 private:
  TextTools tools_;
  std::optional<int64_t> eos_;
  int64_t pad_, length_;
  std::vector<std::string> lines_;
  uint64_t fingerprint_ = 0;
};

class ImageExamples : public Examples {
 public:
  ImageExamples(const std::string& path, const ImageOptions& options, bool train,
                std::string settings, const SampleOptions& run)
      : path_(path),
        files_(ImageFiles::open(path, options.label_file)),
        options_(options),
        train_(train),
        settings_(std::move(settings)),
        how_(interpolation_of(options.interpolation)) {
    if (files_->size() == 0) throw ConfigError(fmt::format("{} holds no image", path));
    const Image first = files_->image(0);
    if (options_.channels == 0) options_.channels = first.channels;
    if (options_.channels == 2) throw ConfigError("options of images.channels: 2; expected 1 or 3");
    if (options_.views > 1 && mixes())
      throw ConfigError("options of images: views beside mixup or cutmix; choose one");
    if (!options_.caption_file.empty()) {
      if (mixes())
        throw ConfigError("options of images: captions beside mixup or cutmix; choose one");
      captions_.emplace(options_, run, size());
    }
    height_ = options_.size > 0 ? options_.size : first.height;
    width_ = options_.size > 0 ? options_.size : first.width;
    classes_ = options_.classes > 0 ? options_.classes : files_->classes();
    for (auto* list : {&options_.mean, &options_.std}) {
      if (list->empty()) list->assign(options_.channels, list == &options_.mean ? 0.0 : 1.0);
      if (std::ssize(*list) == 1) list->resize(options_.channels, list->front());
      if (std::ssize(*list) != options_.channels)
        throw ConfigError(
            fmt::format("options of images: mean and std have {} numbers for {} channels",
                        list->size(), options_.channels));
    }
    for (int64_t i = 0; i < size(); ++i) {
      if (const int64_t label = files_->label(i); label < 0 || label >= classes_)
        throw ConfigError(
            fmt::format("{}: image {} is of class {}; expected 0 to {} (option classes)", path, i,
                        label, classes_ - 1));
    }
  }
  int64_t size() const override { return files_->size(); }
  std::string description() const override {
    return fmt::format("{}: {} images of {} classes, {} x {} x {}", path_, size(), classes_,
                       options_.channels, height_, width_);
  }
  std::vector<FieldSpec> fields() const override {
    std::vector<int64_t> shape{options_.channels, height_, width_};
    if (options_.views > 1) shape.insert(shape.begin(), options_.views);
    std::vector<FieldSpec> fields{{"pixel_values", shape, base::DType::f32}};
    fields.push_back(mixes() ? FieldSpec{"labels", {classes_}, base::DType::f32}
                             : FieldSpec{"labels"});
    if (captions_) std::ranges::move(captions_->fields(), std::back_inserter(fields));
    return fields;
  }
  SourceIdentity identity() const override {
    return {.path = path_,
            .documents = size(),
            .fingerprint = captions_ ? base::hash_combine(files_->fingerprint(), captions_->fingerprint())
                                     : files_->fingerprint(),
            .samples = settings_};
  }

  void read(int64_t example, Draws& draws, Row row) const override {
    const int64_t label = files_->label(example);
    const int64_t pixels = options_.channels * height_ * width_;
    // A mixed label follows from draws that come after the picture's.
    if (row[0].wanted || mixes())
      for (int64_t view = 0; view < options_.views; ++view)
        write(prepared(example, draws), row[0].reals + view * pixels);
    if (!mixes()) {
      *row[1].ids = label;
      if (captions_) captions_->read(example, row.subspan(2));
      return;
    }
    row[1].reals[label] = 1;
    const bool cut = options_.cutmix > 0 && (options_.mixup == 0 || draws.chance(0.5));
    const double share = draw_beta(cut ? options_.cutmix : options_.mixup, draws);
    const int64_t other = draws.below(size());
    std::vector<float> second(static_cast<size_t>(options_.channels * height_ * width_));
    write(prepared(other, draws), second.data());
    const double kept = cut ? paste(second, share, draws, row[0].reals) : share;
    if (!cut) {
      for (size_t i = 0; i < second.size(); ++i)
        row[0].reals[i] = static_cast<float>(kept * row[0].reals[i] + (1 - kept) * second[i]);
    }
    row[1].reals[label] = static_cast<float>(kept);
    row[1].reals[files_->label(other)] += static_cast<float>(1 - kept);
  }

 private:
  bool mixes() const { return train_ && (options_.mixup > 0 || options_.cutmix > 0); }

  Image prepared(int64_t example, Draws& draws) const {
    Image image = cut_out(with_channels(files_->image(example), options_.channels), draws);
    if (!train_) return image;
    if (draws.chance(options_.horizontal_flip)) image = flip_horizontally(image);
    if (draws.chance(options_.vertical_flip)) image = flip_vertically(image);
    const auto factor = [&](double range) { return 1 - range + 2 * range * draws.uniform(); };
    if (options_.brightness > 0) image = adjust_brightness(image, factor(options_.brightness));
    if (options_.contrast > 0) image = adjust_contrast(image, factor(options_.contrast));
    if (options_.saturation > 0) image = adjust_saturation(image, factor(options_.saturation));
    if (options_.hue > 0) image = adjust_hue(image, factor(options_.hue) - 1);
    if (options_.grayscale > 0 && draws.chance(options_.grayscale))
      image = with_channels(with_channels(image, 1), image.channels);
    if (draws.chance(options_.blur))
      image = blur(image,
                   options_.blur_min + (options_.blur_max - options_.blur_min) * draws.uniform());
    if (draws.chance(options_.solarize)) image = solarize(image, options_.solarize_threshold);
    return image;
  }

  Image cut_out(const Image& image, Draws& draws) const {
    if (train_ && options_.random_resized_crop)
      return resize(image, height_, width_, how_, random_box(image, draws));
    Image whole = image;
    if (options_.size > 0) {
      const int64_t target = options_.resize > 0 ? options_.resize : options_.size;
      const int64_t shorter = std::min(image.height, image.width),
                    longer = std::max(image.height, image.width);
      if (shorter != target) {
        const int64_t other = target * longer / shorter;
        whole = image.height <= image.width ? resize(image, target, other, how_)
                                            : resize(image, other, target, how_);
      }
    }
    if (train_ && options_.random_crop) {
      const int64_t pad = options_.padding;
      if (whole.height + 2 * pad >= height_ && whole.width + 2 * pad >= width_) {
        const int64_t top = draws.below(whole.height + 2 * pad - height_ + 1) - pad,
                      left = draws.below(whole.width + 2 * pad - width_ + 1) - pad;
        return crop(whole, top, left, height_, width_);
      }
    }
    if (whole.height == height_ && whole.width == width_) return whole;
    if (options_.size == 0)
      throw base::FormatError(
          fmt::format("{}: an image of {} x {} among ones of {} x {}; give the option size", path_,
                      whole.height, whole.width, height_, width_));
    return crop(whole, (whole.height - height_) / 2, (whole.width - width_) / 2, height_, width_);
  }

  /// A part of scale_min to all of the area, 3/4 to 4/3 as wide as high.
  Box random_box(const Image& image, Draws& draws) const {
    const auto height = static_cast<double>(image.height), width = static_cast<double>(image.width);
    for (int attempt = 0; attempt < 10; ++attempt) {
      const double area =
          height * width * (options_.scale_min + (1 - options_.scale_min) * draws.uniform());
      const double ratio = std::exp(std::log(3.0 / 4) + std::log(16.0 / 9) * draws.uniform());
      const double w = std::round(std::sqrt(area * ratio)), h = std::round(std::sqrt(area / ratio));
      if (w < 1 || h < 1 || w > width || h > height) continue;
      const auto left = static_cast<double>(draws.below(static_cast<int64_t>(width - w) + 1)),
                 top = static_cast<double>(draws.below(static_cast<int64_t>(height - h) + 1));
      return {left, top, left + w, top + h};
    }
    const double side = std::min(height, width);
    return {(width - side) / 2, (height - side) / 2, (width + side) / 2, (height + side) / 2};
  }

  void write(const Image& image, float* out) const {
    for (int64_t c = 0; c < options_.channels; ++c) {
      const double mean = options_.mean[c], std = options_.std[c];
      for (int64_t i = 0; i < height_ * width_; ++i)
        *out++ = static_cast<float>((image.pixels[i * options_.channels + c] / 255.0 - mean) / std);
    }
  }

  /// Puts a box of the second image into the first; the share of the first that is left.
  double paste(const std::vector<float>& second, double share, Draws& draws, float* out) const {
    const double side = std::sqrt(1 - share);
    const auto h = static_cast<int64_t>(side * static_cast<double>(height_)),
               w = static_cast<int64_t>(side * static_cast<double>(width_));
    const int64_t y = draws.below(height_), x = draws.below(width_);
    const int64_t top = std::max<int64_t>(y - h / 2, 0), bottom = std::min(y + h / 2, height_),
                  left = std::max<int64_t>(x - w / 2, 0), right = std::min(x + w / 2, width_);
    for (int64_t c = 0; c < options_.channels; ++c)
      for (int64_t row = top; row < bottom; ++row)
        for (int64_t column = left; column < right; ++column) {
          const int64_t at = (c * height_ + row) * width_ + column;
          out[at] = second[at];
        }
    return 1 - static_cast<double>((bottom - top) * (right - left)) /
                   static_cast<double>(height_ * width_);
  }

  std::string path_;
  std::unique_ptr<ImageFiles> files_;
  ImageOptions options_;
  bool train_;
  std::string settings_;
  Interpolation how_;
  std::optional<Captions> captions_ = {};
  int64_t height_, width_, classes_;
};

}  // namespace

std::shared_ptr<const Examples> open_images(const std::string& path, const base::Json& options,
                                            const SampleOptions& run) {
  ImageOptions own;
  read_options(options, "options of images", own);
  return std::make_shared<ImageExamples>(path, own, run.shuffle, "images " + options.dump(), run);
}

}  // namespace trireme::data
