//! `kennel`: owns processes and never loses one. Server and command line in one binary.
//!
//! `kennel serve` is the keeper, which must be single-threaded: nothing here starts a runtime before it is known
//! what this process is. The keeper executes this binary again as `kennel server`. All other commands ask a server.

mod args;
mod cli;
mod config;
mod detach_keys;
mod failure;
mod help_pages;
mod own_service;
mod prove;
mod retention;
mod secret;
mod serve;
mod server;
mod telemetry;
mod terminal_text;
mod values;

use args::{Cli, Command};
use clap::{Parser as _, error::ErrorKind};
use config::Surroundings;
use std::{ffi::OsString, process::ExitCode};

/// Exit code of a command line that was not understood.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    if let Some(part) = naughty_part(&words) {
        return kennel_naughty::main(&part);
    }
    if is_preflight(&words) {
        return preflight();
    }
    if let [_, word, dir] = &words[..]
        && word == help_pages::WORD
    {
        return match help_pages::write(dir.as_ref()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => failure.report(),
        };
    }
    let cli = match Cli::try_parse_from(&words) {
        Ok(cli) => cli,
        Err(error) => return not_understood(&error, &words),
    };
    let here = Surroundings::here();
    match cli.command {
        Command::Serve(flags) => serve::keeper(&cli.client, &flags, &here, &words),
        Command::Server(flags) => server::main(&flags, &here),
        // Asks no server: it has its own.
        Command::Doctor(args) if args.prove => {
            let format = cli.client.output.unwrap_or_default();
            cli::carry_out(false, Box::pin(prove::prove(format)))
        }
        command => cli::main(&cli.client, command, &here),
    }
}

/// The words after `kennel naughty`: a program of the escape suite, which `doctor --prove` starts. No command of the
/// command line, which would cost each of its many processes the parsing.
fn naughty_part(words: &[OsString]) -> Option<Vec<String>> {
    let (_, [first, part @ ..]) = words.split_first()? else {
        return None;
    };
    let text = |word: &OsString| word.to_string_lossy().into_owned();
    (first == kennel_naughty::WORD).then(|| part.iter().map(text).collect())
}

/// What a keeper asks a binary before it starts a server from it. No command of the command line, whose form may change.
fn is_preflight(words: &[OsString]) -> bool {
    matches!(words, [_, word] if word == kennel_keeper::preflight::WORD)
}

fn preflight() -> ExitCode {
    match cli::print_exact(&kennel_keeper::preflight::answer()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Prints what clap has to say, which includes help and version.
fn not_understood(error: &clap::Error, words: &[OsString]) -> ExitCode {
    // Nobody may be reading; there is nowhere else to say so.
    let _ = error.print();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
        _ if is_run(words) => ExitCode::from(cli::OWN_FAILURE),
        _ => ExitCode::from(USAGE),
    }
}

/// Whether these words were meant for `kennel run`, as far as that can be said of words that are not well formed.
fn is_run(words: &[OsString]) -> bool {
    let mut words = words.iter().skip(1);
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("--server" | "-o" | "--output") => {
                words.next();
            }
            Some(flag) if flag.starts_with('-') => {}
            word => return word == Some("run"),
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_is_recognised_behind_the_flags_of_every_command() {
        let is = |line: &str| is_run(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert!(is("kennel run --bad"));
        assert!(is("kennel -o json --server unix:/s run"));
        assert!(!is("kennel -o run ps"));
        assert!(!is("kennel ps run"));
        assert!(!is("kennel"));
    }
}
