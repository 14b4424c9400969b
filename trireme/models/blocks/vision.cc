#include "trireme/models/blocks/vision.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/philox.h"
#include "trireme/models/blocks/sites.h"

namespace trireme::models {
namespace {

using layout::Init;
using layout::Sbp;
using nn::Builder;
using nn::Context;
using nn::State;

class Patches : public nn::Layer {
 public:
  // Every rank makes the whole stream and keeps its part.
  Patches(const Builder& b, const PatchSpec& spec) : spec_(spec), builder_(b) {
    const int64_t h = spec.hidden;
    weight_ = (b / spec.projection)
                  .param("weight", {h, spec.channels, spec.patch_height, spec.patch_width},
                         Init::normal(spec.deviation), Sbp::invariant());
    if (spec.bias)
      bias_ = (b / spec.projection).param("bias", {h}, Init::zeros(), Sbp::invariant());
    auto own = [&](const std::string& name, int64_t rows, bool one) {
      const layout::Shape shape = !spec.flat ? layout::Shape{1, rows, h}
                                  : one      ? layout::Shape{h}
                                             : layout::Shape{rows, h};
      return b.param(name, shape, Init::normal(spec.deviation), Sbp::invariant());
    };
    for (const std::string& name : spec.tokens) tokens_.push_back(own(name, 1, true));
    if (spec.fixed_places)
      places_ = b.buffer(spec.places, {1, spec.positions(), h},
                         Init::waves(spec.width / spec.patch_width, h));
    else if (!spec.places.empty())
      places_ = own(spec.places, spec.positions(), false);
    if (!spec.norm.empty()) norm_.emplace(b.whole() / spec.norm, h, spec.norm_kind);
  }

  State forward(State, const Context& given) override {
    const Context context = given.over(spec_.seen());
    const at::Tensor pixels =
        context.batch.tensors.at("pixel_values").to(weight_->data.scalar_type());
    if (pixels.dim() != 4 || pixels.size(1) != spec_.channels || pixels.size(2) != spec_.height ||
        pixels.size(3) != spec_.width)
      throw base::ConfigError(fmt::format(
          "pixel_values are [{}], but the model looks at [rows, {}, {}, {}]: change the data or "
          "model.num_channels and model.image_size",
          fmt::join(pixels.sizes(), ", "), spec_.channels, spec_.height, spec_.width));
    std::optional<at::Tensor> bias;
    if (bias_) bias = nn::use(bias_, context);
    at::Tensor x =
        at::conv2d(pixels, nn::use(weight_, context), bias, {spec_.patch_height, spec_.patch_width})
            .flatten(2)
            .transpose(1, 2);
    std::vector<at::Tensor> parts;
    for (nn::Param* token : tokens_)
      parts.push_back(nn::use(token, context)
                          .view({1, 1, spec_.hidden})
                          .expand({pixels.size(0), 1, spec_.hidden}));
    parts.push_back(x);
    x = at::cat(parts, 1);
    if (norm_ && spec_.norm_before_places) x = norm_->forward(x, context);
    if (places_) x = x + nn::use(places_, context).view({1, spec_.positions(), spec_.hidden});
    if (spec_.left_out > 0) x = keep(x, context);
    if (norm_ && !spec_.norm_before_places) x = norm_->forward(x, context);
    x = nn::dropout(x, spec_.dropout, builder_.layer_index(), kEmbedding, 0, context);
    return {{"hidden", own_stream(builder_, x, context)}};
  }

  nn::StateSpec describe(const nn::StateSpec&, const nn::BatchShape& shape) const override {
    const int64_t held = nn::stream_range(builder_, spec_.seen()).size();
    return {{"hidden", {shape.rows, held, spec_.hidden}, builder_.options().dtype, true}};
  }

  double flops(int64_t) const override {
    return 2.0 * static_cast<double>(spec_.patches() * spec_.hidden * spec_.channels *
                                     spec_.patch_height * spec_.patch_width);
  }

 private:
  at::Tensor keep(const at::Tensor& x, const Context& context) const {
    const int64_t tokens = std::ssize(tokens_);
    const at::Tensor places = kept_patches(spec_, context).add(tokens).unsqueeze(-1);
    return at::cat({x.narrow(1, 0, tokens), x.gather(1, places.expand({-1, -1, spec_.hidden}))}, 1);
  }

  PatchSpec spec_;
  Builder builder_;
  nn::Param* weight_;
  nn::Param* bias_ = nullptr;
  std::vector<nn::Param*> tokens_;
  nn::Param* places_ = nullptr;
  std::optional<AnyNorm> norm_;
};

}  // namespace

nn::LayerDef patch_link(const PatchSpec& spec) {
  return {"patches", false, [spec](Builder& b) { return std::make_unique<Patches>(b, spec); }, false, {"pixel_values"}};
}

at::Tensor kept_patches(const PatchSpec& spec, const Context& context) {
  at::Tensor noise;
  if (context.batch.tensors.has("noise")) {
    noise = context.batch.tensors.at("noise");
  } else {
    const at::Tensor samples = context.batch.samples.contiguous();
    const uint64_t key = context.random.key(0, kLeftOut);
    noise = at::empty({samples.numel(), spec.patches()}, at::kLong);
    auto* out = noise.mutable_data_ptr<int64_t>();
    for (int64_t row = 0; row < samples.numel(); ++row)
      for (int64_t patch = 0; patch < spec.patches(); ++patch) {
        const auto sample = static_cast<uint32_t>(samples.const_data_ptr<int64_t>()[row]);
        *out++ = base::philox(key, {static_cast<uint32_t>(patch / 4), 0, 0, sample})[patch % 4];
      }
  }
  return at::argsort(noise, true, 1, false).narrow(1, 0, spec.kept());
}

at::Tensor pixels_of_patches(const PatchSpec& spec, const at::Tensor& pixels) {
  const int64_t down = spec.height / spec.patch_height, along = spec.width / spec.patch_width;
  return pixels.reshape({-1, spec.channels, down, spec.patch_height, along, spec.patch_width})
      .permute({0, 2, 4, 3, 5, 1})
      .reshape({pixels.size(0), spec.patches(), -1});
}

std::vector<int64_t> numbers_of(const base::Json& tree, const char* key,
                                const std::vector<int64_t>& otherwise) {
  if (!tree.contains(key) || tree[key].is_null()) return otherwise;
  std::vector<int64_t> numbers;
  if (tree[key].is_array())
    for (const base::Json& one : tree[key])
      numbers.push_back(one.is_number_integer() ? one.get<int64_t>() : 0);
  if (numbers.empty() || *std::ranges::min_element(numbers) < 1)
    throw base::ConfigError(
        fmt::format("model.{} is {}, expected a list of numbers >= 1", key, tree[key].dump()));
  return numbers;
}

std::pair<int64_t, int64_t> size_of(const base::Json& tree, const char* key, int64_t otherwise) {
  if (!tree.contains(key) || tree[key].is_null()) return {otherwise, otherwise};
  const base::Json& given = tree[key];
  const bool pair = given.is_array() && given.size() == 2 && given[0].is_number_integer() &&
                    given[1].is_number_integer();
  std::pair<int64_t, int64_t> size;
  if (pair) size = {given[0].get<int64_t>(), given[1].get<int64_t>()};
  if (given.is_number_integer()) size = {given.get<int64_t>(), given.get<int64_t>()};
  if (size.first < 1 || size.second < 1)
    throw base::ConfigError(
        fmt::format("model.{} is {}, expected a number or [height, width]", key, given.dump()));
  return size;
}

ImageSizes read_sizes(const base::Json& tree, const ImageSizes& otherwise) {
  const ImageSizes sizes{.image = size_of(tree, "image_size", otherwise.image.first),
                         .patch = size_of(tree, "patch_size", otherwise.patch.first)};
  if (sizes.patch.first > sizes.image.first || sizes.patch.second > sizes.image.second)
    throw base::ConfigError("model.patch_size is larger than model.image_size; lower it");
  return sizes;
}

void check_divides(const ImageSizes& sizes) {
  const auto& [image, patch] = sizes;
  if (image.first % patch.first != 0 || image.second % patch.second != 0)
    throw base::ConfigError(fmt::format("model.patch_size {} x {} does not divide model.image_size {} x {}", patch.first,
                                        patch.second, image.first, image.second));
}

void write_sizes(base::Json& resolved, const ImageSizes& otherwise) {
  for (const auto& [key, size] : {std::pair{"image_size", otherwise.image}, {"patch_size", otherwise.patch}})
    if (!resolved.contains(key)) resolved[key] = size.first;
}

at::Tensor drop_path(const at::Tensor& x, double p, int layer, int site, const nn::Context& context) {
  if (p == 0 || context.mode == nn::Mode::eval) return x;
  const at::Tensor one = at::ones({x.size(0), 1, 1, 1}, x.options());
  return x * nn::dropout_by_coordinate(one, p, context.random.key(layer, site), context.batch.samples, 0, 0).squeeze(-1);
}

}  // namespace trireme::models
