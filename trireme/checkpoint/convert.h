#pragma once
// Conversions between checkpoint layouts, and comparisons, by one process and tensor by tensor:
// memory for one tensor, no ranks, no model code. The destination appears whole or not at all.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trireme/checkpoint/load.h"

namespace trireme::checkpoint {

/// ConfigError for averages where the source keeps none, and with the optimizer.
struct ConvertOptions {
  std::optional<base::DType> dtype = {};  // of floating parameters; nothing: as stored
  bool average = false;  // the weights' moving averages in their place, without the optimizer
  // convert_to_hf only:
  // What a parameter becomes, of its shape and type: an adapter is merged. Without the optimizer.
  std::function<at::Tensor(const std::string& name, const at::Tensor& tensor)> change = {};
  // The model with another vocabulary, of its configuration: what it says then, and the parameters before and after, in one
  // order: see Resizing. Without the optimizer.
  struct Resize {
    base::Json config = {};
    std::vector<layout::ParamSpec> before = {}, after = {};
  };
  std::function<Resize(const base::Json& config)> resize = {};
  std::function<void()> check = {};  // throws where what was written must not appear
  bool optimizer = false;                  // with the optimizer's tensors
  bool pickled = false;                    // pytorch_model.bin in place of model.safetensors
  std::optional<int64_t> max_shard_bytes = {};  // several files of at most so much (or of one tensor)
};

/// How a parameter takes the shape that the model with another vocabulary has for it: along a dimension that is shorter there
/// it ends sooner; along a longer one more entries begin as the mean of those there are, as transformers'
/// resize_token_embeddings has it but for a deviation of 3e-5 of theirs; or as zeros, as those of buffers do, and of the bias
/// of a head that shares the words' table.
struct Resizing {
  layout::Shape before = {}, after = {};
  bool zeros = false;
  at::Tensor apply(at::Tensor tensor) const;
};
/// Of each parameter whose shape differs, by name; both lists in one order.
std::map<std::string, Resizing> resizings(const std::vector<layout::ParamSpec>& before, const std::vector<layout::ParamSpec>& after);

/// Writes a Hugging Face folder: config.json, model.safetensors (or pytorch_model.bin, which is
/// OSLO's merged file too), the tokenizer's files. With the optimizer (and a manifest in the source)
/// it is a merged checkpoint from which training resumes. ConfigError when `destination` exists.
/// Returns the number of tensors.
int64_t convert_to_hf(const Checkpoint& source, const std::string& destination,
                      const ConvertOptions& options);

/// Writes all tensors of one kind whole into `folder`, as convert_to_hf names the files, and notes
/// their checksums in `manifest`. Returns their number.
int64_t write_whole(const Checkpoint& source, const std::string& folder, bool optimizer,
                    const ConvertOptions& options, Manifest& manifest);

/// Writes a split checkpoint as a job on `mesh` would have, its optimizer tensors with it.
/// `description` is the source's model on any mesh.
int64_t convert_to_split(const Checkpoint& source, const std::string& destination,
                         const layout::ModelDescription& description, const layout::Mesh& mesh,
                         const ConvertOptions& options);

/// Writes OSLO's split files (parameters only) for `tensor_parallel` ranks and `stages`; a tied
/// tensor lies in the file of each stage that uses it.
int64_t convert_to_oslo(const Checkpoint& source, const std::string& destination,
                        const layout::ModelDescription& description, int tensor_parallel,
                        int stages, const ConvertOptions& options);

struct TensorDifference {
  std::string name;
  std::string what;  // "values", "shape", "only in A", "only in B"
  double max_abs = 0, max_rel = 0;
};

/// Tensors that differ, by name. Values are compared as numbers, whatever their types; a NaN equals
/// a NaN. The relative difference is taken of the larger magnitude. Optimizer tensors count when
/// both sides have them.
std::vector<TensorDifference> difference(const Checkpoint& a, const Checkpoint& b);

}  // namespace trireme::checkpoint
