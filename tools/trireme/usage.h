#pragma once
// How the program speaks to a person at its command line: the help of all subcommands in one form,
// and errors that say what was meant.

#include <CLI/CLI.hpp>
#include <string>

namespace trireme::tools {

/// Sets the form of all help; before subcommands are added.
void set_help(CLI::App& program);

/// A wrong command line as a message, with the nearest flag or subcommand where one is near.
std::string usage_error(const CLI::App& program, const CLI::ParseError& error);

/// Prints "trireme: error: MESSAGE" on stderr, red on a terminal unless NO_COLOR is set. Further
/// lines are indented.
void print_error(const std::string& message);

}  // namespace trireme::tools
