#include <c10/util/Exception.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>

#include "tools/trireme/subcommands.h"
#include "tools/trireme/usage.h"
#include "trireme/base/error.h"
#include "trireme/base/json.h"
#include "trireme/base/plugin.h"
#include "trireme/comm/launch.h"
#include "trireme/kernels/allocator.h"

namespace {

// A rank's error goes through its launcher, which says the same thing once.
void tell(const std::string& message) {
  if (!trireme::comm::report_to_launcher(message)) trireme::tools::print_error(message);
}

int run(int argc, char** argv) {
  CLI::App program{
      "trireme: trains, checkpoints and generates with transformer models on any layout",
      "trireme"};
  program.require_subcommand(1);
  trireme::tools::set_help(program);
  program
      .add_option_function<std::vector<std::string>>("--plugin", trireme::base::load_plugins,
                                                     "load a shared library of your own first, as `plugins` in a run's file does")
      ->trigger_on_parse()
      ->allow_extra_args(false);
  program.set_version_flag("--version", "trireme " TRIREME_VERSION, "print the version");
  trireme::tools::add_bench(program);
  trireme::tools::add_ckpt(program);
  trireme::tools::add_data(program);
  trireme::tools::add_inspect(program);
  trireme::tools::add_launch(program);
  trireme::tools::add_models(program);
  trireme::tools::add_pipeline(program);
  trireme::tools::add_preprocess(program);
  trireme::tools::add_score(program);
  trireme::tools::add_tokenizer(program);
  trireme::tools::add_eval(program);
  trireme::tools::add_generate(program);
  trireme::tools::add_train(program);
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return program.exit(e);  // --help, --version
    tell(trireme::tools::usage_error(program, e));
    return 2;
  }
  // What a full disk kept from being written must not pass for a result.
  if (std::fflush(stdout) != 0 || std::ferror(stdout))
    throw trireme::base::IoError("standard output", errno, "writing");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  // A file that may not grow further is an error of the write, with a message, not the end of the process.
  std::signal(SIGXFSZ, SIG_IGN);
  // Before the first tensor: page faults of fresh memory cost a third of a training step.
  trireme::kernels::install_caching_allocator();
  try {
    return run(argc, argv);
  } catch (const trireme::tools::Exit& e) {
    return e.code;
  } catch (const trireme::base::Error& e) {
    tell(e.what());
    return e.exit_code();
  } catch (const nlohmann::json::exception& e) {
    tell(fmt::format("a JSON file does not hold what it should: {}", trireme::base::message_of(e)));
    return 2;
  } catch (const std::bad_alloc&) {
    tell("out of memory");
    return 1;
  } catch (const c10::Error& e) {
    tell(fmt::format("internal: {}", e.what_without_backtrace()));
    return 70;
  } catch (const std::exception& e) {
    tell(fmt::format("internal: {}", e.what()));
    return 70;
  }
}
