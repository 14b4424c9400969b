#include "trireme/models/blocks/encoder.h"

#include <ATen/ATen.h>

#include <cmath>

#include "trireme/base/error.h"
#include "trireme/dist/redistribute.h"
#include "trireme/models/blocks/sites.h"
#include "trireme/models/family.h"
#include "trireme/nn/attention.h"

namespace trireme::models {
namespace {

using layout::Init;
using nn::Builder;
using nn::Context;
using nn::State;

/// Number of the bucket of each distance, [queries, keys]; the queries are the last of the keys'
/// places.
at::Tensor buckets_of(int64_t queries, int64_t keys, const RelativeBias& spec) {
  at::Tensor distance = at::arange(keys, at::kLong).unsqueeze(0) -
                        at::arange(keys - queries, keys, at::kLong).unsqueeze(1);
  int64_t buckets = spec.buckets;
  at::Tensor first = at::zeros_like(distance);
  if (spec.both_ways) {
    buckets /= 2;
    first = distance.gt(0).to(at::kLong) * buckets;
    distance = distance.abs();
  } else {
    distance = distance.neg().clamp_min(0);
  }
  // Half of the buckets hold one distance each, the others ever more.
  const int64_t exact = buckets / 2;
  const double growth =
      std::log(static_cast<double>(spec.max_distance) / static_cast<double>(exact));
  at::Tensor far =
      (at::log(distance.to(at::kFloat) / exact) / growth * (buckets - exact)).to(at::kLong) + exact;
  return first + at::where(distance.lt(exact), distance, far.clamp_max(buckets - 1));
}

/// The stream's x as column weights take it; once for all that share it.
at::Tensor gathered(const Builder& b, const at::Tensor& x, const Context& context) {
  return dist::redistribute(x, b.tp(), b.stream(), layout::Sbp::replicated(), context.seq);
}

class Attention {
 public:
  Attention(const Builder& root, const Builder& b, const BlockSpec& spec,
            const AttentionNames& names, bool cross)
      : spec_(spec),
        builder_(b),
        cross_(cross),
        layer_(b.layer_index()),
        query_(b / names.query, spec.hidden, spec.heads * spec.size_of_heads(),
               linear(spec, spec.deviations.query)),
        key_(b / names.key, spec.hidden, spec.heads * spec.size_of_heads(),
             linear(spec, spec.deviations.key)),
        value_(b / names.value, spec.hidden, spec.heads * spec.size_of_heads(),
               linear(spec, spec.deviations.value)),
        out_(b / names.out, spec.heads * spec.size_of_heads(), spec.hidden,
             {.init = Init::normal(spec.deviations.out),
              .bias = spec.bias,
              .granularity = spec.size_of_heads()}) {
    if (spec.relative && !cross)
      table_ = (root / spec.relative->table)
                   .param("weight", {spec.relative->buckets, spec.heads},
                          Init::normal(spec.relative->deviation), layout::Sbp::split(1));
  }

  at::Tensor forward(const at::Tensor& x, const at::Tensor& source, const Context& own,
                     const Context& sources) const {
    auto heads = [&](const at::Tensor& t) { return nn::split_heads(t, spec_.size_of_heads()); };
    const at::Tensor whole = gathered(builder_, x, own);
    at::Tensor q = heads(query_.local(whole, own)), k, v;
    auto make = [&] {
      const at::Tensor from = cross_ ? gathered(builder_, source, sources) : whole;
      k = heads(key_.local(from, sources));
      v = heads(value_.local(from, sources));
    };
    if (cross_ && own.cache) {
      // The encoder's output stays the same from token to token.
      auto [kept, added] = own.cache->cross.try_emplace(layer_);
      if (added) {
        make();
        kept->second = {k, v};
      }
      std::tie(k, v) = kept->second;
    } else {
      make();
    }
    const nn::AttentionOptions options{
        .scale = spec_.scale > 0 ? spec_.scale : 1 / std::sqrt(static_cast<double>(q.size(3))),
        .causal = spec_.causal && !cross_,
        .dropout = spec_.attention_dropout,
        .layer = layer_,
        .site = cross_ ? kCrossWeights : kAttentionWeights,
        .first_head = q.size(1) * builder_.tp().rank()};
    nn::AttentionMask mask;
    const std::string keys = cross_ ? "attention_mask" : spec_.mask;
    if (!keys.empty() && own.batch.tensors.has(keys)) mask.keys = own.batch.tensors.at(keys);
    if (table_) {
      const int64_t seen = options.causal && own.cache ? own.cache->seen : 0;
      at::Tensor buckets = buckets_of(q.size(2), seen + k.size(2), *spec_.relative);
      mask.bias = at::embedding(nn::use(table_, own), buckets.to(q.device())).permute({2, 0, 1}).unsqueeze(0);
    }
    return out_.forward(nn::merge_heads(nn::attention(q, k, v, options, mask, own)), own);
  }

 private:
  static nn::Linear::Options linear(const BlockSpec& spec, double deviation) {
    return {.init = Init::normal(deviation),
            .bias = spec.bias && spec.qkv_bias,
            .granularity = spec.size_of_heads()};
  }

  BlockSpec spec_;
  Builder builder_;
  bool cross_;
  int layer_;
  nn::Linear query_, key_, value_, out_;
  nn::Param* table_ = nullptr;
};

class Mlp {
 public:
  Mlp(const Builder& b, const BlockSpec& spec)
      : spec_(spec),
        builder_(b),
        layer_(b.layer_index()),
        first_(layout::split_range(spec.inner, b.tp().size(), b.tp().rank()).begin),
        activation_(nn::find_activation(spec.activation)),
        in_(b / spec.mlp.in, spec.hidden, spec.inner, linear(spec, spec.deviations.mlp_in)),
        out_(b / spec.mlp.out, spec.inner, spec.hidden, linear(spec, spec.deviations.mlp_out)) {
    if (!spec.mlp.gate.empty())
      gate_.emplace(b / spec.mlp.gate, spec.hidden, spec.inner,
                    linear(spec, spec.deviations.mlp_in));
  }

  at::Tensor forward(const at::Tensor& x, const Context& context) const {
    const at::Tensor whole = gathered(builder_, x, context);
    const at::Tensor inner = gate_ ? nn::gated(activation_, gate_->local(whole, context), in_.local(whole, context), context)
                             : activation_(in_.local(whole, context));
    return out_.forward(nn::dropout(inner, spec_.inner_dropout, layer_, kInner, 0, context, first_), context);
  }

 private:
  static nn::Linear::Options linear(const BlockSpec& spec, double deviation) {
    return {.init = Init::normal(deviation), .bias = spec.bias};
  }

  BlockSpec spec_;
  Builder builder_;
  int layer_;
  int64_t first_;
  nn::Activation activation_;
  nn::Linear in_, out_;
  std::optional<nn::Linear> gate_;
};

class Block : public nn::Layer {
 public:
  Block(const Builder& root, const Builder& b, const BlockSpec& spec)
      : spec_(spec),
        builder_(b),
        attention_(root, b, spec, spec.self, false),
        attention_norm_(b / spec.self.norm, spec.hidden, spec.norm),
        mlp_(b, spec),
        mlp_norm_(b / spec.mlp.norm, spec.hidden, spec.norm) {
    if (!spec.cross) return;
    cross_.emplace(root, b, spec, *spec.cross, true);
    cross_norm_.emplace(b / spec.cross->norm, spec.hidden, spec.norm);
  }

  State forward(State in, const Context& given) override {
    const nn::BatchShape shape = given.batch.shape();
    const Context own = given.over(spec_.positions.of(shape)),
                  sources = given.over(spec_.memory.of(shape));
    at::Tensor x = in.at("hidden");
    x = branch(x, attention_norm_, kAttentionOutput, own,
               [&](const at::Tensor& y) { return attention_.forward(y, y, own, own); });
    if (cross_)
      x = branch(x, *cross_norm_, kCrossOutput, own, [&](const at::Tensor& y) {
        return cross_->forward(y, in.at("memory"), own, sources);
      });
    x = branch(x, mlp_norm_, kMlpOutput, own,
               [&](const at::Tensor& y) { return mlp_.forward(y, own); });
    in.set("hidden", x);
    return in;
  }

  double flops(int64_t seq) const override {
    const double tokens = spec_.positions.fixed > 0 ? static_cast<double>(spec_.positions.fixed)
                                                    : static_cast<double>(seq);
    const double wide = static_cast<double>(spec_.heads * spec_.size_of_heads()),
                 hidden = static_cast<double>(spec_.hidden);
    const double attention = 4 * hidden * wide + 2 * tokens * wide;
    const double mlp = (spec_.mlp.gate.empty() ? 2 : 3) * hidden * static_cast<double>(spec_.inner);
    return tokens * 2 * ((spec_.cross ? 2 : 1) * attention + mlp);
  }

 private:
  template <class Branch>
  at::Tensor branch(const at::Tensor& x, const AnyNorm& norm, Site site, const Context& context,
                    const Branch& make) const {
    at::Tensor y = make(spec_.norm_first ? norm.forward(x, context) : x);
    const bool drops = site == kMlpOutput ? spec_.mlp_dropout : spec_.attention_out_dropout;
    y = nn::add_dropped(x, y, drops ? spec_.dropout : 0, builder_.layer_index(), site,
                        nn::stream_range(builder_, context.seq).begin, context);
    return spec_.norm_first ? y : norm.forward(y, context);
  }

  BlockSpec spec_;
  Builder builder_;
  Attention attention_;
  AnyNorm attention_norm_;
  std::optional<Attention> cross_;
  std::optional<AnyNorm> cross_norm_;
  Mlp mlp_;
  AnyNorm mlp_norm_;
};

class Embeddings {
 public:
  Embeddings(const Builder& b, const EmbeddingSpec& spec)
      : spec_(spec),
        builder_(b),
        words_(b / spec.words, spec.vocab, spec.features, Init::normal(spec.deviation)) {
    auto table = [&](const std::string& name, int64_t rows) {
      return name.empty() ? nullptr
                          : (b / name).param("weight", {rows, spec.features},
                                             Init::normal(spec.deviation), b.stream_param());
    };
    places_ = table(spec.places, spec.max_places);
    kinds_ = table(spec.types, spec.kinds);
    if (!spec.norm.empty()) norm_.emplace(b / spec.norm, spec.features, spec.norm_kind);
    if (!spec.projection.empty())
      projection_.emplace(b / spec.projection, spec.features, spec.hidden,
                          nn::Linear::Options{.init = Init::normal(spec.deviation)});
  }

  at::Tensor forward(const Context& given) const {
    const Context context = given.over(spec_.positions.of(given.batch.shape()));
    const layout::Range held = nn::stream_range(builder_, context.seq);
    const State& batch = context.batch.tensors;
    at::Tensor ids = batch.at(spec_.ids);
    if (const at::Tensor first = first_ids(ids); first.defined())
      ids = at::cat({first, ids.narrow(1, 0, ids.size(1) - 1)}, 1);
    at::Tensor x = words_.embed(ids, context, spec_.padding);
    if (spec_.scale != 1) x = x * spec_.scale;
    if (norm_ && spec_.norm_before_places) x = norm_->forward(x, context);
    if (kinds_) {
      const at::Tensor kinds = batch.has("token_type_ids")
                                   ? batch.at("token_type_ids").narrow(1, held.begin, held.size())
                                   : at::zeros({1, held.size()}, at::kLong);
      x = x + nn::embedding(kinds, kinds_, 0, context);
    }
    if (places_)
      x = x + nn::embedding(places(ids, held, context), places_, 0, context,
                            spec_.places_skip_padding ? spec_.padding : -1);
    if (norm_ && !spec_.norm_before_places) x = norm_->forward(x, context);
    x = nn::dropout(x, spec_.dropout, builder_.layer_index(), kEmbedding, held.begin, context);
    return projection_ ? projection_->forward(x, context) : x;
  }

  nn::TensorSpec describe(const nn::BatchShape& shape) const {
    const int64_t held = nn::stream_range(builder_, spec_.positions.of(shape)).size();
    return {"hidden", {shape.rows, held, spec_.hidden}, builder_.options().dtype, true};
  }

 private:
  /// What stands before ids that are moved on, [rows, 1]; nothing where they are not.
  at::Tensor first_ids(const at::Tensor& ids) const {
    if (spec_.shifted_behind_end) return ids.gather(1, (ids.ne(spec_.padding).sum(1, true) - 1).clamp_min(0));
    return spec_.shifted_behind ? at::full({ids.size(0), 1}, *spec_.shifted_behind, ids.options()) : at::Tensor();
  }
  at::Tensor places(const at::Tensor& ids, layout::Range held, const Context& context) const {
    if (spec_.places_skip_padding) {
      const at::Tensor counts = ids.ne(spec_.padding).to(at::kLong);
      return (counts.cumsum(1) * counts + spec_.padding).narrow(1, held.begin, held.size());
    }
    const int64_t before = spec_.positions.source ? 0 : context.batch.position;
    return at::arange(held.begin, held.end, at::kLong) + before + spec_.first_place;
  }

  EmbeddingSpec spec_;
  Builder builder_;
  nn::VocabTable words_;
  nn::Param* places_ = nullptr;
  nn::Param* kinds_ = nullptr;
  std::optional<AnyNorm> norm_;
  std::optional<nn::Linear> projection_;
};

class EmbeddingLink : public nn::Layer {
 public:
  EmbeddingLink(const Builder& b, const EmbeddingSpec& spec) : embeddings_(b, spec) {}
  State forward(State, const Context& context) override {
    return {{"hidden", embeddings_.forward(context)}};
  }
  nn::StateSpec describe(const nn::StateSpec&, const nn::BatchShape& shape) const override {
    return {embeddings_.describe(shape)};
  }

 private:
  Embeddings embeddings_;
};

/// Between the halves: the encoder's stream becomes the memory, the decoder's begins.
class Turn : public nn::Layer {
 public:
  Turn(const Builder& b, const EncoderDecoderSpec& spec)
      : builder_(b), block_(spec.encoder), dropout_(spec.norm_dropout), embeddings_(b, spec.target) {
    if (!spec.encoder_norm.empty())
      norm_.emplace(b / spec.encoder_norm, spec.encoder.hidden, spec.encoder.norm);
  }

  State forward(State in, const Context& context) override {
    return {{"hidden", embeddings_.forward(context)}, {"memory", memory(in, context)}};
  }

  nn::StateSpec describe(const nn::StateSpec&, const nn::BatchShape& shape) const override {
    const int64_t held = nn::stream_range(builder_, block_.positions.of(shape)).size();
    return {embeddings_.describe(shape),
            {"memory", {shape.rows, held, block_.hidden}, builder_.options().dtype, true}};
  }

 private:
  at::Tensor memory(const State& in, const Context& given) const {
    const Context context = given.over(block_.positions.of(given.batch.shape()));
    // In generation all that is needed of it is in the cache after the first token.
    if (context.seq == 0)
      return at::empty({context.batch.rows, 0, block_.hidden}, embeddings_options());
    at::Tensor x = in.at("hidden");
    if (!norm_) return x;
    return nn::dropout(norm_->forward(x, context), dropout_, builder_.layer_index(), kNorm,
                       nn::stream_range(builder_, context.seq).begin, context);
  }
  at::TensorOptions embeddings_options() const {
    return at::TensorOptions(dist::scalar_type(builder_.options().dtype)).device(builder_.device());
  }

  Builder builder_;
  BlockSpec block_;
  double dropout_;
  Embeddings embeddings_;
  std::optional<AnyNorm> norm_;
};

nn::LayerDef embedding_link(const std::string& name, const EmbeddingSpec& spec) {
  return {name, false, [spec](Builder& b) { return std::make_unique<EmbeddingLink>(b, spec); }};
}

void add_rules(const EmbeddingSpec& spec, nn::Policy& policy) {
  policy.push_back({spec.words, nn::Style::vocab});
}

}  // namespace

void visit(ConfigReader& get, EncoderKeys& c) {
  get("hidden_size", c.hidden_size);
  get("num_hidden_layers", c.num_hidden_layers);
  get("num_attention_heads", c.num_attention_heads);
  get("intermediate_size", c.intermediate_size);
  get("initializer_range", c.initializer_range, 0, 10);
  get("layer_norm_eps", c.layer_norm_eps, 0, 1);
  get("hidden_act", c.hidden_act);
}

void visit_dropouts(ConfigReader& get, EncoderKeys& c) {
  get("hidden_dropout_prob", c.hidden_dropout_prob, 0, 0.999);
  get("attention_probs_dropout_prob", c.attention_probs_dropout_prob, 0, 0.999);
}

void check(const EncoderKeys& c) {
  check_divides("num_attention_heads", c.num_attention_heads, "hidden_size", c.hidden_size);
  nn::find_activation(c.hidden_act);
}

std::vector<std::string> numbered(const std::string& prefix, int64_t count) {
  std::vector<std::string> names;
  for (int64_t i = 0; i < count; ++i) names.push_back(fmt::format("{}.{}", prefix, i));
  return names;
}

nn::LayerDef block_link(const BlockSpec& spec, const std::string& name) {
  return {name, true,
          [spec, name](Builder& b) { return std::make_unique<Block>(b, b / name, spec); }};
}

void keep_whole(nn::ModelDef& def) {
  for (nn::LayerDef& layer : def.layers)
    layer.make = [make = layer.make](Builder& b) {
      Builder whole = b.whole();
      return make(whole);
    };
}

void add_rules(const BlockSpec& spec, nn::Policy& policy) {
  auto add = [&](const AttentionNames& names) {
    for (const std::string& name : {names.query, names.key, names.value})
      policy.push_back({"*." + name, nn::Style::column});
    policy.push_back({"*." + names.out, nn::Style::row});
  };
  add(spec.self);
  if (spec.cross) add(*spec.cross);
  policy.push_back({"*." + spec.mlp.in, nn::Style::column});
  if (!spec.mlp.gate.empty()) policy.push_back({"*." + spec.mlp.gate, nn::Style::column});
  policy.push_back({"*." + spec.mlp.out, nn::Style::row});
}

void check_heads(int64_t heads, int tp, const std::string& key) {
  if (heads % tp != 0)
    throw base::ConfigError(
        fmt::format("tensor_parallel_size {} does not divide model.{} {}; choose a divisor of {}",
                    tp, key, heads, heads));
}

nn::ModelDef make_encoder(const EncoderSpec& spec, int tp) {
  check_heads(spec.block.heads, tp, "num_attention_heads");
  nn::ModelDef def;
  def.vocab_size = spec.embeddings.vocab;
  def.max_positions = spec.embeddings.max_places - spec.embeddings.first_place;
  if (spec.embeddings.places_skip_padding) def.max_positions -= spec.embeddings.padding + 1;
  add_rules(spec.embeddings, def.policy);
  add_rules(spec.block, def.policy);
  def.layers.push_back(embedding_link("embeddings", spec.embeddings));
  def.layers.back().inputs = {spec.embeddings.ids, "token_type_ids"};
  for (const std::string& name : spec.blocks) def.layers.push_back(block_link(spec.block, name));
  def.trains_on = {{spec.embeddings.ids, spec.head.kind == HeadKind::multiple_choice ? 2 : 1}};
  add_head(spec.head, def);
  return def;
}

nn::ModelDef make_encoder_decoder(const EncoderDecoderSpec& given, int tp) {
  EncoderDecoderSpec spec = given;
  check_heads(spec.encoder.heads, tp, "encoder_attention_heads");
  check_heads(spec.decoder.heads, tp, "decoder_attention_heads");
  nn::ModelDef def;
  const bool two_texts = !spec.one_text;
  if (two_texts) {
    def.decoder_start = spec.start;
    spec.target.ids = "decoder_input_ids";
  } else if (spec.behind_end) {
    spec.target.shifted_behind_end = true;
  } else {
    spec.target.shifted_behind = spec.start;
  }
  spec.decoder.mask = "decoder_attention_mask";
  spec.source.positions.source = spec.encoder.positions.source = two_texts;
  spec.encoder.memory.source = spec.decoder.memory.source = two_texts;
  def.vocab_size = spec.target.vocab;
  if (!spec.target.places.empty())
    def.max_positions = spec.target.max_places - spec.target.first_place;
  add_rules(spec.source, def.policy);
  add_rules(spec.encoder, def.policy);
  add_rules(spec.decoder, def.policy);
  def.trains_on = {{spec.source.ids}};
  def.layers.push_back(embedding_link("source", spec.source));
  for (const std::string& name : spec.encoder_blocks)
    def.layers.push_back(block_link(spec.encoder, name));
  for (nn::LayerDef& layer : def.layers) layer.source = true;
  def.layers.push_back(
      {"turn", false, [spec](Builder& b) { return std::make_unique<Turn>(b, spec); }});
  for (const std::string& name : spec.decoder_blocks)
    def.layers.push_back(block_link(spec.decoder, name));
  add_head(spec.head, def);
  return def;
}

EncoderSpec encoder_of(const EncoderDecoderSpec& spec) {
  EncoderSpec half{.embeddings = spec.source, .block = spec.encoder, .blocks = spec.encoder_blocks, .head = spec.head};
  half.head.norm = spec.encoder_norm;
  return half;
}

EncoderSpec decoder_of(const EncoderDecoderSpec& spec) {
  EncoderSpec half{.embeddings = spec.target, .block = spec.decoder, .blocks = spec.decoder_blocks, .head = spec.head};
  half.block.cross.reset();
  return half;
}

}  // namespace trireme::models
