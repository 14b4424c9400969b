#include "trireme/base/error.h"
#include "trireme/data/image_files.h"

namespace trireme::data {

Image read_image(const std::string& path) {
  throw base::ConfigError(
      fmt::format("{}: this build reads no PNG and JPEG files; install libpng-dev and libjpeg-dev "
                  "and build again",
                  path));
}

}  // namespace trireme::data
