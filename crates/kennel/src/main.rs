//! `kennel`: owns processes and never loses one. Server and command line in one binary.
//!
//! `kennel serve` is the keeper, which must be single-threaded: nothing here starts a runtime before the role of this
//! process is known. The keeper executes this binary again as `kennel server`. All other commands call a server.

// `println!` and `eprintln!` panic where nothing reads.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod config;
mod config_command;
mod health;
mod help_pages;
mod http;
mod init;
mod listen;
mod migrate;
mod offline;
mod own_service;
mod prove;
mod retention;
mod secret;
mod serve;
mod server;
mod settings;
mod telemetry;
mod values;
mod version;

use args::Command;
use clap::FromArgMatches as _;
use kennel_cli::{
    Cli, Command as ClientCommand, Failure,
    failure::{FAILED, in_time, note},
};
use kennel_client::Surroundings;
use kennel_keeper::zygote;
use own_service::Kennel;
use std::{ffi::OsString, panic, process::ExitCode};

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
        return reported(kennel_cli::print_exact(&answer).map(|()| 0));
    }
    if let [_, word, dir] = &words[..]
        && word == help_pages::WORD
    {
        return reported(help_pages::write(dir.as_ref()).map(|()| 0));
    }
    kennel_cli::answer_shell(args::command);
    let words = kennel_cli::expanded(words);
    let parsed = args::command().try_get_matches_from(&words);
    let parsed = parsed.and_then(|typed| Ok((Cli::from_arg_matches(&typed)?, typed)));
    let (cli, typed) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return kennel_cli::not_understood(error, &words, &args::command()),
    };
    // The arguments of the innermost subcommand.
    let mut typed = &typed;
    while let Some((_, behind)) = typed.subcommand() {
        typed = behind;
    }
    let here = Surroundings::here(kennel_linux::effective_uid());
    let format = cli.client.output.clone().unwrap_or_default();
    match cli.command {
        Command::Serve(flags) if !flags.command.is_empty() => {
            init::main(&cli.client, &flags, typed, (&here, &words))
        }
        Command::Serve(_) => {
            // The keeper ends where it panics, without waiting for a reader.
            panic::set_hook(Box::new(|panic| {
                let text = panic.to_string();
                in_time(move || note(&text));
            }));
            reported(serve::keeper(&cli.client, typed, (&here, &words)))
        }
        Command::Config(command) => {
            reported(config_command::config(command, &format, typed, &here).map(|()| 0))
        }
        Command::Server(_) => reported(server::main(typed, &here)),
        Command::Migrate(args) => kennel_cli::carry_out(
            false,
            &format.clone(),
            Box::pin(migrate::migrate(args, format)),
        ),
        // These commands call no server.
        Command::OfClient(ClientCommand::Doctor(args)) if args.prove => {
            kennel_cli::carry_out(false, &format, Box::pin(prove::prove(&format)))
        }
        Command::OfClient(ClientCommand::Audit(args)) if args.is_offline() => {
            let printed = async { offline::audit(&args, &format).map(|()| 0) };
            kennel_cli::carry_out(false, &format, printed)
        }
        Command::OfClient(command) => kennel_cli::main::<Kennel>(&cli.client, command, &here),
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
