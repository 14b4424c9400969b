// Holds the sources to section 4 of docs/architecture.md: the order of the folders is read from that
// page, so the page and the code cannot drift apart.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

namespace trireme {
namespace {

namespace fs = std::filesystem;

const fs::path kRoot = TRIREME_SOURCE_DIR;

std::string read(const fs::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

struct Order {
  std::map<std::string, int> level;  // of each folder; equal levels are braces or a list
  int first_torch_level = 0;

  bool torch(const std::string& folder) const { return level.at(folder) >= first_torch_level; }
};

// Adds the folders of `a < {b, c} < d` above those that are there.
void add_chain(const std::string& chain, int& next, Order& order) {
  std::stringstream levels(chain);
  for (std::string part; std::getline(levels, part, '<'); ++next) {
    static const std::regex kName("[a-z_]+");
    for (std::sregex_iterator it(part.begin(), part.end(), kName), end; it != end; ++it)
      order.level[it->str()] = next;
  }
}

std::string quoted_after(const std::string& text, const std::string& opening) {
  auto begin = text.find(opening);
  if (begin == std::string::npos) return "";
  begin += opening.size();
  return text.substr(begin, text.find('`', begin) - begin);
}

Order order_of_page() {
  std::string page = read(kRoot / "docs/architecture.md");
  Order order;
  int next = 0;
  add_chain(quoted_after(page, "\ncore: `"), next, order);
  order.first_torch_level = next;
  add_chain(quoted_after(page, "LibTorch, all above core: `"), next, order);
  return order;
}

struct Include {
  std::string file, folder, target;  // file relative to the root; folder of file, "" outside the order
  bool header;
};

std::vector<Include> includes_below(const std::vector<std::string>& folders, const Order& order) {
  static const std::regex kInclude(R"(^\s*#\s*include\s*[<"]([^>"]+)[>"])");
  std::vector<Include> found;
  for (const auto& top : folders) {
    if (!fs::exists(kRoot / top)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / top)) {
      auto extension = entry.path().extension();
      if (extension != ".h" && extension != ".cc") continue;
      auto relative = fs::relative(entry.path(), kRoot);
      auto part = relative.begin();
      if (*part == "trireme") ++part;
      std::string folder = order.level.contains(part->string()) ? part->string() : "";
      std::ifstream file(entry.path());
      for (std::string line; std::getline(file, line);) {
        std::smatch match;
        if (std::regex_search(line, match, kInclude))
          found.push_back({relative.string(), folder, match[1], extension == ".h"});
      }
    }
  }
  return found;
}

bool from_torch(const std::string& target) {
  return target.starts_with("ATen/") || target.starts_with("c10/") || target.starts_with("torch/") ||
         target.starts_with("caffe2/");
}

// What is wrong with the include, or "".
std::string fault(const Include& include, const Order& order) {
  const auto& target = include.target;
  if (target == "torch/torch.h") return "torch/torch.h is not used: include what is needed";
  if (target.starts_with("torch/csrc/distributed/") && !include.file.starts_with("trireme/dist/rendezvous"))
    return "c10d belongs to dist/rendezvous alone";
  if (include.folder.empty()) return "";
  if (from_torch(target)) {
    if (!order.torch(include.folder)) return "core does not know LibTorch";
    bool small = target == "ATen/core/Tensor.h" || target.starts_with("c10/");
    if (include.header && include.file.starts_with("trireme/") && !small)
      return "a public header includes at most ATen/core/Tensor.h and c10";
  }
  std::string folder;
  if (target.starts_with("trireme/")) folder = target.substr(8, target.find('/', 8) - 8);
  if (target.starts_with("tools/")) folder = "tools";
  if (folder.empty() || folder == include.folder) return "";
  if (!order.level.contains(folder)) return "the page names no folder " + folder;
  if (order.level.at(folder) >= order.level.at(include.folder))
    return include.folder + " does not include " + folder + " (the order of docs/architecture.md)";
  return "";
}

TEST(IncludeDirection, PageNamesEveryFolder) {
  Order order = order_of_page();
  ASSERT_GE(order.level.size(), 18u) << "section 4 of docs/architecture.md was not understood";
  EXPECT_LT(order.level["base"], order.level["config"]);
  EXPECT_EQ(order.level["schedule"], order.level["text"]);
  EXPECT_TRUE(order.torch("kernels"));
  for (const auto& entry : fs::directory_iterator(kRoot / "trireme")) {
    if (!entry.is_directory()) continue;
    EXPECT_TRUE(order.level.contains(entry.path().filename())) << entry.path().filename();
  }
}

TEST(IncludeDirection, ArrowsPointDown) {
  Order order = order_of_page();
  auto includes = includes_below({"trireme", "tools", "tests", "bench", "examples"}, order);
  EXPECT_GT(includes.size(), 50u);
  for (const auto& include : includes)
    EXPECT_EQ(fault(include, order), "") << include.file << " includes " << include.target;
}

TEST(IncludeDirection, SeesFaults) {
  Order order = order_of_page();
  auto wrong = [&](std::string file, std::string folder, std::string target, bool header) {
    return !fault({file, folder, target, header}, order).empty();
  };
  EXPECT_TRUE(wrong("trireme/base/io.cc", "base", "trireme/config/load.h", false));
  EXPECT_TRUE(wrong("trireme/schedule/check.cc", "schedule", "trireme/comm/comm.h", false));
  EXPECT_TRUE(wrong("trireme/layout/mesh.cc", "layout", "ATen/core/Tensor.h", false));
  EXPECT_TRUE(wrong("trireme/nn/layer.h", "nn", "ATen/ATen.h", true));
  EXPECT_TRUE(wrong("trireme/nn/layer.cc", "nn", "torch/torch.h", false));
  EXPECT_TRUE(wrong("trireme/nn/layer.cc", "nn", "torch/csrc/distributed/c10d/Store.hpp", false));
  EXPECT_FALSE(wrong("trireme/nn/layer.cc", "nn", "ATen/ATen.h", false));
  EXPECT_FALSE(wrong("trireme/nn/layer.h", "nn", "trireme/dist/world.h", true));
}

}  // namespace
}  // namespace trireme
