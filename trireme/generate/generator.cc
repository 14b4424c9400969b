#include "trireme/generate/generator.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/dist/device.h"
#include "trireme/dist/redistribute.h"

namespace trireme::generate {

void check_generates(const nn::ModelDef& def) {
  if (!def.generates)
    throw base::ConfigError("this model makes no text (an encoder, or of images); generate with a decoder or an encoder-decoder");
}

namespace {

void check(const Request& request, const nn::ModelDef& def) {
  request.sampling.check();
  request.beams.check();
  check_generates(def);
  const Sampling& sampling = request.sampling;
  if (request.beams.count > 1 && (sampling.temperature != 1 || sampling.top_k != 0 || sampling.top_p != 1)) {
    throw base::ConfigError(fmt::format("--num-beams {} searches and draws nothing, so --temperature, --top-k and --top-p "
                                        "have no meaning: leave them out, or --num-beams", request.beams.count));
  }
  if (request.max_new_tokens < 1)
    throw base::ConfigError(
        fmt::format("--max-new-tokens is {}, expected at least 1", request.max_new_tokens));
  for (size_t p = 0; p < request.prompts.size(); ++p) {
    const auto& prompt = request.prompts[p];
    if (prompt.empty())
      throw base::ConfigError(
          fmt::format("prompt {} has no tokens; give at least one character", p));
    const bool pair = def.decoder_start >= 0;
    if (pair && def.max_positions > 0 && std::ssize(prompt) > def.max_positions)
      throw base::ConfigError(fmt::format("prompt {} has {} tokens; the model's encoder knows {} positions: shorten it", p,
                                          prompt.size(), def.max_positions));
    auto length = (pair ? 1 : static_cast<int64_t>(prompt.size())) + request.max_new_tokens;
    if (def.max_positions > 0 && length > def.max_positions + 1) {
      throw base::ConfigError(
          fmt::format("prompt {} has {} tokens, and {} new ones make {}; the model knows {} "
                      "positions: shorten either",
                      p, prompt.size(), request.max_new_tokens, length, def.max_positions));
    }
    for (int64_t id : prompt)
      if (id < 0 || id >= def.vocab_size)
        throw base::ConfigError(fmt::format(
            "prompt {} holds token {}, but the model's vocabulary has {}; the tokenizer "
            "does not belong to the model",
            p, id, def.vocab_size));
  }
}

// What every pass needs.
struct Runner {
  nn::Model& model;
  const dist::DeviceMesh& mesh;
  pipeline::StepObserver* observer;
  nn::State run(nn::State state, const nn::Context& context) const;
  /// Has the link nothing to do: an encoder's, after the first token?
  bool over(int layer, const nn::Context& context) const {
    return model.def.layers[layer].source && context.batch.position > 0;
  }
};

nn::State Runner::run(nn::State state, const nn::Context& context) const {
  for (size_t i = 0; i < model.chunks[0].size(); ++i) {
    const int layer = model.layer_indices[0][i];
    if (over(layer, context)) continue;
    if (observer) observer->before_layer(layer, pipeline::Pass::forward);
    state = model.chunks[0][i]->forward(std::move(state), context);
    if (observer) observer->after_layer(layer, pipeline::Pass::forward);
  }
  return state;
}

// Sequences as they grow, and what they were made from.
struct Growing {
  nn::KvCache cache = {};
  at::Tensor source = {};  // [rows, seq] of an encoder-decoder
};

// One pass of `given` ids [rows, seq] through all stages; the logits of the last position, on the host
// of every rank of the last stage. The encoder runs with the first one.
at::Tensor forward(const Runner& runner, const at::Tensor& given, Growing& growing) {
  nn::KvCache& cache = growing.cache;
  nn::Model& model = runner.model;
  const dist::DeviceMesh& mesh = runner.mesh;
  const at::Tensor ids = dist::to_device(given, mesh.device);
  nn::Batch batch;
  if (growing.source.defined()) {
    growing.source = dist::to_device(growing.source, mesh.device);
    batch.tensors.set("input_ids", growing.source);
    batch.tensors.set("decoder_input_ids", ids);
    batch.source_seq = cache.seen == 0 ? growing.source.size(1) : 0;
  } else {
    batch.tensors.set("input_ids", ids);
  }
  batch.rows = ids.size(0);
  batch.seq = ids.size(1);
  batch.position = cache.seen;
  nn::Context context{
      .batch = batch, .mode = nn::Mode::eval, .anchor = at::zeros({}), .cache = &cache};
  context.fuse = model.options.fuse;
  int stage = mesh.coord.pp, last = mesh.mesh.size(layout::Axis::pp) - 1;
  nn::State state;
  const int begin = model.layer_indices[0].front(), end = model.layer_indices[0].back();
  if (stage > 0 && !runner.over(begin - 1, context)) {
    for (const nn::TensorSpec& spec :
         model.entering(begin, batch.shape())) {
      at::Tensor tensor = at::empty(spec.shape, at::TensorOptions(dist::scalar_type(spec.dtype)).device(mesh.device));
      if (tensor.numel() > 0) mesh.pp.irecv(dist::pointer(tensor, mesh.pp), tensor.nbytes(), stage - 1, 0).wait();
      state.set(spec.name, tensor);
    }
  }
  state = runner.run(std::move(state), context);
  cache.seen += batch.seq;
  if (stage == last)
    return dist::to_host(dist::all_gather(state.at("logits").select(1, -1), mesh.tp, 1, model.def.vocab_size));
  if (runner.over(end, context)) return {};
  for (auto& [name, tensor] : state.tensors()) {
    at::Tensor sent = tensor.contiguous();
    if (sent.numel() > 0) mesh.pp.isend(dist::pointer(sent, mesh.pp), sent.nbytes(), stage + 1, 0).wait();
  }
  return {};
}

// Continues prompts of one length together.
void continue_rows(const Runner& runner, const Request& request, const std::vector<int64_t>& rows,
                   std::vector<Continuation>& out) {
  const dist::DeviceMesh& mesh = runner.mesh;
  int last = mesh.mesh.size(layout::Axis::pp) - 1;
  std::vector<std::vector<int64_t>> ids;
  for (int64_t row : rows) ids.push_back(request.prompts[row]);
  auto count = static_cast<int64_t>(rows.size());
  at::Tensor input = at::empty({count, static_cast<int64_t>(ids[0].size())}, at::kLong);
  for (int64_t r = 0; r < count; ++r) input[r].copy_(at::tensor(ids[r], at::kLong));
  Growing growing;
  if (const int64_t start = runner.model.def.decoder_start; start >= 0) {
    growing.source = std::exchange(input, at::full({count, 1}, start, at::kLong));
    ids.assign(ids.size(), {start});
  }
  for (int64_t step = 0; step < request.max_new_tokens; ++step) {
    at::Tensor logits = forward(runner, input, growing);
    input = at::zeros({count, 1}, at::kLong);
    auto* chosen = input.data_ptr<int64_t>();
    if (mesh.coord.pp == last)
      for (int64_t r = 0; r < count; ++r)
        chosen[r] = next_token(logits[r], ids[r], request.sampling, rows[r]);
    if (last > 0) mesh.pp.broadcast(chosen, count, base::DType::i64, last).wait();
    bool open = false;
    for (int64_t r = 0; r < count; ++r) {
      Continuation& done = out[rows[r]];
      if (!done.finish_reason.empty()) continue;
      ids[r].push_back(chosen[r]);
      done.new_ids.push_back(chosen[r]);
      if (chosen[r] == request.end_token)
        done.finish_reason = "stop";
      else if (step + 1 == request.max_new_tokens)
        done.finish_reason = "length";
      else
        open = true;
    }
    if (!open) return;
  }
}

// Continues one prompt by beam search. The last stage searches; the others follow its orders.
Continuation search_beams(const Runner& runner, const Request& request, int64_t row) {
  const dist::DeviceMesh& mesh = runner.mesh;
  const int last = mesh.mesh.size(layout::Axis::pp) - 1;
  const int64_t beams = request.beams.count;
  auto tell = [&](std::vector<int64_t>& orders) {
    if (last > 0) mesh.pp.broadcast(orders.data(), std::ssize(orders), base::DType::i64, last).wait();
  };
  std::vector<int64_t> prompt = request.prompts[row];
  at::Tensor input = at::tensor(prompt, at::kLong).unsqueeze(0);
  Growing growing;
  if (const int64_t start = runner.model.def.decoder_start; start >= 0) {
    growing.source = std::exchange(input, at::full({1, 1}, start, at::kLong));
    prompt = {start};
  }
  BeamSearch search(prompt, request.beams, request.max_new_tokens, request.end_token);
  // Number of running sequences (0: done), for each its parent and its new token.
  std::vector<int64_t> orders(1 + 2 * beams);
  while (true) {
    at::Tensor logits = forward(runner, input, growing);
    if (mesh.coord.pp == last) {
      at::Tensor log_probs = logits.to(at::kDouble).log_softmax(-1);
      for (int64_t r = 0; r < log_probs.size(0); ++r)
        for (int64_t id : banned_by_ngrams(search.running()[r], request.sampling.no_repeat_ngram_size))
          log_probs[r][id] = -std::numeric_limits<double>::infinity();
      search.advance(log_probs);
      orders[0] = search.done() ? 0 : std::ssize(search.running());
      for (int64_t r = 0; r < orders[0]; ++r) {
        orders[1 + r] = search.parents()[r];
        orders[1 + beams + r] = search.running()[r].back();
      }
    }
    tell(orders);
    const int64_t count = orders[0];
    if (count == 0) break;
    at::Tensor all = at::tensor(orders, at::kLong), parents = dist::to_device(all.narrow(0, 1, count), mesh.device);
    for (auto* layers : {&growing.cache.layers, &growing.cache.cross})
      for (auto& [layer, kept] : *layers)
        kept = {kept.first.index_select(0, parents), kept.second.index_select(0, parents)};
    input = all.narrow(0, 1 + beams, count).unsqueeze(1).contiguous();
  }
  std::vector<int64_t> found(1 + request.max_new_tokens);  // its length, then the tokens
  if (mesh.coord.pp == last) {
    std::vector<int64_t> best = search.best();
    found[0] = std::ssize(best);
    std::copy(best.begin(), best.end(), found.begin() + 1);
  }
  tell(found);
  Continuation out{.new_ids = {found.begin() + 1, found.begin() + 1 + found[0]}, .finish_reason = "length"};
  if (out.new_ids.back() == request.end_token) out.finish_reason = "stop";
  return out;
}

}  // namespace

std::vector<Continuation> generate(nn::Model& model, const dist::DeviceMesh& mesh,
                                   const Request& request, pipeline::StepObserver* observer) {
  check(request, model.def);
  at::NoGradGuard no_grad;
  if (!mesh.device.is_cpu()) mesh.pp.connect();
  const Runner runner{model, mesh, observer};
  std::vector<Continuation> out(request.prompts.size());
  if (request.beams.count > 1) {
    for (size_t p = 0; p < out.size(); ++p)
      out[p] = search_beams(runner, request, static_cast<int64_t>(p));
  } else {
    std::map<size_t, std::vector<int64_t>> by_length;
    for (size_t p = 0; p < request.prompts.size(); ++p)
      by_length[request.prompts[p].size()].push_back(p);
    for (const auto& [length, rows] : by_length) continue_rows(runner, request, rows, out);
  }
  if (observer) observer->end_step();
  return out;
}

}  // namespace trireme::generate
