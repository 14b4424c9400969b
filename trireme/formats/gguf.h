#pragma once
// GGUF (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian): one file with a model's
// metadata and its tensors, which may be quantised in blocks along their last dimension. What the metadata mean is not its
// business.
//
//   GgufFile file(path);
//   file.metadata()["general.architecture"];
//   std::vector<float> values = file.dequantize("blk.0.attn_q.weight");

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trireme/base/io.h"
#include "trireme/base/json.h"
#include "trireme/layout/param_spec.h"

namespace trireme::formats {

class GgufFile {
 public:
  struct Tensor {
    layout::Shape shape;  // outermost first, as everywhere but in the file
    std::string type;     // "F32", "Q4_K"...
    std::span<const std::byte> bytes;
  };

  /// Maps and checks the whole header. FormatError with the offset: another format or version, counts and lengths that the
  /// file does not hold, an unknown type, names that appear twice, tensors that overlap the header or pass the end.
  explicit GgufFile(const std::string& path);
  const std::string& path() const { return file_.path(); }
  /// Arrays are JSON arrays. Text is as it stands, UTF-8 or not.
  const base::Json& metadata() const { return metadata_; }
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  /// All elements of a tensor, row-major, in fp32; or of its `part` alone, along the first of at least two dimensions.
  /// FormatError: there is no such tensor; a type that is not F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K or Q6_K.
  std::vector<float> dequantize(const std::string& name, std::optional<int64_t> part = {}) const;

 private:
  base::MappedFile file_;
  base::Json metadata_ = base::Json::object();
  std::map<std::string, Tensor> tensors_;
};

}  // namespace trireme::formats
