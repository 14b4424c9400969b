// ViT (Dosovitskiy et al., 2021) and DeiT (Touvron et al., 2021), which has one token more. Names
// are those of Hugging Face's files.
#include <ATen/ATen.h>

#include "trireme/base/error.h"
#include "trireme/models/blocks/distillation.h"
#include "trireme/models/blocks/probe.h"
#include "trireme/models/blocks/vit_like.h"
#include "trireme/models/registry.h"

namespace trireme::models {
namespace {

/// Keys of the families that a ViT can begin with: what they add is dropped.
constexpr const char* kPretraining[] = {"decoder_num_attention_heads",
                                        "decoder_hidden_size",
                                        "decoder_num_hidden_layers",
                                        "decoder_intermediate_size",
                                        "mask_ratio",
                                        "norm_pix_loss",
                                        "projection_dim",
                                        "mlp_dim",
                                        "temperature",
                                        "momentum",
                                        "momentum_schedule"};

/// `resolved`: the tree with every key as it came to be.
VitConfig read(const base::Json& tree, const std::string& family, base::Json* resolved = nullptr) {
  VitConfig c;
  ConfigReader get(tree, family);
  visit(get, c);
  get.ignore({"head", "pooling", "normalize", "standardize"});
  for (const char* key : kPretraining) get.ignore({key});
  if (family == "deit")
    get.ignore({"teacher", "distillation", "distillation_alpha", "distillation_tau"});
  get.finish();
  if (resolved) {
    *resolved = get.resolved();
    for (const char* key : kPretraining) resolved->erase(key);
    write_sizes(*resolved);
  }
  c.sizes = read_sizes(tree);
  check(c);
  return c;
}

HeadKind kind_of(const base::Json& tree, const std::string& family) {
  std::vector<HeadKind> has = {HeadKind::image_classification, HeadKind::embedding};
  if (family == "deit") has.push_back(HeadKind::distillation);
  return head_of(tree, family, has, HeadKind::image_classification);
}

/// `teacher` has been read by whoever reads files: {path, model}.
DistillationSpec distillation_of(const base::Json& tree, const VitConfig& c, int tp) {
  DistillationSpec spec{.hidden = c.hidden_size,
                        .labels = labels_of(tree),
                        .norm = "deit.layernorm",
                        .norm_kind = {.eps = c.layer_norm_eps},
                        .deviation = c.initializer_range};
  std::string kind = "hard";
  base::Json own = base::Json::object();
  for (const char* key : {"distillation", "distillation_alpha", "distillation_tau"})
    if (tree.contains(key)) own[key] = tree[key];
  ConfigReader get(own, "deit");
  get("distillation", kind);
  get("distillation_alpha", spec.alpha, 0, 1);
  get("distillation_tau", spec.temperature, 1e-6, 1e6);
  if (kind != "hard" && kind != "soft") get.refuse("distillation", kind, "hard or soft");
  spec.soft = kind == "soft";
  if (!tree.contains("teacher") || tree["teacher"].is_null()) return spec;
  const base::Json& teacher = tree["teacher"];
  if (!teacher.is_object() || !teacher.contains("model"))
    get.refuse("teacher", teacher, "the folder of a model of images, in a run's configuration");
  if (labels_of(teacher["model"]) != spec.labels)
    throw base::ConfigError(fmt::format(
        "model.teacher knows {} classes, the model {}; give model.num_labels the teacher's",
        labels_of(teacher["model"]), spec.labels));
  spec.teacher = std::make_shared<const nn::ModelDef>(make_model(teacher["model"], tp));
  return spec;
}

nn::ModelDef make(const base::Json& tree, int tp, const std::string& base,
                  const std::vector<std::string>& tokens) {
  const VitConfig c = read(tree, base);
  const PatchSpec patches = vit_patches(c, base, tokens);
  const Positions positions{.fixed = patches.positions()};
  const BlockSpec block = vit_block(c, positions);
  const HeadKind kind = kind_of(tree, base);
  HeadSpec head{.kind = kind,
                .hidden = c.hidden_size,
                .norm = base + ".layernorm",
                .norm_kind = block.norm,
                .deviation = c.initializer_range,
                .problem = tree.value("problem_type", std::string()),
                .positions = positions};
  // Hugging Face's class looks at the first token.
  const RowPool pool = tree.contains("pooling") ? vector_of(tree).pool : RowPool::first;
  add_scores(head, {.classes = {.pool = pool, .out = "classifier"}}, labels_of(tree), tree);

  nn::ModelDef def;
  check_heads(c.num_attention_heads, tp, "num_attention_heads");
  add_rules(block, def.policy);
  def.layers.push_back(patch_link(patches));
  for (const std::string& name : vit_blocks(c, base)) def.layers.push_back(block_link(block, name));
  if (head.rows && tree.value("standardize", false)) {
    add_probe(head, def);
    return def;
  }
  if (kind != HeadKind::distillation) {
    add_head(head, def);
    return def;
  }
  DistillationSpec distillation = distillation_of(tree, c, tp);
  distillation.positions = positions;
  add_distillation(distillation, def);
  return def;
}

base::Json resolve(const base::Json& tree, const std::string& base, const std::string& class_name) {
  base::Json out;
  read(tree, base, &out);
  write_head(out, class_name, kind_of(tree, base), labels_of(tree));
  return out;
}

}  // namespace

Family vit_family() {
  return {[](const base::Json& tree, int tp) { return make(tree, tp, "vit", {"cls_token"}); },
          [](const base::Json& tree) { return resolve(tree, "vit", "ViT"); },
          {.architecture = "ViTForImageClassification",
           .heads = {HeadKind::image_classification, HeadKind::embedding},
           .tensor = "divides num_attention_heads",
           .tokenizer = ""},
          {"vit_mae", "moco_v3"}};
}

Family deit_family() {
  return {[](const base::Json& tree, int tp) {
            return make(tree, tp, "deit", {"cls_token", "distillation_token"});
          },
          [](const base::Json& tree) { return resolve(tree, "deit", "DeiT"); },
          {.architecture = "DeiTForImageClassification",
           .heads = {HeadKind::image_classification, HeadKind::distillation, HeadKind::embedding},
           .tensor = "divides num_attention_heads",
           .tokenizer = ""}};
}

}  // namespace trireme::models
