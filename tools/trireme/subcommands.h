#pragma once
// The subcommands of the program, one thin file each. `add_x` declares the flags of `trireme x` and the callback
// that runs it. Failures leave as exceptions; main turns them into exit codes.

#include <CLI/CLI.hpp>

namespace trireme::tools {

/// Thrown by a callback to end the program with an exit code that is no error of its own.
struct Exit {
  int code;
};

void add_bench(CLI::App& program);
void add_ckpt(CLI::App& program);
void add_data(CLI::App& program);
void add_eval(CLI::App& program);
void add_generate(CLI::App& program);
void add_inspect(CLI::App& program);
void add_launch(CLI::App& program);
void add_models(CLI::App& program);
void add_pipeline(CLI::App& program);
void add_preprocess(CLI::App& program);
void add_score(CLI::App& program);
void add_tokenizer(CLI::App& program);
void add_train(CLI::App& program);

}  // namespace trireme::tools
