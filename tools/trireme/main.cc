#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>

#include "tools/trireme/subcommands.h"
#include "trireme/base/error.h"
#include "trireme/kernels/allocator.h"

namespace {

int run(int argc, char** argv) {
  CLI::App program{"trireme: trains, checkpoints, generates with and serves transformer models on any layout",
                   "trireme"};
  program.require_subcommand(1);
  trireme::tools::add_bench(program);
  trireme::tools::add_data(program);
  trireme::tools::add_launch(program);
  trireme::tools::add_pipeline(program);
  trireme::tools::add_preprocess(program);
  trireme::tools::add_tokenizer(program);
  trireme::tools::add_eval(program);
  trireme::tools::add_generate(program);
  trireme::tools::add_train(program);
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    int code = program.exit(e);
    return code == 0 ? 0 : 2;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  // Before the first tensor: page faults of fresh memory cost a third of a training step.
  trireme::kernels::install_caching_allocator();
  try {
    return run(argc, argv);
  } catch (const trireme::tools::Exit& e) {
    return e.code;
  } catch (const trireme::base::Error& e) {
    std::fprintf(stderr, "trireme: error: %s\n", e.what());
    return e.exit_code();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "trireme: internal error: %s\n", e.what());
    return 70;
  }
}
