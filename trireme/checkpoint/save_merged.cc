#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <functional>

#include "trireme/base/error.h"
#include "trireme/base/hash.h"
#include "trireme/checkpoint/save.h"
#include "trireme/checkpoint/together.h"
#include "trireme/dist/device.h"
#include "trireme/dist/redistribute.h"
#include "trireme/formats/safetensors.h"

namespace trireme::checkpoint {
namespace {

using nn::TensorPart;

struct Owned {
  std::vector<TensorPart> parts;
  std::vector<HeldPart> described;
};

/// The parts that this rank saves where each element is saved by its owner.
Owned owned(const std::vector<TensorPart>& parts, bool optimizer, int rank) {
  Owned out;
  for (const TensorPart& part : parts) {
    if (!part.owner || (part.flat.size() == 0 && layout::element_count(part.global_shape) > 0))
      continue;
    base::check(part.data.defined() && part.data.is_contiguous() &&
                    part.data.numel() == part.flat.size(),
                "{}: its data is not the contiguous {} elements of the part", part.name,
                part.flat.size());
    out.parts.push_back(part);
    out.parts.back().data = dist::to_host(part.data);
    out.described.push_back({rank, part.name, part.global_shape, part.slice, part.flat,
                             dist::dtype_of(part.data), optimizer});
  }
  return out;
}

}  // namespace

void save_merged(const SaveRequest& request, const comm::Comm& world, const std::string& folder,
                 bool optimizer, Manifest& manifest) {
  const std::string file = optimizer ? "optimizer.safetensors" : "model.safetensors";
  Owned mine;
  std::vector<std::string> announced = together(world, [&] {
    mine = owned(optimizer ? request.optimizer : request.parameters, optimizer, world.rank());
    return to_text(mine.described);
  });
  std::map<std::string, std::vector<HeldPart>> parts_of;
  std::map<std::string, int64_t> covered;
  std::vector<formats::TensorEntry> order;
  for (int rank = 0; rank < world.size(); ++rank) {
    for (HeldPart& part : held_from_text(announced[static_cast<size_t>(rank)], rank)) {
      std::vector<HeldPart>& of_tensor = parts_of[part.name];
      if (of_tensor.empty()) order.push_back({part.name, part.dtype, part.shape});
      covered[part.name] += part.flat.size();
      of_tensor.push_back(std::move(part));
    }
  }
  if (order.empty()) return;
  for (const formats::TensorEntry& entry : order) {
    base::check(covered[entry.name] == layout::element_count(entry.shape),
                "{}: its owners hold {} elements of {}", entry.name, covered[entry.name],
                layout::element_count(entry.shape));
    for (const HeldPart& part : parts_of[entry.name])
      base::check(part.shape == entry.shape && part.dtype == entry.dtype,
                  "ranks disagree on the shape or type of {}", entry.name);
  }
  std::sort(order.begin(), order.end(), formats::written_before);
  std::map<std::string, at::Tensor> my_data;
  for (const TensorPart& part : mine.parts) my_data[part.name] = part.data;

  // A failure of rank 0 is kept until all parts have come in: the senders must not be left waiting.
  std::exception_ptr failure;
  auto attempt = [&](const std::function<void()>& work) {
    if (failure) return;
    try {
      work();
    } catch (const base::Error&) {
      failure = std::current_exception();
    }
  };
  std::unique_ptr<formats::SafetensorsWriter> writer;
  if (world.rank() == 0) {
    attempt([&] {
      writer = std::make_unique<formats::SafetensorsWriter>(
          folder + "/" + file, order, std::map<std::string, std::string>{{"format", "pt"}});
    });
  }
  uint64_t tag = 0;
  for (const formats::TensorEntry& entry : order) {
    int64_t size = base::size_of(entry.dtype);
    layout::Slice whole = layout::whole(entry.shape);
    std::vector<std::byte> tensor;
    if (world.rank() == 0)
      tensor.resize(
          static_cast<size_t>(formats::checked_bytes(entry.shape, entry.dtype, entry.name)));
    for (const HeldPart& part : parts_of[entry.name]) {
      tag += 2;
      int64_t bytes = part.flat.size() * size;
      std::byte asked{};  // a send waits for nobody: unasked, an owner would copy all that it has
      if (world.rank() != 0) {
        if (part.rank != world.rank()) continue;
        world.irecv(&asked, 1, 0, tag).wait();
        world.isend(my_data[entry.name].data_ptr(), bytes, 0, tag + 1).wait();
        continue;
      }
      std::vector<std::byte> received;
      const std::byte* from = nullptr;
      if (part.rank == 0) {
        from = static_cast<const std::byte*>(my_data[entry.name].data_ptr());
      } else {
        received.resize(static_cast<size_t>(bytes));
        world.isend(&asked, 1, part.rank, tag).wait();
        world.irecv(received.data(), bytes, part.rank, tag + 1).wait();
        from = received.data();
      }
      for_each_shared(part.slice, part.flat, whole, {0, whole.count()}, entry.shape,
                      [&](const layout::Overlap& run) {
                        std::memcpy(tensor.data() + run.to * size, from + run.from * size,
                                    static_cast<size_t>(run.count * size));
                      });
    }
    if (world.rank() == 0) {
      attempt([&] { writer->write(entry.name, tensor); });
      manifest.checksums[file][entry.name] = base::hash_bytes(tensor.data(), tensor.size());
    }
  }
  if (world.rank() == 0) attempt([&] { writer->close(); });
  together(world, [&] {
    if (failure) std::rethrow_exception(failure);
    return std::string();
  });
}

}  // namespace trireme::checkpoint
