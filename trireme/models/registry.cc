#include "trireme/models/registry.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/nearest.h"
#include "trireme/models/family.h"
#include "trireme/models/vocabulary.h"

namespace trireme::models {
namespace {

/// Empty: the tree names none.
std::string family_name(const base::Json& tree) {
  for (const char* key : {"family", "model_type"})
    if (tree.contains(key) && tree[key].is_string()) return tree[key].get<std::string>();
  return "";
}

const Family& find_family(const base::Json& tree) {
  if (const std::string name = family_name(tree); !name.empty()) return families().get(name);
  throw base::ConfigError(
      fmt::format("model.family is not given; known families: {}", fmt::join(families().names(), ", ")));
}

}  // namespace

base::Registry<Family>& families() {
  static base::Registry<Family> all("model.family", {
                                                       {"gpt2", gpt2_family()},
                                                       {"gpt_neo", gpt_neo_family()},
                                                       {"gptj", gptj_family()},
                                                       {"gpt_neox", gpt_neox_family()},
                                                       {"opt", opt_family()},
                                                       {"bloom", bloom_family()},
                                                       {"llama", llama_family()},
                                                       {"mistral", mistral_family()},
                                                       {"qwen2", qwen2_family()},
                                                       {"qwen3", qwen3_family()},
                                                       {"gemma2", gemma2_family()},
                                                       {"gemma3_text", gemma3_family()},
                                                       {"phi3", phi3_family()},
                                                       {"mixtral", mixtral_family()},
                                                       {"qwen3_moe", qwen3_moe_family()},
                                                       {"bert", bert_family()},
                                                       {"megatron-bert", megatron_bert_family()},
                                                       {"roberta", roberta_family()},
                                                       {"electra", electra_family()},
                                                       {"albert", albert_family()},
                                                       {"distilbert", distilbert_family()},
                                                       {"t5", t5_family()},
                                                       {"mt5", mt5_family()},
                                                       {"bart", bart_family()},
                                                       {"mbart", mbart_family()},
                                                       {"blenderbot", blenderbot_family()},
                                                       {"blenderbot-small", blenderbot_small_family()},
                                                       {"vit", vit_family()},
                                                       {"deit", deit_family()},
                                                       {"vit_mae", vit_mae_family()},
                                                       {"moco_v3", moco_v3_family()},
                                                       {"clip", clip_family()},
                                                       {"swin", swin_family()},
                                                       {"resmlp", resmlp_family()},
                                                       {"swinv2", swinv2_family()},
                                                   });
  return all;
}

namespace {

/// null says nothing, as an absent key; heads read this one as a word.
base::Json without_null_problem(base::Json tree) {
  if (tree.contains("problem_type") && tree["problem_type"].is_null()) tree.erase("problem_type");
  return tree;
}

}  // namespace

nn::ModelDef make_model(const base::Json& tree, int tp) { return find_family(tree).make(without_null_problem(tree), tp); }
base::Json resolve_model(const base::Json& tree) { return find_family(tree).resolve(without_null_problem(tree)); }

base::Json with_vocabulary(const base::Json& tree, int64_t size) {
  if (make_model(tree, 1).vocab_size == 0)
    throw base::ConfigError(fmt::format("a model of family {} has no vocabulary that could be resized", family_name(tree)));
  base::Json out = tree;
  const bool nested = out.contains("text_config") && out["text_config"].is_object();
  (nested ? out["text_config"] : out)["vocab_size"] = size;
  base::check(make_model(out, 1).vocab_size == size, "family {} does not read its vocab_size", family_name(tree));
  return out;
}

void check_begins_with(const base::Json& given, const base::Json& held, const std::string& pretrained) {
  const std::string wanted = family_name(given), there = family_name(held);
  if (wanted.empty() || there.empty() || wanted == there) return;
  std::vector<std::string> fitting = families().get(wanted).begins_with;
  if (std::ranges::find(fitting, there) != fitting.end()) return;
  fitting.insert(fitting.begin(), wanted);
  throw base::ConfigError(
      fmt::format("model.family is {}, but model.pretrained {} holds a model of family {}: leave model.family out, or name a "
                  "folder of family {}",
                  wanted, pretrained, there, fmt::join(fitting, " or ")));
}

void check_divides(const char* part_key, int64_t part, const char* whole_key, int64_t whole) {
  if (whole % part != 0)
    throw base::ConfigError(
        fmt::format("model.{} {} does not divide model.{} {}", part_key, part, whole_key, whole));
}

ConfigReader::ConfigReader(const base::Json& tree, std::string family, std::string path)
    : tree_(tree), family_(std::move(family)), path_(std::move(path)) {
  // What any Hugging Face configuration may say, and those of a model's parts do: about files and Python, tokens, labels,
  // and how to generate. None of it changes the arithmetic of training; a family reads what concerns it.
  ignore({"family", "model_type", "pretrained", "architectures", "torch_dtype", "dtype", "transformers_version", "_name_or_path",
          "_commit_hash", "use_cache", "task_specific_params", "return_dict", "output_hidden_states", "output_attentions",
          "output_past", "chunk_size_feed_forward", "is_encoder_decoder", "gradient_checkpointing", "_attn_implementation",
          "_attn_implementation_autoset", "attn_implementation", "auto_map", "finetuning_task", "torchscript", "use_bfloat16",
          "tf_legacy_loss", "xla_device", "adapter", "is_decoder", "classifier_dropout", "pretraining_tp",
          "tie_word_embeddings"});
  ignore({"bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "unk_token_id", "cls_token_id", "mask_token_id",
          "decoder_start_token_id", "tokenizer_class", "prefix", "id2label", "label2id", "num_labels", "_num_labels",
          "problem_type"});
  ignore({"max_length", "min_length", "max_new_tokens", "do_sample", "early_stopping", "num_beams", "num_beam_groups",
          "diversity_penalty", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty",
          "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "output_scores",
          "return_dict_in_generate", "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values",
          "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens", "cache_implementation"});
  // Features that any of them may switch on.
  only("add_cross_attention", false);
  only("cross_attention_hidden_size", nullptr);
  only("tie_encoder_decoder", false);
  only("pruned_heads", base::Json::object());
  only("quantization_config", nullptr);
}

void ConfigReader::ignore(std::initializer_list<const char*> keys) { known_.insert(keys.begin(), keys.end()); }

const base::Json* ConfigReader::find(const char* key) {
  known_.insert(key);
  return tree_.contains(key) && !tree_[key].is_null() ? &tree_[key] : nullptr;
}

void ConfigReader::refuse(const char* key, const base::Json& value, const std::string& expected) const {
  throw base::ConfigError(fmt::format("{}.{} is {}, expected {} (family {})", path_, key, value.dump(), expected, family_));
}

void ConfigReader::operator()(const char* key, int64_t& field, int64_t min) {
  if (const base::Json* value = find(key)) {
    if (!value->is_number_integer() || value->get<int64_t>() < min)
      refuse(key, *value, fmt::format("an integer >= {}", min));
    field = value->get<int64_t>();
  }
  note(key, field);
}

void ConfigReader::operator()(const char* key, std::optional<int64_t>& field, int64_t min) {
  int64_t given = field.value_or(0);
  if (find(key)) (*this)(key, given, min), field = given;
  resolved_[key] = field ? base::Json(*field) : base::Json();
}

void ConfigReader::operator()(const char* key, std::optional<double>& field, double min, double max) {
  double given = field.value_or(0);
  if (find(key)) (*this)(key, given, min, max), field = given;
  resolved_[key] = field ? base::Json(*field) : base::Json();
}

void ConfigReader::either(const char* key, const char* other, int64_t& field) {
  (*this)(key, field);
  if (!find(other)) return;
  (*this)(other, field);
  note(key, field);
}

void ConfigReader::only(const char* key, const base::Json& value) {
  const base::Json* given = find(key);
  if (given && *given != value) refuse(key, *given, value.dump() + ", the only value that is supported");
}

void ConfigReader::operator()(const char* key, double& field, double min, double max) {
  if (const base::Json* value = find(key)) {
    if (!value->is_number() || value->get<double>() < min || value->get<double>() > max)
      refuse(key, *value, fmt::format("a number in [{}, {}]", min, max));
    field = value->get<double>();
  }
  note(key, field);
}

void ConfigReader::operator()(const char* key, bool& field) {
  if (const base::Json* value = find(key)) {
    if (!value->is_boolean()) refuse(key, *value, "true or false");
    field = value->get<bool>();
  }
  note(key, field);
}

void ConfigReader::operator()(const char* key, std::string& field) {
  if (const base::Json* value = find(key)) {
    if (!value->is_string()) refuse(key, *value, "a word");
    field = value->get<std::string>();
  }
  note(key, field);
}

void ConfigReader::finish() const {
  for (const auto& [key, value] : tree_.items()) {
    if (known_.contains(key)) continue;
    const std::optional<std::string> meant = base::nearest(key, {known_.begin(), known_.end()});
    throw base::ConfigError(fmt::format("{}.{} is not a key of family {}{}", path_, key, family_,
                                        meant ? fmt::format("; did you mean '{}'?", *meant) : ""));
  }
}

base::Json ConfigReader::resolved(const std::string& architecture) const {
  base::Json out = tree_;
  out.erase("family");
  out.erase("pretrained");
  out["model_type"] = family_;
  if (!architecture.empty()) out["architectures"] = {architecture};
  for (const auto& [key, value] : resolved_.items()) out[key] = value;
  return out;
}

}  // namespace trireme::models
