#include "tools/trireme/usage.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "trireme/base/nearest.h"

namespace trireme::tools {
namespace {

std::string full_name(const CLI::App& app) {
  return app.get_parent() ? full_name(*app.get_parent()) + " " + app.get_name() : app.get_name();
}

std::vector<const CLI::App*> all_subcommands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

constexpr size_t kNameColumn = 26, kColumns = 100;

/// The subcommands in the order of the help.
struct Group {
  std::string_view title;
  std::vector<std::string> names;
};
const Group kGroups[] = {
    {"prepare data", {"tokenizer", "preprocess", "data"}},
    {"train and use", {"train", "eval", "generate", "serve", "ckpt", "launch"}},
    {"look and measure", {"inspect", "models", "plan", "pipeline", "bench"}},
};

/// A name and what it means, wrapped beside it.
std::string entry(const std::string& name, const std::string& text) {
  std::string out = "  " + name, line;
  out += name.size() + 3 > kNameColumn ? "\n" + std::string(kNameColumn, ' ')
                                       : std::string(kNameColumn - name.size() - 2, ' ');
  for (const std::string& word : CLI::detail::split(text, ' ')) {
    if (!line.empty() && kNameColumn + line.size() + 1 + word.size() > kColumns) {
      out += line + "\n" + std::string(kNameColumn, ' ');
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
  }
  return out + line + "\n";
}

/// CLI11's help, wrapped, with short words for values and defaults where they are read: at the end.
class Help : public CLI::Formatter {
 public:
  Help() {
    label("Usage", "usage");
    label("OPTIONS", "flags");
    label("Positionals", "arguments");
  }

  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override {
    std::string flags = "\nflags:\n";
    const CLI::Option* help = app->get_help_ptr();
    for (const CLI::Option* option : app->get_options()) {
      bool shown = option != help && option->nonpositional() && !option->get_group().empty();
      if (shown) flags += make_option(option, false);
    }
    flags += make_option(help, false);
    std::string footer = make_footer(app);
    return make_description(app) + make_usage(app, name) + make_positionals(app) + flags +
           make_subcommands(app, mode) + (footer.empty() ? "" : "\n" + footer);
  }

  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    return entry(make_option_name(option, is_positional) + make_option_opts(option),
                 make_option_desc(option));
  }

  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_expected_max() == 0) return "";
    std::string type = option->get_type_name();
    bool number = type.starts_with("INT") || type.starts_with("UINT") || type.starts_with("FLOAT");
    std::string text = option->get_positional() ? "" : number ? " N" : " X";
    return option->get_expected_max() == CLI::detail::expected_max_vector_size ? text + " ..."
                                                                               : text;
  }

  std::string make_option_desc(const CLI::Option* option) const override {
    std::string text = option->get_description();
    if (option->get_required()) text += " [required]";
    std::string value = option->get_default_str();
    if (value.starts_with("[") && value.ends_with("]")) value = value.substr(1, value.size() - 2);
    return value.empty() || value == "\"\"" ? text : fmt::format("{} [{}]", text, value);
  }

  std::string make_subcommand(const CLI::App* sub) const override {
    return entry(sub->get_name(), sub->get_description());
  }

  std::string make_subcommands(const CLI::App* app, CLI::AppFormatMode) const override {
    std::string out;
    if (app->get_parent()) {
      for (const CLI::App* sub : all_subcommands(*app)) out += make_subcommand(sub);
      return out.empty() ? "" : "\nsubcommands:\n" + out;
    }
    for (const Group& group : kGroups) {
      std::string part;
      for (const std::string& name : group.names) {
        for (const CLI::App* sub : all_subcommands(*app)) {
          if (sub->get_name() == name) part += make_subcommand(sub);
        }
      }
      if (!part.empty()) out += fmt::format("\n{}:\n{}", group.title, part);
    }
    return out;
  }

  std::string make_footer(const CLI::App* app) const override {
    return !all_subcommands(*app).empty()
               ? fmt::format("{} SUBCOMMAND --help says more.\n", full_name(*app))
               : "";
  }
};

/// The subcommand that the command line chose, as deep as it goes.
const CLI::App& chosen(const CLI::App& program) {
  const CLI::App* app = &program;
  for (auto next = app->get_subcommands(); !next.empty(); next = app->get_subcommands())
    app = next.back();
  return *app;
}

/// What `app` accepts in place of the word `given`.
std::vector<std::string> accepted(const CLI::App& app, std::string_view given) {
  std::vector<std::string> words;
  if (given.starts_with("-")) {
    for (const CLI::Option* option : app.get_options()) {
      for (const std::string& name : option->get_lnames()) words.push_back("--" + name);
    }
  } else {
    for (const CLI::App* sub : all_subcommands(app)) {
      words.push_back(sub->get_name());
    }
  }
  return words;
}

/// "--stages = two" in plain words.
std::string unconverted(const CLI::App& app, const std::string& text) {
  const size_t middle = std::min(text.find(" = "), text.size());
  const std::string flag = text.substr(0, middle);
  const std::string given = text.substr(std::min(middle + 3, text.size()));
  const CLI::Option* option = app.get_option_no_throw(flag);
  const std::string type = option ? option->get_type_name() : "";
  const char* kind = type.starts_with("INT")     ? "a whole number"
                     : type.starts_with("UINT")  ? "a whole number of at least 0"
                     : type.starts_with("FLOAT") ? "a number"
                                                 : "another value";
  return fmt::format("{} {}: expected {}", flag, given, kind);
}

/// "--costs: At Most 4 required but received 5", "--stages: 1 required INT missing" in plain words.
std::string miscounted(const std::string& text) {
  const std::string flag = text.substr(0, text.find(':'));
  if (text.ends_with(" missing")) return flag + " needs a value";
  const auto number = [&](std::string_view after) {
    const size_t at = text.find(after);
    return at == std::string::npos
               ? std::string()
               : text.substr(at + after.size(),
                             text.find(' ', at + after.size()) - at - after.size());
  };
  const std::string most = number("At Most "), least = number("At least "),
                    given = number("received ");
  if (given.empty() || (most.empty() && least.empty())) return text;
  return fmt::format("{}: {} values were given, expected at {} {}", flag, given,
                     most.empty() ? "least" : "most", most.empty() ? least : most);
}

}  // namespace

void set_help(CLI::App& program) {
  program.formatter(std::make_shared<Help>());
  program.set_help_flag("-h,--help", "print this help");
}

std::string usage_error(const CLI::App& program, const CLI::ParseError& error) {
  const CLI::App& app = chosen(program);
  std::string message = error.what();
  std::vector<std::string> extras = app.remaining();
  // A mistyped flag explains more than the required one that is missing because of it.
  bool wrong_word = dynamic_cast<const CLI::ExtrasError*>(&error) ||
                    message == "A subcommand is required" ||
                    (!extras.empty() && extras.front().starts_with("-"));
  if (wrong_word && !extras.empty()) {
    std::string given = extras.front().substr(0, extras.front().find('='));
    message = fmt::format("{} has no {} {}", full_name(app),
                          given.starts_with("-") ? "flag" : "subcommand", given);
    if (!given.starts_with("-") && accepted(app, given).empty())
      message = fmt::format("{} takes no argument {}", full_name(app), given);
    if (auto meant = base::nearest(given, accepted(app, given)))
      message += fmt::format("; did you mean {}?", *meant);
  } else if (constexpr std::string_view kConvert = "Could not convert: ";
             message.starts_with(kConvert)) {
    message = unconverted(app, message.substr(kConvert.size()));
  } else if (dynamic_cast<const CLI::ArgumentMismatch*>(&error)) {
    message = miscounted(message);
  }
  return fmt::format("{}\nsee {} --help", message, full_name(app));
}

void print_error(const std::string& message) {
  const char* no_color = std::getenv("NO_COLOR");
  bool color = ::isatty(STDERR_FILENO) && !(no_color && *no_color);
  std::string text = CLI::detail::find_and_replace(message, "\n", "\n  ");
  fmt::print(stderr, "trireme: {}: {}\n", color ? "\x1b[1;31merror\x1b[0m" : "error", text);
}

}  // namespace trireme::tools
