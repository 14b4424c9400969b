// The drawings of docs/pipelines.md are what the program draws. A block says in its first line what
// it shows:
// "```text pipeline NAME STAGES MICRO_BATCHES" or "```text compare STAGES MICRO_BATCHES".

#include <gtest/gtest.h>

#include <sstream>

#include "trireme/base/io.h"
#include "trireme/schedule/choose.h"
#include "trireme/schedule/draw.h"

namespace trireme::schedule {
namespace {

std::string drawn(std::istringstream& what) {
  std::string kind, name;
  int stages = 0, micro_batches = 0;
  what >> kind;
  if (kind == "pipeline") {
    what >> name >> stages >> micro_batches;
    const Schedule schedule = generate(name, {stages, micro_batches});
    return draw_text(schedule, simulate(schedule, {}));
  }
  what >> stages >> micro_batches;
  Question question{.ranks = stages, .micro_batches = micro_batches, .interleaved = {2}};
  question.costs = [](int) { return Costs{}; };
  Choice choice = choose(question);
  choice.candidates.push_back(candidate_of(forward_only({stages, micro_batches}), {}));
  return to_text(choice);
}

TEST(Docs, DrawingsAreWhatTheProgramDraws) {
  std::istringstream page(base::read_file(TRIREME_SOURCE_DIR "/docs/pipelines.md"));
  int blocks = 0;
  for (std::string line; std::getline(page, line);) {
    const std::string fence = "```text ";
    if (!line.starts_with(fence)) continue;
    std::istringstream what(line.substr(fence.size()));
    std::string shown;
    for (std::string row; std::getline(page, row) && row != "```";) shown += row + '\n';
    EXPECT_EQ(shown, drawn(what)) << line;
    ++blocks;
  }
  EXPECT_EQ(blocks, static_cast<int>(names().size()) + 1);
}

}  // namespace
}  // namespace trireme::schedule
