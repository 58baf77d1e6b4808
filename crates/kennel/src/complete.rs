//! Completion in the shell: the words of the command line, and the runs and labels that there are.

use crate::{
    args,
    cli::{self, Link},
    config::Surroundings,
    terminal_text,
};
use clap_complete::{CompleteEnv, engine::CompletionCandidate, env::Shells};
use std::{collections::BTreeSet, ffi::OsStr, time::Duration};

/// Set by the shell's script when it asks; a name of our own, so that no variable of somebody else's is taken for it.
const VARIABLE: &str = "KENNEL_COMPLETE";
/// Longest time that a person waits for a key.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// Runs that are offered, the newest.
const RUNS_MAX: usize = 200;

/// Answers the shell and does not return, where this process was started for that.
pub(crate) fn answer_shell() {
    if std::env::var_os(VARIABLE).is_some() {
        let complete = CompleteEnv::with_factory(args::command).var(VARIABLE);
        complete.bin("kennel").complete();
    }
}

/// What a shell has to read, so that it asks.
pub(crate) fn script(shell: &str) -> Option<String> {
    let shells = Shells::builtins();
    let mut text = Vec::new();
    let completer = shells.completer(shell)?;
    let written = completer.write_registration(VARIABLE, "kennel", "kennel", "kennel", &mut text);
    written.ok()?;
    String::from_utf8(text).ok()
}

/// Ids of runs, live ones first, each with its state and its command.
pub(crate) fn runs(typed: &OsStr) -> Vec<CompletionCandidate> {
    let typed = typed.to_string_lossy().to_ascii_uppercase();
    let mut runs = listed();
    runs.sort_by_key(|run| run.end_time.is_some());
    let fits = runs
        .into_iter()
        .filter(|run| run.run_id.starts_with(&typed));
    let candidate = |(order, run): (usize, kennel_proto::pb::Run)| {
        let help = format!("{} {}", cli::state_word(&run), cli::command_of(&run));
        let help = terminal_text::one_line(&help);
        let candidate = CompletionCandidate::new(&run.run_id).display_order(Some(order));
        candidate.help(Some(help.into()))
    };
    fits.enumerate().map(candidate).collect()
}

/// Labels that runs have.
pub(crate) fn labels(typed: &OsStr) -> Vec<CompletionCandidate> {
    let typed = typed.to_string_lossy();
    let pairs = listed().into_iter().flat_map(|run| run.labels);
    let pairs: BTreeSet<String> = pairs.map(|(key, value)| format!("{key}={value}")).collect();
    let fits = pairs.into_iter().filter(|pair| pair.starts_with(&*typed));
    fits.map(CompletionCandidate::new).collect()
}

/// The newest runs of the server that the words name; none where it does not answer at once.
fn listed() -> Vec<kennel_proto::pb::Run> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let Ok(runtime) = runtime else {
        return Vec::new();
    };
    let asked = async {
        let server = named_server(std::env::args());
        let here = Surroundings::here();
        let link = Link::open(server.as_deref(), args::Format::default(), &here).await?;
        cli::list_all(&link, kennel_proto::pb::RunFilter::default(), RUNS_MAX).await
    };
    let answer = runtime.block_on(async { tokio::time::timeout(ANSWER_MAX, asked).await });
    answer.ok().and_then(Result::ok).unwrap_or_default()
}

/// The value of --server, as far as it was typed.
fn named_server(mut words: impl Iterator<Item = String>) -> Option<String> {
    while let Some(word) = words.next() {
        match word.strip_prefix("--server") {
            Some("") => return words.next(),
            Some(value) => return value.strip_prefix('=').map(str::to_owned),
            None => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_is_the_one_that_was_typed() {
        let named = |line: &str| named_server(line.split(' ').map(str::to_owned));
        assert_eq!(named("kennel -- kennel stop 0"), None);
        assert_eq!(
            named("kennel -- kennel --server unix:/s stop").as_deref(),
            Some("unix:/s")
        );
        assert_eq!(
            named("kennel -- kennel stop --server=unix:/s").as_deref(),
            Some("unix:/s")
        );
    }

    #[test]
    fn each_shell_has_a_script() {
        for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
            let script = script(shell).expect(shell);
            assert!(
                script.contains(VARIABLE) && script.contains("kennel"),
                "{shell}: {script}"
            );
        }
    }
}
