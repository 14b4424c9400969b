// What a run reports: event files, metrics.jsonl, the bar. None of it needs LibTorch.

#include "trireme/train/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/base/io.h"
#include "trireme/base/json.h"
#include "trireme/formats/tfevents.h"
#include "trireme/train/progress.h"

namespace trireme::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class Folder : public ::testing::Test {
 protected:
  std::vector<std::string> lines() const {
    std::ifstream file(path_ + "/metrics.jsonl");
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  }
  std::vector<int> steps() const {
    std::vector<int> steps;
    for (const std::string& line : lines()) steps.push_back(base::parse_json(line, "line")["step"]);
    return steps;
  }
  test::TemporaryFolder folder_;
  const std::string path_ = folder_.path();
};
using Events = Folder;
using Metrics = Folder;

TEST(Crc32c, KnownValues) {
  EXPECT_EQ(formats::crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(formats::crc32c(""), 0u);
  EXPECT_EQ(formats::crc32c(std::string(32, '\0')), 0x8a9136aau);    // RFC 3720 B.4
  EXPECT_EQ(formats::crc32c(std::string(32, '\xff')), 0x62a8ab43u);  // RFC 3720 B.4
}

TEST(Record, Framing) {
  std::string record = formats::frame_record("123456789");
  ASSERT_EQ(record.size(), 8 + 4 + 9 + 4u);
  EXPECT_EQ(record.substr(0, 8), std::string("\x09\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(record.substr(12, 9), "123456789");
  EXPECT_EQ(record.substr(21), "\xe5\xb0\x8a\xc7");  // 0xe3069283 masked
}

TEST_F(Events, AnotherDecoderReadsThem) {
  if (std::system("python3 -c '' 2>/dev/null") != 0) GTEST_SKIP() << "no python3";
  std::string file;
  {
    formats::EventWriter writer(path_);
    file = writer.path();
    writer.scalars(1, {{"train/loss", 3.5}, {"train/lr", 0.0009765625}});
    writer.scalars(300, {{"train/loss", -std::numeric_limits<double>::infinity()}});
    writer.scalars(int64_t{1} << 40, {{"a", 0}});
    formats::EventWriter second(path_);
    EXPECT_NE(second.path(), file);
  }
  EXPECT_THAT(file, HasSubstr("/events.out.tfevents."));
  std::string out = path_ + "/out";
  std::string command = fmt::format("python3 {}/tests/unit/read_tfevents.py '{}' > '{}'",
                                    TRIREME_SOURCE_DIR, file, out);
  ASSERT_EQ(std::system(command.c_str()), 0);
  EXPECT_EQ(base::read_file(out),
            "[0, \"version\", \"brain.Event:2\"]\n"
            "[1, \"train/loss\", 3.5]\n[1, \"train/lr\", 0.0009765625]\n"
            "[300, \"train/loss\", -Infinity]\n[1099511627776, \"a\", 0.0]\n");
}

TEST_F(Events, FolderMustExist) {
  EXPECT_THROW(formats::EventWriter(path_ + "/none"), base::IoError);
}

TEST(JsonLine, HasTheFieldsInOrderAndRoundTrips) {
  StepMetrics metrics{.step = 7,
                      .loss = 0.1 + 0.2,
                      .lr = 1e-8,
                      .grad_norm = 5e-324,
                      .tokens = 10,
                      .samples = 2,
                      .step_seconds = 0.25,
                      .tokens_per_second = 40,
                      .memory = 1024,
                      .phases = {.data = 0.5, .forward = 1, .backward = 2, .wait = 3, .optimizer = 4},
                      .slowest_rank = 3,
                      .slowest_excess = 0.125};
  std::string line = to_json_line(metrics);
  EXPECT_EQ(
      line,
      R"({"step": 7, "loss": 0.30000000000000004, "lr": 1e-08, "grad_norm": 5e-324, "loss_scale": null, )"
      R"("tokens": 10, "samples": 2, "step_seconds": 0.25, "tokens_per_second": 40, )"
      R"("model_flops_utilization": null, "memory": 1024, "data_seconds": 0.5, "forward_seconds": 1, )"
      R"("backward_seconds": 2, "wait_seconds": 3, "optimizer_seconds": 4, "checkpoint_seconds": 0, )"
      R"("slowest_rank": 3, "slowest_excess": 0.125})");
  EXPECT_EQ(base::parse_json(line, "line")["loss"].get<double>(), 0.1 + 0.2);
  metrics.loss = std::nan("");
  metrics.grad_norm = HUGE_VAL;
  metrics.loss_scale = 65536;
  base::Json json = base::parse_json(to_json_line(metrics), "line");
  EXPECT_EQ(json["loss"], "nan");
  EXPECT_EQ(json["grad_norm"], "inf");
  EXPECT_EQ(json["loss_scale"], 65536);
  json = base::parse_json(
      to_json_line(EvalMetrics{.step = 3, .eval_loss = 0, .tokens = 9, .seconds = 1}), "line");
  EXPECT_EQ(json["eval_loss"], 0);
  EXPECT_EQ(json["eval_perplexity"], 1);
  EXPECT_FALSE(json.contains("loss"));
}

TEST_F(Metrics, LinesStandInTheFileAtOnce) {
  MetricsWriter writer(path_);
  writer.write(StepMetrics{.step = 1, .loss = 2.5});
  EXPECT_EQ(lines().size(), 1u);
  writer.write(EvalMetrics{.step = 1, .eval_loss = 2});
  EXPECT_EQ(lines().size(), 2u);
}

TEST_F(Metrics, ResumeDropsLaterStepsAndACutLine) {
  {
    MetricsWriter writer(path_);
    for (int step = 1; step <= 5; ++step)
      writer.write(StepMetrics{.step = step, .loss = 1.0 / step});
  }
  std::vector<std::string> before = lines();
  std::ofstream(path_ + "/metrics.jsonl", std::ios::app) << "{\"step\": 6, \"lo";
  {
    MetricsWriter writer(path_, 3);
    EXPECT_THAT(lines(), ElementsAre(before[0], before[1], before[2]));
    writer.write(StepMetrics{.step = 4});
  }
  EXPECT_THAT(steps(), ElementsAre(1, 2, 3, 4));
  MetricsWriter again(path_);
  EXPECT_TRUE(lines().empty());
}

TEST_F(Metrics, RefusesADamagedLine) {
  std::ofstream(path_ + "/metrics.jsonl") << "{\"step\": 1}\n{\"step\n{\"step\": 3}\n";
  EXPECT_THAT([&] { MetricsWriter writer(path_, 3); },
              ::testing::ThrowsMessage<base::FormatError>(HasSubstr("metrics.jsonl:2")));
  std::ofstream(path_ + "/metrics.jsonl") << "{\"loss\": 1}\n";
  EXPECT_THAT([&] { MetricsWriter writer(path_, 3); },
              ::testing::ThrowsMessage<base::FormatError>(HasSubstr("integer \"step\"")));
}

TEST_F(Metrics, CsvHasTheSameNumbersAndResumes) {
  const auto rows = [&] { return base::read_file(path_ + "/metrics.csv"); };
  {
    MetricsWriter writer(path_, 0, true);
    writer.write(StepMetrics{.step = 1, .loss = 0.1 + 0.2});
    writer.write(EvalMetrics{.step = 1, .eval_loss = 2});
    writer.write(StepMetrics{.step = 2, .loss = std::nan("")});
  }
  EXPECT_THAT(rows(), ::testing::StartsWith("step,loss,lr,grad_norm,loss_scale,tokens"));
  EXPECT_THAT(rows(), HasSubstr("\n1,0.30000000000000004,0,0,,0"));
  EXPECT_THAT(rows(), HasSubstr("\n2,nan,0"));
  { MetricsWriter writer(path_, 1, true); }
  EXPECT_THAT(rows(), HasSubstr("\n1,"));
  EXPECT_THAT(rows(), Not(HasSubstr("\n2,")));
  std::ofstream(path_ + "/metrics.csv") << "step,other\n";
  EXPECT_THAT([&] { MetricsWriter writer(path_, 1, true); },
              ::testing::ThrowsMessage<base::FormatError>(HasSubstr("other columns")));
}

TEST(Prometheus, NumbersAreGauges) {
  const std::string text = to_prometheus({.step = 3, .loss = std::nan(""), .lr = 0.5});
  EXPECT_THAT(text, HasSubstr("# TYPE trireme_step gauge\ntrireme_step 3\n"));
  EXPECT_THAT(text, HasSubstr("trireme_loss NaN\n"));
  EXPECT_THAT(text, HasSubstr("trireme_lr 0.5\n"));
  EXPECT_THAT(text, Not(HasSubstr("loss_scale")));
}

TEST(ProgressText, Durations) {
  EXPECT_EQ(format_duration(0), "0:00");
  EXPECT_EQ(format_duration(59.6), "1:00");
  EXPECT_EQ(format_duration(3725), "1:02:05");
  EXPECT_EQ(format_duration(2 * 86400 + 3600), "2d 1:00:00");
  EXPECT_EQ(format_duration(-1), "?");
  EXPECT_EQ(format_duration(std::nan("")), "?");
}

TEST(ProgressText, Counts) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(950), "950");
  EXPECT_EQ(format_count(999.6), "1.00k");
  EXPECT_EQ(format_count(12345), "12.3k");
  EXPECT_EQ(format_count(999600), "1.00M");
  EXPECT_EQ(format_count(2.5e9), "2.50G");
}

TEST(ProgressText, BarFitsItsWidth) {
  StepMetrics metrics{.step = 50, .loss = 3.14159, .tokens_per_second = 12345};
  EXPECT_EQ(render_bar(metrics, 200, 42, 80, false),
            " 50/200  ███████▌······················  loss 3.1416  12.3k tokens/s  ETA 0:42");
  auto columns = [](const std::string& text) {
    return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; });
  };
  for (int width = 1; width < 100; ++width) {
    for (int step : {0, 1, 199, 200}) {
      metrics.step = step;
      EXPECT_LT(columns(render_bar(metrics, 200, 42, width, false)), std::max(width, 2)) << width;
    }
  }
  EXPECT_THAT(render_bar(metrics, 200, 42, 80, false), Not(HasSubstr("\x1b")));
  EXPECT_THAT(render_bar(metrics, 200, 42, 80, true), HasSubstr("\x1b[32m"));
}

TEST_F(Folder, WithoutATerminalLinesFollowTheLogPeriod) {
  base::Logger logger("", base::LogLevel::error);
  logger.open_file(path_ + "/log");
  {
    Progress progress(10, 0, 4, logger);
    for (int step = 1; step <= 10; ++step) {
      progress.step(StepMetrics{.step = step, .loss = 2, .lr = 1e-3, .step_seconds = 0.5});
    }
    progress.evaluated(EvalMetrics{.step = 10, .eval_loss = 1, .tokens = 4000, .seconds = 0.1});
  }
  std::string log = base::read_file(path_ + "/log");
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 5);
  for (const char* text :
       {"step 1/10", "step 4/10  loss 2.0000  lr 1.000e-03", "ETA 0:03", "step 8/10", "step 10/10",
        "validation loss 1.0000  perplexity 2.72  4.00k tokens"}) {
    EXPECT_THAT(log, HasSubstr(text));
  }
}

}  // namespace
}  // namespace trireme::train
