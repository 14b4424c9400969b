// GPT-2's logits, loss and gradients against Hugging Face's own numbers (make_hf_gpt2.py), on each layout.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdlib>

#include "tests/support/shards.h"
#include "trireme/dist/redistribute.h"
#include "trireme/layout/stage_manager.h"
#include "trireme/models/registry.h"
#include "trireme/nn/builder.h"

namespace trireme {
namespace {

using layout::Mesh;

TEST(HfGpt2, OneStage) {
  std::string folder = std::string(std::getenv("TRIREME_HF_FIXTURES")) + "/";
  for (std::string variant : {"tied_fp32", "tied_fp64", "untied_relu_fp64"}) {
    for (bool sp : {false, true})
      for (int tp : {1, 2, 4}) {
        base::Json tree = base::read_json(folder + variant + "/config.json");
        test::Tensors weights = test::read_tensors(folder + variant + "/model.safetensors");
        test::Tensors expected = test::read_tensors(folder + variant + "/expected.safetensors");
        test::Gathered gathered;
        double loss = 0;
        at::Tensor logits;
        dist::run_ranks(tp, [&](dist::World& world) {
          dist::DeviceMesh mesh(world, Mesh({.pp = 1, .dp = 1, .tp = tp}));
          nn::BuildOptions options;
          options.dtype = variant.ends_with("64") ? base::DType::f64 : base::DType::f32;
          options.sequence_parallel = sp;
          auto model = nn::build_model(models::make_model(tree, tp), mesh, options, {4}, {0});
          model->store.materialize(1, true);
          for (nn::Param* p : model->store.params()) test::scatter(weights.at(p->spec.name), *p, p->data);
          nn::Batch batch;
          batch.tensors.set("input_ids", expected.at("input_ids"));
          batch.tensors.set("labels", expected.at("labels"));
          batch.rows = 6;
          batch.seq = 19;
          batch.samples = at::arange(6, at::kLong);
          nn::Context context{.batch = batch};
          context.anchor = at::ones({}, at::kFloat).requires_grad_(true);
          nn::State state;
          for (auto& layer : model->chunks[0]) state = layer->forward(std::move(state), context);
          at::Tensor sum = model->def.loss(state, batch, mesh.tp);
          double n = static_cast<double>(model->def.loss_weight(batch));
          torch::autograd::backward({sum}, {at::ones({}, at::kDouble) / n});
          model->store.audit(1);
          for (nn::Param* p : model->store.params()) {
            if (p->spec.layout.tp.is_replicated()) p->grad.copy_(dist::all_reduce(p->grad, mesh.tp));
            gathered.add("grad." + p->spec.name, *p, p->grad);
          }
          at::Tensor all = dist::all_gather(state.at("logits").detach(), mesh.tp, 2, 131);
          if (world.rank() == 0) loss = sum.item<double>() / n, logits = all;
        });
        test::Tensors want;
        for (auto& [k, v] : expected)
          if (k.starts_with("grad.")) want[k] = v;
        auto worst = test::worst(gathered.take(), want);
        double bound = variant.ends_with("64") ? 1e-9 : 1e-5;
        EXPECT_LT(worst.error, bound) << variant << " tp " << tp << " sp " << sp << " " << worst.name;
        EXPECT_LT(std::abs(loss / expected.at("loss").item<double>() - 1), bound) << variant << " tp " << tp;
        EXPECT_LT(test::error(logits, expected.at("logits"), 1), bound) << variant << " tp " << tp;
      }
  }
}

}  // namespace
}  // namespace trireme
