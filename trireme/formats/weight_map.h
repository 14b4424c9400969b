#pragma once
// Which file of a Hugging Face folder holds which tensor: one file, or shards with an index beside
// them (model.safetensors.index.json, pytorch_model.bin.index.json).

#include <map>
#include <string>

namespace trireme::formats {

/// Tensor name -> path. Reads STEM.EXTENSION, or STEM.EXTENSION.index.json with its shards; the
/// extension is "safetensors" or "bin" (torch.save). Every shard is checked to hold exactly the
/// tensors that the index gives it. Empty when there is neither file.
std::map<std::string, std::string> locate_tensors(const std::string& folder,
                                                  const std::string& stem = "model",
                                                  const std::string& extension = "safetensors");

}  // namespace trireme::formats
