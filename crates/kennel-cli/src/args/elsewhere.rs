//! Habits of other tools: commands and flags that Kennel does not have are answered by name, with the replacement.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Words of other tools, each with its replacement, in sections.
pub const HABITS: &str = include_str!("habits.txt");
/// Placeholder there for any word that is no flag.
const WORD: &str = "WORD";

/// Answers a word of another tool, and removes tips that lead to something else. `command` is the word typed as the
/// command, `whole` the command line.
pub(crate) fn explain(
    error: &mut clap::Error,
    command: Option<&str>,
    whole: &clap::Command,
) -> Option<String> {
    let command = command.unwrap_or_default();
    let kind = match error.kind() {
        ErrorKind::InvalidSubcommand => ContextKind::InvalidSubcommand,
        ErrorKind::UnknownArgument => ContextKind::InvalidArg,
        _ => {
            if let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidValue) {
                let word = word.clone();
                keep_near(error, ContextKind::SuggestedValue, &word);
            }
            return of_runs(error, command);
        }
    };
    let word = match error.get(kind) {
        Some(ContextValue::String(word)) => {
            word.split(['=', ' ']).next().unwrap_or(word).to_owned()
        }
        _ => return None,
    };
    let found = match kind {
        ContextKind::InvalidSubcommand => {
            let nested = (word != command).then(|| of_command(command, &word));
            let any = || instead(|section| section == "commands", &word);
            nested.flatten().or_else(any)
        }
        _ if ["run", "spawn", "add"].contains(&command) => {
            instead(|section| section == "run", &word)
        }
        _ => of_command(command, &word).or_else(|| instead(|section| section == "flags", &word)),
    };
    if let Some(hint) = found {
        return Some(match kind {
            ContextKind::InvalidSubcommand if word == command => {
                format!("error: there is no kennel {word}\nhint: {hint}")
            }
            ContextKind::InvalidSubcommand => {
                format!("error: there is no kennel {command} {word}\nhint: {hint}")
            }
            _ if word.starts_with('-') => format!("error: there is no {word}\nhint: {hint}"),
            _ => format!("error: kennel {command} has no place for {word:?}\nhint: {hint}"),
        });
    }
    error.remove(ContextKind::Usage);
    // "to pass '-x' as a value, use '-- -x'" does not help with any command here.
    error.remove(ContextKind::Suggested);
    keep_near(error, ContextKind::SuggestedArg, &word);
    if kind != ContextKind::InvalidSubcommand || word != command {
        keep_near(error, ContextKind::SuggestedSubcommand, &word);
        return None;
    }
    let shown = whole.get_subcommands().filter(|known| !known.is_hide_set());
    let near = shown.flat_map(|known| {
        let other = known.get_all_aliases();
        std::iter::once(known.get_name()).chain(other)
    });
    let near: Vec<&str> = near.filter(|name| is_near(name, &word)).collect();
    let hint = match &near[..] {
        [] => format!("a program is run by: kennel run -- {word}; the commands: kennel --help"),
        near => format!("did you mean kennel {}?", near.join(" or kennel ")),
    };
    Some(format!("error: there is no kennel {word}\nhint: {hint}"))
}

/// Answers a line without a run, or with a run and a selector of runs.
fn of_runs(error: &clap::Error, command: &str) -> Option<String> {
    let reads_all = ["logs", "tail", "log", "events", "watch"].contains(&command);
    let arg = match error.get(ContextKind::InvalidArg)? {
        ContextValue::String(arg) => arg.clone(),
        ContextValue::Strings(args) => args.join(" "),
        _ => return None,
    };
    let needs_run = || format!("error: kennel {command} needs a run: kennel {command} RUN\nhint: ");
    Some(match error.kind() {
        ErrorKind::MissingRequiredArgument if reads_all => {
            needs_run() + &format!("all runs: kennel {command} --all; some: -l KEY=VALUE")
        }
        ErrorKind::MissingRequiredArgument if arg.contains("<RUN>") => {
            needs_run() + "kennel ps lists live runs, kennel ps --all the ended ones too"
        }
        ErrorKind::ArgumentConflict if reads_all && arg.starts_with("--label") => format!(
            "error: kennel {command} takes ids of runs or labels, not both\n\
             hint: one run: kennel {command} RUN; runs by a label: kennel {command} -l KEY=VALUE; last lines: -n 20"
        ),
        ErrorKind::InvalidValue
            if ["ps", "ls", "list"].contains(&command)
                && arg.starts_with("--label")
                && error.get(ContextKind::InvalidValue)
                    == Some(&ContextValue::String(String::new())) =>
        {
            "error: -l needs a selector: -l KEY=VALUE\n\
             hint: more columns: kennel ps -o wide; the newest run: kennel ps -n 1"
                .to_owned()
        }
        _ => return None,
    })
}

/// Returns the replacement of a word in these sections.
fn instead(is_searched: impl Fn(&str) -> bool, word: &str) -> Option<&'static str> {
    let mut section = "";
    HABITS.lines().find_map(|line| {
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']');
            return None;
        }
        let (words, hint) = line.split_once(": ")?;
        let is_it = is_searched(section) && words.split(' ').any(|known| known == word);
        is_it.then_some(hint)
    })
}

fn of_command(command: &str, word: &str) -> Option<&'static str> {
    let word = if word.starts_with('-') { word } else { WORD };
    let is_of = |section: &str| {
        let commands = section.strip_prefix("of ");
        commands.is_some_and(|commands| commands.split(' ').any(|known| known == command))
    };
    instead(is_of, word)
}

/// Retains suggestions that may be meant.
fn keep_near(error: &mut clap::Error, kind: ContextKind, word: &str) {
    let suggested = match error.remove(kind) {
        Some(ContextValue::String(one)) => vec![one],
        Some(ContextValue::Strings(several)) => several,
        _ => return,
    };
    let near: Vec<String> = suggested
        .into_iter()
        .filter(|other| is_near(other, word))
        .collect();
    if !near.is_empty() {
        error.insert(kind, ContextValue::Strings(near));
    }
}

/// Whether a word may be meant by another, within the distance of a typing error: one in three letters, at most two.
fn is_near(meant: &str, word: &str) -> bool {
    strsim::damerau_levenshtein(meant, word) <= (word.len() / 3).min(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn hints_for_foreign_commands_are_unique() {
        let mut seen = BTreeSet::new();
        let mut section = "";
        let is_entry = |line: &&str| !line.is_empty() && !line.starts_with('#');
        for line in HABITS.lines().filter(is_entry) {
            if let Some(name) = line.strip_prefix('[') {
                section = name.strip_suffix(']').expect("a section");
                let is_known = ["commands", "run", "flags"].contains(&section);
                assert!(is_known || section.starts_with("of "), "{line}");
                continue;
            }
            let (words, hint) = line.split_once(": ").expect("words and a hint");
            assert!(!section.is_empty() && !hint.is_empty(), "{line}");
            for word in words.split(' ') {
                assert!(!word.is_empty() && seen.insert((section, word)), "{line}");
            }
        }
        assert_eq!(of_command("top", "ID"), of_command("stats", "WORD"));
        assert!(of_command("top", "ID").is_some());
    }
}
