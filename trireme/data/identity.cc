#include "trireme/data/identity.h"

#include "trireme/base/error.h"
#include "trireme/base/hash.h"

namespace trireme::data {

base::Json to_json(const Identity& identity) {
  base::Json sources = base::Json::array();
  for (const SourceIdentity& source : identity.sources) {
    sources.push_back({{"path", source.path},
                       {"weight", source.weight},
                       {"documents", source.documents},
                       {"tokens", source.tokens},
                       {"fingerprint", base::hash_to_text(source.fingerprint)},
                       {"samples", source.samples}});
  }
  return {{"seq_length", identity.seq_length}, {"sources", sources}};
}

Identity identity_from(const base::Json& json) {
  try {
    Identity identity{.seq_length = json.at("seq_length"), .sources = {}};
    for (const base::Json& source : json.at("sources")) {
      identity.sources.push_back({.path = source.at("path"),
                                  .weight = source.at("weight"),
                                  .documents = source.at("documents"),
                                  .tokens = source.at("tokens"),
                                  .fingerprint = base::hash_from_text(source.at("fingerprint")),
                                  .samples = source.value("samples", "")});
    }
    return identity;
  } catch (const nlohmann::json::exception& e) {
    throw base::FormatError(
        fmt::format("the identity of the training data: {}", base::message_of(e)));
  }
}

void refuse_change(const Identity& saved, const Identity& own, const std::string& checkpoint) {
  auto refuse = [&](const std::string& difference) {
    throw base::ConfigError(fmt::format(
        "{}; {} goes on only in the data that it began with: give it the same data.train and "
        "data.seq_length, or start a new run from its weights with model.pretrained and another "
        "train.output_dir",
        difference, checkpoint));
  };
  if (saved.seq_length != own.seq_length)
    refuse(fmt::format("data.seq_length is {}, the checkpoint was trained with {}", own.seq_length,
                       saved.seq_length));
  if (saved.sources.size() != own.sources.size()) {
    refuse(fmt::format("data.train has {} datasets, the checkpoint was trained on {}",
                       own.sources.size(), saved.sources.size()));
  }
  for (size_t i = 0; i < own.sources.size(); ++i) {
    const SourceIdentity &was = saved.sources[i], &is = own.sources[i];
    std::string name = fmt::format("data.train[{}] ({})", i, is.path);
    if (was.documents != is.documents || was.tokens != is.tokens) {
      refuse(
          fmt::format("{} has {} documents and {} tokens, the checkpoint was trained on {} "
                      "documents and {} tokens ({})",
                      name, is.documents, is.tokens, was.documents, was.tokens, was.path));
    }
    if (was.fingerprint != is.fingerprint) {
      refuse(fmt::format(
          "{} holds other documents (fingerprint {:016x}) than the checkpoint was trained on ({}, "
          "fingerprint {:016x})",
          name, is.fingerprint, was.path, was.fingerprint));
    }
    if (was.samples != is.samples)
      refuse(fmt::format("{} makes its samples otherwise ({}) than the checkpoint's did ({})", name,
                         is.samples.empty() ? "as by default" : is.samples,
                         was.samples.empty() ? "as by default" : was.samples));
    if (was.weight != is.weight)
      refuse(fmt::format("{} has weight {}, the checkpoint was trained with {}", name, is.weight,
                         was.weight));
  }
}

}  // namespace trireme::data
