#include "trireme/models/blocks/encoder_decoder_family.h"

#include <algorithm>

namespace trireme::models {
namespace {

std::vector<HeadKind> heads_of(const EncoderDecoderFamily& family) {
  std::vector<HeadKind> kinds = family.heads;
  kinds.insert(kinds.begin(), HeadKind::seq2seq);
  return kinds;
}

HeadKind kind_of(const EncoderDecoderFamily& family, base::Json tree) {
  // Both halves without a head.
  if (tree.value("architectures", base::Json()) == base::Json::array({family.class_name + "Model"})) tree.erase("architectures");
  return head_of(tree, family.name, heads_of(family), HeadKind::seq2seq);
}

}  // namespace

RowScores classes_at_end(int64_t end, double dropout) {
  const std::string head = "classification_head.";
  return {.pool = RowPool::last_end,
          .end = end,
          .dropout_first = dropout,
          .dense = head + "dense",
          .activation = "tanh",
          .dropout = dropout,
          .out = head + "out_proj"};
}

Family encoder_decoder_family(const EncoderDecoderFamily& family, std::function<Halves(ConfigReader& get, HeadKind kind)> read) {
  auto read_whole = [family, read](ConfigReader& get, HeadKind kind) {
    get.ignore({"head", "pooling", "normalize"});
    Halves halves = read(get, kind);
    get.finish();
    return halves;
  };
  auto make = [=](const base::Json& tree, int tp) {
    ConfigReader get(tree, family.name);
    const HeadKind kind = kind_of(family, tree);
    Halves halves = read_whole(get, kind);
    EncoderDecoderSpec& chain = halves.chain;
    chain.one_text = kind != HeadKind::seq2seq;
    chain.head.kind = kind;
    chain.head.problem = tree.value("problem_type", std::string());
    add_scores(chain.head, halves.scores, labels_of(tree, family.labels), tree);
    if (kind == HeadKind::causal_lm) return make_encoder(decoder_of(chain), tp);
    const bool alone = std::ranges::find(family.of_encoder, kind) != family.of_encoder.end();
    return alone ? make_encoder(encoder_of(chain), tp) : make_encoder_decoder(chain, tp);
  };
  auto resolve = [=](const base::Json& tree) {
    ConfigReader get(tree, family.name);
    const HeadKind kind = kind_of(family, tree);
    read_whole(get, kind);
    base::Json out = get.resolved();
    out["is_encoder_decoder"] = kind != HeadKind::causal_lm;
    out["is_decoder"] = kind == HeadKind::causal_lm;
    write_head(out, family.class_name + (kind == HeadKind::embedding ? "Encoder" : ""), kind, labels_of(tree, family.labels));
    return out;
  };
  return {make,
          resolve,
          {.architecture = family.class_name + suffix_of(HeadKind::seq2seq),
           .heads = heads_of(family),
           .tensor = family.tensor,
           .ties = family.ties}};
}

}  // namespace trireme::models
