//! The words of a command line, before they are parsed and where they cannot be.

use crate::{OWN_FAILURE, USAGE, args::explain, values};
use clap::error::ErrorKind;
use std::{
    ffi::OsString,
    io::{self, Write as _},
    process::ExitCode,
};

/// Expands the short forms of kill(1) and tail(1): `kill -9` and `kill -USR1` are short for `kill -s`, `tail -100` for
/// `tail -n 100`, `tail -100f` for `tail -n 100 -f`.
pub fn expanded(words: Vec<OsString>) -> Vec<OsString> {
    let (flag, is_value): (_, fn(&str) -> bool) = match command_of(&words) {
        Some("kill") => ("-s", |word| values::signal(word).is_ok()),
        Some("logs" | "log" | "tail") => ("-n", |word| word.parse::<u64>().is_ok()),
        _ => return words,
    };
    let mut is_for_value = false;
    let expanded = words.into_iter().flat_map(|word| {
        // In a group of short flags the last one takes the value.
        let is_group = |text: &str| {
            let letters = text
                .strip_prefix('-')
                .and_then(|group| group.strip_suffix('n'));
            letters.is_some_and(|all| all.chars().all(|letter| letter.is_ascii_alphabetic()))
        };
        let is_long = ["--tail", "--lines"].iter().any(|flag| word == *flag);
        let wants_value = is_long || word.to_str().is_some_and(is_group);
        let is_value_of_flag = std::mem::replace(&mut is_for_value, wants_value);
        let value = word.to_str().and_then(|word| word.strip_prefix('-'));
        let Some(value) = value.filter(|_| !is_value_of_flag) else {
            return vec![word];
        };
        let follows = value.strip_suffix('f').filter(|_| flag == "-n");
        let number = follows.unwrap_or(value);
        if !is_value(number) {
            return vec![word];
        }
        let mut long = vec![OsString::from(flag), number.into()];
        long.extend(follows.map(|_| OsString::from("-f")));
        long
    });
    expanded.collect()
}

/// Prints clap's message, which includes help and version.
pub fn not_understood(
    mut error: clap::Error,
    words: &[OsString],
    whole: &clap::Command,
) -> ExitCode {
    let command = command_of(words);
    let explained = explain(&mut error, command, whole);
    match explained {
        // The output may have no reader, and a failed write cannot be reported.
        Some(text) => drop(writeln!(io::stderr(), "{text}")),
        None => drop(error.print()),
    }
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
        _ if command == Some("run") => ExitCode::from(OWN_FAILURE),
        _ => ExitCode::from(USAGE),
    }
}

/// Returns the command that these words are for, as far as malformed words show it.
pub fn command_of(words: &[OsString]) -> Option<&str> {
    let mut words = words.iter().skip(1);
    while let Some(word) = words.next() {
        match word.to_str()? {
            "--server" | "--server-user" | "--node" | "-o" | "--output" | "--format"
            | "--context" | "--tls-ca" | "--tls-cert" | "--tls-key" | "--tls-server-name"
            | "--token-file" => {
                words.next();
            }
            flag if flag.starts_with('-') => {}
            word => return Some(word),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn command_is_found_after_global_flags() {
        for (line, command) in [
            ("kennel run --bad", Some("run")),
            ("kennel -o json --server unix:/s run", Some("run")),
            ("kennel --context prod --tls-ca f run", Some("run")),
            ("kennel -o run ps", Some("ps")),
            ("kennel ps run", Some("ps")),
            ("kennel", None),
        ] {
            assert_eq!(command_of(&words(line)), command, "{line}");
        }
    }

    #[test]
    fn kill_and_tail_short_flags_are_expanded() {
        for (line, whole) in [
            ("kennel kill -9 R", "kennel kill -s 9 R"),
            ("kennel kill -USR1 R", "kennel kill -s USR1 R"),
            ("kennel kill -s 9 R", "kennel kill -s 9 R"),
            ("kennel run x -9", "kennel run x -9"),
            ("kennel tail -100 R", "kennel tail -n 100 R"),
            ("kennel logs -n 5 R", "kennel logs -n 5 R"),
            ("kennel tail -10f R", "kennel tail -n 10 -f R"),
            ("kennel logs -n -1 R", "kennel logs -n -1 R"),
            ("kennel logs --tail -1 R", "kennel logs --tail -1 R"),
        ] {
            assert_eq!(expanded(words(line)), words(whole), "{line}");
        }
    }
}
