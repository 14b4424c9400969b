// Answers questions about the data system for the Python oracles: a JSON object a line on stdin,
// its answer a line on stdout.

#include <fmt/format.h>

#include <functional>
#include <iostream>
#include <map>
#include <string>

#include "trireme/base/json.h"
#include "trireme/data/blend.h"
#include "trireme/data/image.h"
#include "trireme/data/image_files.h"
#include "trireme/data/indexed.h"
#include "trireme/data/legacy_random.h"
#include "trireme/data/megatron_order.h"
#include "trireme/data/preprocess.h"
#include "trireme/data/sampler.h"
#include "trireme/data/sentence_spans.h"
#include "trireme/data/split.h"

namespace trireme::data {
namespace {

using base::Json;
using Ids = std::vector<int64_t>;

Json numpy(const Json& q) {
  NumpyRandom random(q.at("seed").get<uint32_t>());
  Json results = Json::array();
  for (const Json& call : q.at("calls")) {
    const std::string name = call[0];
    if (name == "random") results.push_back(random.random());
    if (name == "randint") results.push_back(random.randint(call[1], call[2]));
    if (name == "geometric") results.push_back(random.geometric(call[1]));
    if (name == "permutation") results.push_back(random.permutation(call[1]));
    if (name == "choice") results.push_back(random.choice(call[1].get<std::vector<double>>()));
  }
  return results;
}

Json megatron(const Json& q) {
  const auto order =
      megatron_order(q.at("lengths").get<std::vector<int32_t>>(), q.at("documents").get<Ids>(),
                     {.seq_length = q.at("seq_length"),
                      .samples = q.at("samples"),
                      .seed = q.at("seed").get<uint32_t>()});
  Json places = Json::array();
  for (const auto& place : order.places) places.push_back({place.document, place.token});
  return {{"documents", order.documents}, {"places", places}, {"order", order.order}};
}

/// Samples that are nothing but counted.
class Counted : public Dataset {
 public:
  int64_t size() const override { return 1; }
  std::string description() const override { return "counted"; }
  std::vector<FieldSpec> fields() const override { return {}; }
  void read(int64_t, Row) const override {}
  Identity identity() const override { return {}; }
};

Json blend(const Json& q) {
  const auto weights = q.at("weights").get<std::vector<double>>();
  std::vector<std::shared_ptr<const Dataset>> datasets(weights.size(), std::make_shared<Counted>());
  BlendDataset blend(datasets, weights, BlendRule::megatron);
  Json places = Json::array();
  for (int64_t i = 0; i < q.at("size").get<int64_t>(); ++i) {
    const auto place = blend.place(i);
    places.push_back({place.dataset, place.sample});
  }
  return places;
}

Json exhaustive(const Json& q) {
  Json places = Json::array();
  for (const auto& place : exhaustive_blend(q.at("sizes").get<Ids>()))
    places.push_back({place.dataset, place.sample});
  return places;
}

Json proxy(const Json& q) {
  DistributedProxySampler sampler(q.at("indices").get<Ids>(), {.num_replicas = q.at("replicas"),
                                                               .rank = q.at("rank"),
                                                               .shuffle = q.at("shuffle"),
                                                               .seed = q.at("seed").get<uint64_t>(),
                                                               .drop_last = q.at("drop_last")});
  sampler.set_epoch(q.at("epoch"));
  return sampler.indices();
}

/// The spans of documents whose sentences have so many tokens; the dataset is written to `prefix`.
Json spans(const Json& q) {
  IndexedWriter writer(q.at("prefix"), base::DType::u16);
  for (const Json& document : q.at("documents")) {
    for (int64_t length : document) writer.add_sequence(Ids(static_cast<size_t>(length), 1));
    writer.end_document();
  }
  writer.finish();
  Json spans = Json::array();
  for (const SentenceSpan& span :
       sentence_spans(IndexedDataset(q.at("prefix")), q.at("max_tokens"), q.at("short_seq_prob"),
                      q.at("min_sentences"), q.at("seed").get<uint32_t>()))
    spans.push_back({span.begin, span.end, span.target});
  return spans;
}

/// Preprocesses files; the ids of all documents, end to end.
Json preprocessed(const Json& q) {
  const std::string out = q.at("out");
  preprocess(*text::Tokenizer::load(q.at("tokenizer")),
             {.inputs = q.at("inputs"), .output = out, .overwrite = true, .workers = q.at("workers")});
  const IndexedDataset dataset(out);
  Ids ids(static_cast<size_t>(dataset.tokens()));
  dataset.read(0, dataset.tokens(), ids.data());
  return {{"documents", dataset.documents()}, {"sequences", dataset.sequences()}, {"ids", ids}};
}

/// Reads an image file and does to it what `do` lists.
Json image(const Json& q) {
  Image image = read_image(q.at("path"));
  for (const Json& step : q.at("do")) {
    const std::string name = step[0];
    if (name == "resize") image = resize(image, step[1], step[2], interpolation_of(step[3]));
    if (name == "part")
      image = resize(image, step[1], step[2], interpolation_of(step[3]),
                     {step[4][0], step[4][1], step[4][2], step[4][3]});
    if (name == "crop") image = crop(image, step[1], step[2], step[3], step[4]);
    if (name == "flip")
      image = step[1] == "horizontal" ? flip_horizontally(image) : flip_vertically(image);
    if (name == "channels") image = with_channels(image, step[1]);
    if (name == "brightness") image = adjust_brightness(image, step[1]);
    if (name == "contrast") image = adjust_contrast(image, step[1]);
    if (name == "saturation") image = adjust_saturation(image, step[1]);
    if (name == "hue") image = adjust_hue(image, step[1]);
    if (name == "solarize") image = solarize(image, step[1]);
    if (name == "blur") image = blur(image, step[1]);
  }
  return {{"shape", {image.height, image.width, image.channels}}, {"pixels", image.pixels}};
}

const std::map<std::string, std::function<Json(const Json&)>> kAnswers{
    {"image", image},
    {"numpy", numpy},
    {"randperm",
     [](const Json& q) { return torch_randperm(q.at("size"), q.at("seed").get<uint64_t>()); }},
    {"megatron", megatron},
    {"blend", blend},
    {"exhaustive", exhaustive},
    {"preprocess", preprocessed},
    {"proxy", proxy},
    {"spans", spans},
    {"split",
     [](const Json& q) { return split_bounds(parse_split(q.at("split")), q.at("count")); }},
};

}  // namespace
}  // namespace trireme::data

int main() {
  using namespace trireme;
  std::string line;
  while (std::getline(std::cin, line)) {
    const base::Json question = base::parse_json(line, "stdin");
    const base::Json answer = data::kAnswers.at(question.at("op"))(question);
    fmt::print("{}\n", answer.dump());
  }
}
