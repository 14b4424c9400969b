#pragma once
// LlamaLike: what the families after Llama read alike: sizes, key/value heads, root-mean-square norms, gated MLP and rotary
// positions. A family adds what it does otherwise.
//
//   LlamaLike like(get, {.vocab_size = 32000, ...}, {.positions = 131072});
//   like.read_window(get, 4096);

#include <functional>
#include <optional>

#include "trireme/models/blocks/decoder.h"

namespace trireme::models {

struct LlamaLike {
  enum class Rope : uint8_t { one, by_layer_type };  // one kind for all layers, or one for those with a window
  struct Defaults {
    int64_t positions = 0;
    double theta = 10000;
    int64_t head_size = 0;  // 0: hidden / heads
    const char* activation_key = "hidden_act";
    Rope rope = Rope::one;
  };
  /// Reads what is common into `config`, which holds the family's defaults.
  LlamaLike(ConfigReader& get, DecoderConfig config, const Defaults& defaults);
  /// sliding_window on every layer.
  void read_window(ConfigReader& get, std::optional<int64_t> window);
  /// layer_types, or else `slides`, says which layers have the window.
  void read_layer_types(ConfigReader& get, int64_t window, const std::function<bool(int64_t layer)>& slides);

  DecoderConfig config;
};

/// The keys of the router's balance loss, which is taken where output_router_logits is on, as in Hugging Face.
void read_balance(ConfigReader& get, DecoderConfig& config);

}  // namespace trireme::models
