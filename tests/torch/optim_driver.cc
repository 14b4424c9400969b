// Steps parameters for the Python oracle: a JSON object a line on stdin, its answer a line on stdout. Question:
// {"optim": {the section optim}, "weight_decay", "lr", "shapes": [[...]], "params": [[...]], "grads": [[[...] per
// parameter] per step]}; answer: the parameters after each step.
#include <ATen/ATen.h>

#include <deque>
#include <iostream>

#include "trireme/config/load.h"
#include "trireme/optim/optimizers.h"

namespace trireme::optim {
namespace {

using base::Json;

at::Tensor tensor(const Json& numbers) { return at::tensor(numbers.get<std::vector<double>>(), at::kDouble); }

Json answer(const Json& q) {
  const config::Optim options = config::parse(Json{{"optim", q.at("optim")}}.dump(), "the question").optim;
  const dist::DeviceMesh mesh;
  std::deque<nn::Param> params;
  std::vector<WholeTensors::Place> places;
  for (size_t i = 0; i < q.at("shapes").size(); ++i) {
    nn::Param& param = params.emplace_back();
    const auto shape = q["shapes"][i].get<layout::Shape>();
    param.spec = {.name = fmt::format("p{}", i), .shape = shape, .dtype = base::DType::f64};
    param.slice = layout::whole(shape);
    param.data = tensor(q.at("params")[i]);
    places.push_back({&param, {{0, param.slice.count()}}});
  }
  const auto rule = make_optimizer(options, {mesh, places});
  std::vector<Segment> segments;
  for (nn::Param& param : params) {
    const int64_t count = param.slice.count();
    Segment& segment = segments.emplace_back();
    segment.param = &param;
    segment.flat = {0, count};
    segment.data = param.data;
    segment.grad = at::zeros_like(param.data);
    segment.weight_decay = q.at("weight_decay");
    for (const State& state : rule->states(param.spec))
      segment.state.push_back(at::zeros({state.shape ? layout::element_count(*state.shape) : count}, at::kDouble));
  }
  Json steps = Json::array();
  for (const Json& grads : q.at("grads")) {
    for (size_t i = 0; i < segments.size(); ++i) segments[i].grad.copy_(tensor(grads[i]));
    rule->step(segments, q.at("lr"), std::ssize(steps) + 1, 1.0);
    Json& now = steps.emplace_back(Json::array());
    for (const nn::Param& param : params)
      now.push_back(std::vector<double>(param.data.const_data_ptr<double>(), param.data.const_data_ptr<double>() + param.data.numel()));
  }
  return steps;
}

}  // namespace
}  // namespace trireme::optim

int main() {
  for (std::string line; std::getline(std::cin, line);)
    std::cout << trireme::optim::answer(trireme::base::Json::parse(line)).dump() << std::endl;
}
