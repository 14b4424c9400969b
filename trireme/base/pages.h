#pragma once
// Pages of mapped files: what a process keeps of a file that it has looked at.

#include <cstddef>
#include <span>

namespace trireme::base {

/// Takes a part of a MappedFile's bytes out of this process's memory until it is looked at again.
void release_pages(std::span<const std::byte> part);

}  // namespace trireme::base
