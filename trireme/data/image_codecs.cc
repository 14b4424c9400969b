// PNG through libpng and JPEG through libjpeg. Both report errors by a long jump, which must not
// pass over objects with destructors: what may jump stands in functions of plain values.

#include <png.h>

#include <csetjmp>
#include <cstddef>
#include <cstdio>
#include <cstring>
// Behind them, since it needs what they declare.
#include <jpeglib.h>

#include "trireme/base/error.h"
#include "trireme/base/io.h"
#include "trireme/data/image_files.h"

namespace trireme::data {
namespace {

using base::FormatError;

constexpr int64_t kMostPixels = int64_t{1} << 28;  // larger ones are taken for damaged headers

struct EncodedImage {
  const uint8_t* data;
  size_t size, at = 0;
  char message[200] = "";
};

struct Target {
  int64_t height = 0, width = 0, channels = 0;
  uint8_t* pixels = nullptr;  // from `allocate`
  Image* image;
  void allocate() {
    image->height = height;
    image->width = width;
    image->channels = channels;
    image->pixels.resize(static_cast<size_t>(height * width * channels));
    pixels = image->pixels.data();
  }
};

void read_png_bytes(png_structp png, png_bytep out, size_t size) {
  auto* source = static_cast<EncodedImage*>(png_get_io_ptr(png));
  if (size > source->size - source->at) png_error(png, "the file ends inside of the image");
  std::memcpy(out, source->data + source->at, size);
  source->at += size;
}

void keep_png_error(png_structp png, png_const_charp message) {
  auto* source = static_cast<EncodedImage*>(png_get_error_ptr(png));
  std::snprintf(source->message, sizeof source->message, "%s", message);
  png_longjmp(png, 1);
}

void ignore_png_warning(png_structp, png_const_charp) {}

bool decode_png(EncodedImage* source, Target* target) {
  png_structp png =
      png_create_read_struct(PNG_LIBPNG_VER_STRING, source, keep_png_error, ignore_png_warning);
  png_infop info = png ? png_create_info_struct(png) : nullptr;
  if (!info || setjmp(png_jmpbuf(png))) {
    png_destroy_read_struct(&png, &info, nullptr);
    return false;
  }
  png_set_read_fn(png, source, read_png_bytes);
  png_read_info(png, info);
  const int type = png_get_color_type(png, info);
  if (type == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png);
  if (type == PNG_COLOR_TYPE_GRAY && png_get_bit_depth(png, info) < 8)
    png_set_expand_gray_1_2_4_to_8(png);
  png_set_strip_16(png);
  png_set_strip_alpha(png);
  const int passes = png_set_interlace_handling(png);
  png_read_update_info(png, info);
  target->width = png_get_image_width(png, info);
  target->height = png_get_image_height(png, info);
  target->channels = png_get_channels(png, info);
  if (target->width * target->height > kMostPixels ||
      (target->channels != 1 && target->channels != 3))
    png_error(png, "too large, or neither grey nor colour");
  target->allocate();
  for (int pass = 0; pass < passes; ++pass)
    for (int64_t y = 0; y < target->height; ++y)
      png_read_row(png, target->pixels + y * target->width * target->channels, nullptr);
  png_destroy_read_struct(&png, &info, nullptr);
  return true;
}

struct JpegErrors {
  jpeg_error_mgr base;  // first: libjpeg only knows this
  std::jmp_buf jump;
  EncodedImage* source;
};

void keep_jpeg_error(j_common_ptr info) {
  auto* errors = reinterpret_cast<JpegErrors*>(info->err);
  char message[JMSG_LENGTH_MAX];
  info->err->format_message(info, message);
  std::snprintf(errors->source->message, sizeof errors->source->message, "%s", message);
  std::longjmp(errors->jump, 1);
}

/// Warnings are damaged data (a file that ends early, too): no error of libjpeg's, but one here.
void refuse_jpeg_warning(j_common_ptr info, int level) {
  if (level < 0) keep_jpeg_error(info);
}

bool decode_jpeg(EncodedImage* source, Target* target) {
  jpeg_decompress_struct info;
  JpegErrors errors;
  errors.source = source;
  info.err = jpeg_std_error(&errors.base);
  errors.base.error_exit = keep_jpeg_error;
  errors.base.emit_message = refuse_jpeg_warning;
  if (setjmp(errors.jump)) {
    jpeg_destroy_decompress(&info);
    return false;
  }
  jpeg_create_decompress(&info);
  jpeg_mem_src(&info, source->data, source->size);
  jpeg_read_header(&info, TRUE);
  info.out_color_space = info.num_components == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_start_decompress(&info);
  target->width = info.output_width;
  target->height = info.output_height;
  target->channels = info.output_components;
  target->allocate();
  while (info.output_scanline < info.output_height) {
    JSAMPROW row =
        target->pixels + int64_t{info.output_scanline} * target->width * target->channels;
    jpeg_read_scanlines(&info, &row, 1);
  }
  jpeg_finish_decompress(&info);
  jpeg_destroy_decompress(&info);
  return true;
}

}  // namespace

Image read_image(const std::string& path) {
  const base::MappedFile file(path);
  const auto bytes = file.bytes();
  EncodedImage source{reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
  Image image;
  Target target{.image = &image};
  const bool png = bytes.size() >= 8 && png_sig_cmp(source.data, 0, 8) == 0;
  const bool jpeg = bytes.size() >= 3 && source.data[0] == 0xFF && source.data[1] == 0xD8;
  if (!png && !jpeg) throw FormatError(path, 0, "is neither a PNG nor a JPEG file");
  if (!(png ? decode_png(&source, &target) : decode_jpeg(&source, &target)))
    throw FormatError(
        fmt::format("{}: damaged {} file: {}", path, png ? "PNG" : "JPEG", source.message));
  return image;
}

}  // namespace trireme::data
