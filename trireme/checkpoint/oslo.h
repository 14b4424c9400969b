#pragma once
// OSLO's split files: pytorch_model_tp=T_pp=P.bin for each tensor-parallel rank and stage, beside
// config.json (OSLO 3 spells it pytorch_model_tp_T_pp_P_ep_0.bin). They say nothing of where a tensor was cut, so reading needs the model's
// description.
//
// OSLO gives every stage layers / stages blocks and the last stage the remainder too, and cuts as
// torch.chunk does: ceil(size / ranks) each, the last what is left; each block of a fused weight on
// its own. Its own files also hold stale copies of other stages' layers: a tensor that several
// stages' files hold is read from its owner's only.

#include <functional>
#include <string>

#include "trireme/checkpoint/index.h"
#include "trireme/layout/model_description.h"

namespace trireme::checkpoint {

/// "pytorch_model_tp=0_pp=1.bin"
std::string oslo_file(int tp, int pp);

/// Whether a folder holds such files, in either spelling.
bool has_oslo_files(const std::string& folder);

/// The model on OSLO's partition over `stages`. ConfigError when there are fewer blocks than
/// stages.
layout::ModelDescription oslo_partition(const layout::ModelDescription& description, int stages);

/// The slice that tensor-parallel rank `tp` of `size` holds. ConfigError when that is nothing.
layout::Slice oslo_slice(const layout::ParamSpec& spec, int tp, int size);

/// Where each parameter lies in the files of `folder`; `holds` tells whether a file has a tensor.
/// FormatError naming the file that a full set lacks; experts in files of their own are refused.
Index oslo_index(const std::string& folder, const layout::ModelDescription& description,
                 const std::function<bool(const std::string& file, const std::string& name)>& holds);

}  // namespace trireme::checkpoint
