#pragma once
// The one precompiled header of the LibTorch half: half of a file's compile time otherwise.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>
