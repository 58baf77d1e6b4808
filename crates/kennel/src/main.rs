//! `kennel`: owns processes and never loses one. Server and command line in one binary.
//!
//! `kennel serve` is the keeper, which must be single-threaded: nothing here starts a runtime before the role of this
//! process is known. The keeper executes this binary again as `kennel server`. All other commands call a server.

// Their macros panic where nothing reads.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod cli;
mod complete;
mod config;
mod contexts;
mod detach_keys;
mod failure;
mod health;
mod help_pages;
mod http;
mod init;
mod listen;
mod migrate;
mod own_service;
mod prove;
mod remote;
mod retention;
mod secret;
mod serve;
mod server;
mod settings;
mod telemetry;
mod template;
mod terminal_text;
mod values;
mod version;

use args::{Cli, Command};
use clap::{FromArgMatches as _, error::ErrorKind};
use config::Surroundings;
use failure::{FAILED, Failure, in_time, note};
use kennel_keeper::zygote;
use std::{
    ffi::OsString,
    io::{self, Write as _},
    panic,
    process::ExitCode,
};

/// Exit code of an invalid command line.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    if matches!(&words[..], [_, word, _] if word == zygote::WORD) {
        return zygote::main();
    }
    if let Some(part) = naughty_part(&words) {
        return kennel_naughty::main(&part);
    }
    if is_preflight(&words) {
        let answer = kennel_keeper::preflight::answer(kennel_store::schema_level());
        return reported(cli::print_exact(&answer).map(|()| 0));
    }
    if let [_, word, dir] = &words[..]
        && word == help_pages::WORD
    {
        return reported(help_pages::write(dir.as_ref()).map(|()| 0));
    }
    complete::answer_shell();
    let words = short_numbers(words);
    let parsed = args::command().try_get_matches_from(&words);
    let parsed = parsed.and_then(|typed| Ok((Cli::from_arg_matches(&typed)?, typed)));
    let (cli, typed) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return not_understood(error, &words),
    };
    // The arguments of the last command.
    let mut typed = &typed;
    while let Some((_, behind)) = typed.subcommand() {
        typed = behind;
    }
    let here = Surroundings::here();
    match cli.command {
        Command::Serve(flags) if !flags.command.is_empty() => {
            init::main(&cli.client, &flags, typed, (&here, &words))
        }
        Command::Serve(flags) => {
            // The keeper ends where it panics, and does not wait for a reader before that.
            panic::set_hook(Box::new(|panic| {
                let text = panic.to_string();
                in_time(move || note(&text));
            }));
            reported(serve::keeper(&cli.client, &flags, typed, (&here, &words)))
        }
        Command::Config(command) => reported(cli::config(command, typed, &here).map(|()| 0)),
        Command::Server(flags) => reported(server::main(&flags, &here)),
        Command::Migrate(args) => {
            let format = cli.client.output.unwrap_or_default();
            cli::carry_out(false, Box::pin(migrate::migrate(args, format)))
        }
        // Calls no server: it starts its own.
        Command::Doctor(args) if args.prove => {
            let format = cli.client.output.unwrap_or_default();
            cli::carry_out(false, Box::pin(prove::prove(&format)))
        }
        command => cli::main(&cli.client, command, &here),
    }
}

/// Returns the exit code of this process, and reports a failure.
fn reported(done: Result<i32, Failure>) -> ExitCode {
    match done {
        Ok(code) => ExitCode::from(u8::try_from(code).unwrap_or(FAILED)),
        Err(failure) => {
            let code = failure.exit_code();
            in_time(move || {
                failure.report();
            });
            ExitCode::from(code)
        }
    }
}

/// Returns the words after `kennel naughty`: a program of the escape suite, which `doctor --prove` starts. No command
/// of the command line, which would cost each of its many processes the parsing.
fn naughty_part(words: &[OsString]) -> Option<Vec<String>> {
    let (_, [first, part @ ..]) = words.split_first()? else {
        return None;
    };
    let text = |word: &OsString| word.to_string_lossy().into_owned();
    (first == kennel_naughty::WORD).then(|| part.iter().map(text).collect())
}

/// Whether a keeper checks this binary before it starts a server from it. No command of the command line, whose form
/// may change.
fn is_preflight(words: &[OsString]) -> bool {
    matches!(words, [_, word] if word == kennel_keeper::preflight::WORD)
}

/// Expands the short forms of kill(1) and tail(1): `kill -9` and `kill -USR1` are short for `kill -s`, `tail -100` for
/// `tail -n 100`, `tail -100f` for `tail -n 100 -f`.
fn short_numbers(words: Vec<OsString>) -> Vec<OsString> {
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
fn not_understood(mut error: clap::Error, words: &[OsString]) -> ExitCode {
    let command = command_of(words);
    let explained = args::explain(&mut error, command);
    match explained {
        // The output may have no reader; there is no other way to report it.
        Some(text) => drop(writeln!(io::stderr(), "{text}")),
        None => drop(error.print()),
    }
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
        _ if command == Some("run") => ExitCode::from(cli::OWN_FAILURE),
        _ => ExitCode::from(USAGE),
    }
}

/// Returns the command that these words are for, as far as malformed words show it.
fn command_of(words: &[OsString]) -> Option<&str> {
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
    fn command_follows_the_global_flags() {
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
    fn signals_and_lines_have_a_short_form() {
        for (line, expanded) in [
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
            assert_eq!(short_numbers(words(line)), words(expanded), "{line}");
        }
    }
}
