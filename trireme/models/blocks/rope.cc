#include "trireme/models/blocks/rope.h"

#include <fmt/ranges.h>

#include "trireme/base/error.h"

namespace trireme::models {
namespace {

const char* const kTypes[] = {"default", "linear", "dynamic", "llama3", "yarn", "longrope"};

void read_factors(ConfigReader& get, const char* key, std::vector<double>& factors, int64_t count) {
  if (const base::Json* given = get.value_of(key)) {
    if (!given->is_array() || std::ssize(*given) != count) get.refuse(key, *given, fmt::format("{} numbers", count));
    factors = given->get<std::vector<double>>();
    get.note(key, *given);
  }
}

/// One tree of parameters; returns it filled in too.
nn::RotaryOptions read_tree(const base::Json& tree, const std::string& path, const RopeDefaults& defaults,
                            std::optional<int64_t> original, base::Json& filled) {
  nn::RotaryOptions o{.theta = defaults.theta, .max_positions = defaults.max_positions,
                      .original_max_positions = defaults.max_positions};
  ConfigReader get(tree, "rotary positions", path);
  double share = defaults.share;
  if (get.value_of("type")) get("type", o.type);
  get("rope_type", o.type);
  if (o.type == "su") o.type = "longrope";  // as Phi-3 once called it
  get.note("rope_type", o.type);
  get("rope_theta", o.theta, 1, 1e12);
  get("partial_rotary_factor", share, 0, 1);
  o.size = static_cast<int64_t>(static_cast<double>(defaults.head_size) * share);
  if (std::ranges::find(kTypes, o.type) == std::end(kTypes))
    get.refuse("rope_type", o.type, fmt::format("one of {}", fmt::join(kTypes, ", ")));
  if (o.type != "default") {
    if (get.value_of("original_max_position_embeddings"))
      get("original_max_position_embeddings", o.original_max_positions);
    if (original) o.original_max_positions = *original;
    if (get.value_of("factor")) {
      get("factor", o.factor, 1e-6, 1e9);
    } else if (o.type == "yarn" || o.type == "longrope") {
      o.factor = static_cast<double>(o.max_positions) / static_cast<double>(o.original_max_positions);
    } else {
      get.refuse("factor", {}, "a number, as type " + o.type + " needs");
    }
  }
  if (o.type == "yarn" || o.type == "longrope") {
    std::optional<double> attention;
    get("attention_factor", attention, 0, 1e9);
    o.attention_factor = attention.value_or(0);
    get.note("original_max_position_embeddings", o.original_max_positions);
  }
  if (o.type == "llama3") {
    get("low_freq_factor", o.low_freq_factor, 1e-9, 1e9);
    get("high_freq_factor", o.high_freq_factor, 1e-9, 1e9);
    get.note("original_max_position_embeddings", o.original_max_positions);
  }
  if (o.type == "yarn") {
    get("beta_fast", o.beta_fast, 1e-9, 1e9);
    get("beta_slow", o.beta_slow, 1e-9, 1e9);
    get("truncate", o.truncate);
    std::optional<double> mscale, all;
    get("mscale", mscale, 0, 1e9);
    get("mscale_all_dim", all, 0, 1e9);
    o.mscale = mscale.value_or(0);
    o.mscale_all_dim = all.value_or(0);
  }
  if (o.type == "longrope") {
    read_factors(get, "short_factor", o.short_factor, o.size / 2);
    read_factors(get, "long_factor", o.long_factor, o.size / 2);
    if (o.short_factor.empty() || o.long_factor.empty())
      get.refuse("short_factor", {}, "short_factor and long_factor, as type longrope needs");
  }
  get.ignore({"original_max_position_embeddings", "low_freq_factor", "high_freq_factor", "attention_factor", "factor", "type"});
  get.finish();
  filled = get.values();
  return o;
}

// The parameters with the old keys beside them put in.
base::Json collect(ConfigReader& get) {
  base::Json tree = base::Json::object();
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const base::Json* given = get.value_of(key);
    if (!given) continue;
    if (!given->is_object()) get.refuse(key, *given, "a mapping");
    for (const auto& [name, value] : given->items()) tree[name] = value;
  }
  return tree;
}

void put_default(base::Json& tree, ConfigReader& get, const char* key, const char* name) {
  const base::Json* given = get.value_of(key);
  if (given && (!tree.contains(name) || tree[name].is_null())) tree[name] = *given;
}

}  // namespace

nn::RotaryOptions read_rope(ConfigReader& get, const RopeDefaults& defaults) {
  base::Json tree = collect(get), filled;
  put_default(tree, get, defaults.theta_key, "rope_theta");
  put_default(tree, get, defaults.share_key, "partial_rotary_factor");
  std::optional<int64_t> original;
  if (get.value_of("original_max_position_embeddings")) get("original_max_position_embeddings", original);
  nn::RotaryOptions options = read_tree(tree, "model.rope_parameters", defaults, original, filled);
  get.note("rope_parameters", filled);
  return options;
}

std::vector<nn::RotaryOptions> read_ropes_by_layer_type(ConfigReader& get, const RopeDefaults& defaults) {
  base::Json nested = base::Json::object(), filled = base::Json::object();
  if (const base::Json* given = get.value_of("rope_parameters")) nested = *given;
  std::vector<nn::RotaryOptions> out;
  const struct {
    const char *type, *theta_key;
    double theta;
  } kinds[] = {{"full_attention", "rope_theta", 1e6}, {"sliding_attention", "rope_local_base_freq", 1e4}};
  for (const auto& kind : kinds) {
    base::Json tree = base::Json::object();
    if (nested.contains(kind.type) && !nested[kind.type].is_null()) tree = nested[kind.type];
    const base::Json* scaling = get.value_of("rope_scaling");
    if (scaling && out.empty())
      for (const auto& [name, value] : scaling->items()) tree[name] = value;
    put_default(tree, get, kind.theta_key, "rope_theta");
    RopeDefaults own = defaults;
    own.theta = kind.theta;
    out.push_back(read_tree(tree, fmt::format("model.rope_parameters.{}", kind.type), own, {}, filled[kind.type]));
  }
  for (const auto& [name, value] : nested.items())
    if (!filled.contains(name)) get.refuse("rope_parameters", nested, "full_attention and sliding_attention alone");
  get.note("rope_parameters", filled);
  return out;
}

}  // namespace trireme::models
