#pragma once
// Reads and writes a RunConfig: YAML with includes, references and dotted overrides.
//
//   includes: [base.yaml]                    # relative to this file; what stands here wins
//   train: {output_dir: "${env:RUNS,out}/${train.seed}"}
//
// Strict: an unknown key, a wrong type, a value out of range, a key given twice are ConfigErrors
// with file:line (or the override) and, for a key, the nearest name. All errors of a file come at
// once.

#include <string>
#include <string_view>
#include <vector>

#include "trireme/config/run_config.h"

namespace trireme::config {

/// Reads `path` and applies `overrides` ("train.dist.tensor_parallel_size=2"; values are YAML) in
/// order.
RunConfig load(const std::string& path, const std::vector<std::string>& overrides = {});

/// The same from text; `source` names it in errors, includes are relative to the working directory.
RunConfig parse(std::string_view text, const std::string& source,
                const std::vector<std::string>& overrides = {});

/// Every key with its value: loading it gives an equal RunConfig.
std::string to_yaml(const RunConfig& config);

/// All keys in Markdown, a table a section: type, default, range or choices, meaning.
std::string reference();

}  // namespace trireme::config
