#pragma once
// A device for tests where no GPU is: memory that the host cannot read, on LibTorch's PrivateUse1. Its operations run
// on the CPU, on copies; an operation on tensors of both is an error, as on a GPU. So what passes here keeps host and
// device apart, whichever the device. It says nothing about streams: all is done when a call returns.

#include <functional>

#include "trireme/dist/world.h"

namespace trireme::test {

/// Runs `body` as `ranks` ranks on threads, each on a fake device of its own, which their groups take memory of. At
/// most 16 ranks. Rethrows the first failure.
void run_on_fake_devices(int ranks, const std::function<void(dist::World&)>& body);

/// One such device.
c10::Device fake_device(int index = 0);

}  // namespace trireme::test
