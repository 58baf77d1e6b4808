//! `kennel help-pages DIR`: writes the man pages, the reference of the command line and the settings of `serve`, all from the
//! definitions of the command line itself.
//!
//! Packages and the documentation site are its callers. It is no command of the command line, so help does not list it.

use crate::{
    args,
    settings::{self, bracketed},
};
use clap::{Arg, Command};
use kennel_cli::{Failure, failure::because, values::only_if};
use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

/// The word after `kennel`.
pub(crate) const WORD: &str = "help-pages";

/// Writes all pages into a directory, which is created.
///
/// # Errors
/// If a file cannot be written.
pub(crate) fn write(dir: &Path) -> Result<(), Failure> {
    let command = complete();
    let mut pages = vec![
        (dir.join("commands.md"), commands_page(&command)),
        (dir.join("settings.md"), settings_page(&command)),
    ];
    for (name, command) in with_path(&command, "") {
        let mut page = Vec::new();
        let file = name.replace(' ', "-");
        clap_mangen::Man::new(command.clone())
            .title(&file)
            .render(&mut page)
            .map_err(because(format_args!(
                "cannot render the man page of {name}"
            )))?;
        let page = String::from_utf8_lossy(&page).into_owned();
        pages.push((dir.join("man").join(format!("{file}.1")), page));
    }
    for (path, page) in pages {
        write_file(&path, &page)?;
    }
    Ok(())
}

fn write_file(path: &PathBuf, text: &str) -> Result<(), Failure> {
    let written = path
        .parent()
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| fs::write(path, text));
    written.map_err(because(format_args!("cannot write {}", path.display())))
}

/// The command line with the flags that commands inherit.
fn complete() -> Command {
    let mut command = args::command().disable_help_subcommand(true);
    command.build();
    command
}

/// Each visible command with its whole name, in the order of the help.
fn with_path<'a>(command: &'a Command, before: &str) -> Vec<(String, &'a Command)> {
    let name = format!("{before} {}", command.get_name()).trim().to_owned();
    let below = command
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
        .flat_map(|command| with_path(command, &name))
        .collect();
    [vec![(name, command)], below].concat()
}

fn commands_page(command: &Command) -> String {
    let mut page = "# Which flags does each command have?\n\n\
        This page is generated from the command line; `kennel COMMAND --help` prints the same. By task: \
        [commands](../docs/guide/reference/commands.md). The man pages say it too, from [kennel.1](man/kennel.1) on.\n"
        .to_owned();
    for (name, command) in with_path(command, "") {
        command_section(&mut page, &name, command);
    }
    page
}

fn command_section(page: &mut String, name: &str, command: &Command) {
    let about = command.get_about().map(ToString::to_string);
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").replace('\n', " ");
    let _ = write!(
        page,
        "\n## {name}\n\n{}.\n\n```text\n{}\n```\n",
        markdown(about.unwrap_or_default().trim_end_matches('.')),
        usage.trim()
    );
    let args: Vec<&Arg> = command
        .get_arguments()
        .filter(|arg| is_shown(arg))
        .collect();
    if !args.is_empty() {
        page.push_str("\n| argument | default | meaning |\n|---|---|---|\n");
        for arg in args {
            let setting = SettingRow::of(arg);
            let _ = writeln!(
                page,
                "| {} | {} | {} |",
                code(&setting.form),
                code(&setting.default),
                setting.meaning_with_variable()
            );
        }
    }
    if let Some(after) = command.get_after_help() {
        let _ = write!(page, "\n```text\n{}\n```\n", after.to_string().trim());
    }
}

/// All settings of `serve` in one table.
fn settings_page(command: &Command) -> String {
    let mut page = "# Which settings does `kennel serve` have?\n\n\
        Each row is one setting: a flag wins over its variable, a variable over the configuration file, the file over the \
        default.\n\n\
        The file is TOML: `/etc/kennel/kennel.toml`, or the one that `--config` or `KENNEL_CONFIG` names. `kennel config check` \
        finds what `serve` would refuse, `kennel config show --origin` prints where each value comes from. This page is \
        generated from the command line.\n\n\
        | flag | variable | key in the file | default | meaning |\n|---|---|---|---|---|\n"
        .to_owned();
    let serve = command.find_subcommand("serve").into_iter();
    for arg in serve
        .flat_map(Command::get_arguments)
        .filter(|arg| is_shown(arg))
    {
        let setting = SettingRow::of(arg);
        let key = settings::key(arg);
        let in_file = only_if(settings::is_setting(arg), &key);
        let _ = writeln!(
            page,
            "| {} | {} | {} | {} | {} |",
            code(&setting.form),
            code(&settings::variable(&key)),
            code(in_file),
            code(&setting.default),
            setting.meaning
        );
    }
    page.push_str(
        "\nVariables `OTEL_*` of OpenTelemetry have no flag: see [telemetry](../docs/guide/reference/telemetry.md). Clients \
         find the server by `--server`, else by `KENNEL_SERVER`, else at the default of `--listen`.\n",
    );
    page
}

fn is_shown(arg: &Arg) -> bool {
    !arg.is_hide_set() && !matches!(arg.get_id().as_str(), "help" | "version")
}

/// An argument as a row of a table.
struct SettingRow {
    form: String,
    variable: String,
    default: String,
    meaning: String,
}

impl SettingRow {
    /// The variable stands in brackets at the end of the help text; the default stands there, or is clap's.
    fn of(arg: &Arg) -> Self {
        let help = arg.get_long_help().or(arg.get_help());
        let help = help.map(ToString::to_string).unwrap_or_default();
        let (help, default) = bracketed(&help, "default");
        let (help, variable) = bracketed(&help, "env");
        let defaults: Vec<String> = arg
            .get_default_values()
            .iter()
            .map(|value| value.to_string_lossy().into_owned())
            .collect();
        let takes_value = arg.get_action().takes_values();
        Self {
            form: form(arg),
            variable: variable.unwrap_or_default(),
            default: default.unwrap_or_else(|| {
                if takes_value {
                    defaults.join(" ")
                } else {
                    String::new()
                }
            }),
            meaning: markdown(&(help + &values(arg))),
        }
    }

    fn meaning_with_variable(&self) -> String {
        if self.variable.is_empty() {
            self.meaning.clone()
        } else {
            format!("{} (variable `{}`)", self.meaning, self.variable)
        }
    }
}

/// Formats the flag as typed, such as `-o, --output <FORM>`.
fn form(arg: &Arg) -> String {
    let value = arg
        .get_value_names()
        .unwrap_or_default()
        .iter()
        .map(|name| format!("<{name}>"))
        .collect::<Vec<_>>()
        .join(" ");
    let flags = [
        arg.get_short().map(|short| format!("-{short}")),
        arg.get_long().map(|long| format!("--{long}")),
    ];
    let flags = flags.into_iter().flatten().collect::<Vec<_>>().join(", ");
    if arg.get_action().takes_values() {
        format!("{flags} {value}").trim().to_owned()
    } else {
        flags
    }
}

/// Lists the permitted values, each with its meaning.
fn values(arg: &Arg) -> String {
    if !arg.get_action().takes_values() {
        return String::new();
    }
    let values = arg.get_possible_values();
    let values = values.iter().filter(|value| !value.is_hide_set());
    let values: Vec<String> = values
        .map(|value| {
            let help = value.get_help().map(|help| format!(": {help}"));
            format!("`{}`{}", value.get_name(), help.unwrap_or_default())
        })
        .collect();
    if values.is_empty() {
        String::new()
    } else {
        format!(". {}", values.join("; "))
    }
}

/// Formats a text for a table cell, one line, in which only text between backticks is markup.
fn markdown(text: &str) -> String {
    let mut inside = false;
    let mut out = String::new();
    for letter in text
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .chars()
    {
        match letter {
            '`' => inside = !inside,
            '<' if !inside => {
                out.push_str("&lt;");
                continue;
            }
            '|' | '*' | '_' if !inside || letter == '|' => out.push('\\'),
            _ => {}
        }
        out.push(letter);
    }
    out
}

fn code(text: &str) -> String {
    if text.is_empty() {
        String::new()
    } else {
        // A default may itself contain backticks.
        format!("`{}`", text.replace('`', "").replace('|', "\\|"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_page_has_every_flag_of_serve() {
        let command = complete();
        let page = settings_page(&command);
        let serve = command.find_subcommand("serve").expect("it is there");
        let flags = serve.get_arguments().filter(|arg| is_shown(arg));
        for arg in flags {
            let row = format!("| `{}`", form(arg).replace('|', "\\|"));
            assert!(page.contains(&row), "{row} is not in\n{page}");
        }
        let row = "| `--listen <ADDRESS>` | `KENNEL_LISTEN` | `listen` | `/run/kennel";
        assert!(page.contains(row), "{page}");
    }

    #[test]
    fn every_visible_command_has_its_pages() {
        let dir = tempfile::tempdir().expect("a directory");
        write(dir.path()).expect("it can be written");
        let page = fs::read_to_string(dir.path().join("commands.md")).expect("the page");
        for (name, _) in with_path(&complete(), "") {
            assert!(page.contains(&format!("\n## {name}\n")), "{name}");
            let man = dir.path().join(format!("man/{}.1", name.replace(' ', "-")));
            let man = fs::read_to_string(man).expect("its man page");
            assert!(man.contains(".SH SYNOPSIS"), "{name}");
        }
        assert!(!page.contains("\n## kennel server\n"));
    }

    /// Returns code in the pages that begins with `kennel`: between backticks, and lines for the shell.
    fn commands_of(text: &str) -> Vec<String> {
        let mut found = Vec::new();
        let mut is_code = false;
        for line in text.lines() {
            if line.trim_start().starts_with("```") {
                is_code = !is_code;
            } else if is_code {
                found.push(line.trim_start_matches("$ ").to_owned());
            } else {
                found.extend(line.split('`').skip(1).step_by(2).map(str::to_owned));
            }
        }
        found.retain(|fragment| fragment.starts_with("kennel "));
        found
    }

    /// Returns a command or a flag of a fragment that the command line does not have.
    fn unknown_in(fragment: &str, command: &Command) -> Option<String> {
        let mut words = fragment.split_whitespace().skip(1);
        let name = words.next()?;
        if name.starts_with('-') || name == name.to_uppercase() || name == WORD {
            return None;
        }
        let name = name.trim_end_matches([',', ';']);
        let Some(known) = command.find_subcommand(name) else {
            return Some(format!("{fragment}: no command {name}"));
        };
        let longs = |command: &Command| -> Vec<String> {
            let args = command.get_arguments();
            args.filter_map(|arg| arg.get_long().map(str::to_owned))
                .collect()
        };
        let mut flags = longs(known);
        flags.extend(known.get_subcommands().flat_map(longs));
        let mut given = words
            .take_while(|word| {
                !matches!(*word, "--" | "|" | "&&" | "||" | "#") && !word.starts_with('#')
            })
            .map(|word| word.trim_matches(['[', ']']))
            .filter_map(|word| word.strip_prefix("--"))
            .map(|word| word.split(['=', '|', ']']).next().unwrap_or_default());
        given
            .find(|flag| !flags.iter().any(|known| known == flag))
            .map(|flag| format!("{fragment}: no flag --{flag}"))
    }

    fn pages_below(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).expect("a folder can be read") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                pages_below(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }

    #[test]
    fn pages_name_commands_and_flags_that_exist() {
        // The preflight word is handled before parsing, for the keeper of another version.
        let preflight = format!("kennel {}", kennel_keeper::preflight::WORD);
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut pages = vec![root.join("README.md")];
        pages_below(&root.join("docs/guide"), &mut pages);
        pages_below(&root.join("docs/errors"), &mut pages);
        let command = complete();
        let fragments: Vec<String> = pages
            .iter()
            .flat_map(|page| commands_of(&fs::read_to_string(page).expect("a page can be read")))
            .collect();
        assert!(fragments.len() > 200, "only {} commands", fragments.len());
        let unknown: Vec<String> = fragments
            .iter()
            .filter(|fragment| **fragment != preflight)
            .filter_map(|fragment| unknown_in(fragment, &command))
            .collect();
        assert_eq!(unknown, Vec::<String>::new());
    }

    /// Splits a line as a shell does that has single quotes alone.
    fn words_of(line: &str) -> Vec<String> {
        let mut words = vec![String::new()];
        let mut is_quoted = false;
        for letter in line.chars() {
            match letter {
                '\'' => is_quoted = !is_quoted,
                ' ' if !is_quoted => words.push(String::new()),
                letter => words.last_mut().expect("it has one").push(letter),
            }
        }
        words
    }

    // promise: C-69
    #[test]
    fn help_lists_each_command_once() {
        let mut whole = complete();
        let help = whole.render_help().to_string();
        for command in whole
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
        {
            let line = format!("\n  {:12} ", command.get_name());
            assert_eq!(help.matches(&line).count(), 1, "{}", command.get_name());
        }
    }

    // promise: C-68
    #[test]
    fn each_command_has_an_example_that_parses() {
        for (name, command) in with_path(&complete(), "") {
            if command.has_subcommands() {
                continue;
            }
            let text = command.get_after_help().map(ToString::to_string);
            let text = text.unwrap_or_default();
            let (_, examples) = text.split_once("Examples:\n").unwrap_or_default();
            let examples: Vec<&str> = examples.lines().map(str::trim).collect();
            assert!(!examples.is_empty(), "{name} has no example");
            for example in examples {
                assert!(example.starts_with(&name), "{name}: {example}");
                let words =
                    kennel_cli::expanded(words_of(example).into_iter().map(Into::into).collect());
                let typed = args::command().try_get_matches_from(words);
                assert!(typed.is_ok(), "{example}: {}", typed.expect_err("checked"));
            }
        }
    }

    #[test]
    fn tips_name_commands_and_flags_that_exist() {
        let command = complete();
        let tips = kennel_cli::HABITS.lines().flat_map(|line| {
            let starts = line.match_indices("kennel ").map(|(at, _)| at);
            // In prose `kennel` is the name of the product.
            let starts =
                starts.filter(|at| line[..*at].ends_with(": ") || line[..*at].ends_with("$("));
            starts.map(|at| line[at..].split([';', ')', ',']).next().unwrap_or_default())
        });
        let unknown: Vec<String> = tips.filter_map(|tip| unknown_in(tip, &command)).collect();
        assert_eq!(unknown, Vec::<String>::new());
    }

    #[test]
    fn unknown_commands_and_flags_are_detected() {
        let command = complete();
        assert!(unknown_in("kennel run --label a=b -- ls --colour", &command).is_none());
        assert!(unknown_in("kennel consumers rm NAME --run RUN", &command).is_none());
        assert!(unknown_in("kennel run --lable a=b -- ls", &command).is_some());
        assert!(unknown_in("kennel exec ls", &command).is_some());
        let page = "`kennel a` and `b`\n```sh\nkennel c\nx\n```\n";
        assert_eq!(commands_of(page), ["kennel a", "kennel c"]);
    }
}
