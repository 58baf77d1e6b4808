//! Completion in the shell: the words of the command line, and the existing runs and labels.

use crate::{
    Failure, Link,
    args::{self, ClientArgs},
    command, list, refused, terminal_text, words,
};
use clap::{Arg, Args, Command, FromArgMatches as _};
use clap_complete::{CompleteEnv, Shell, engine::CompletionCandidate, env::Shells};
use kennel_client::Surroundings;
use std::{collections::BTreeSet, ffi::OsStr, time::Duration};

#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// Shell to complete in
    #[arg(value_enum, value_name = "SHELL")]
    pub(crate) shell: Shell,
}

/// Variable that the shell's script sets when it asks; its name is Kennel's own, so that no other program's variable
/// counts.
const VARIABLE: &str = "KENNEL_COMPLETE";
/// Longest time that a person waits for a key.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// Most runs offered, the newest.
const RUNS_MAX: usize = 200;

/// Answers the shell and does not return, if this process was started for that.
pub fn answer_shell(whole: fn() -> clap::Command) {
    if std::env::var_os(VARIABLE).is_some() {
        let complete = CompleteEnv::with_factory(whole).var(VARIABLE);
        complete.bin("kennel").complete();
    }
}

/// Returns the script that a shell has to read.
pub(crate) fn script(shell: &str) -> Option<String> {
    let shells = Shells::builtins();
    let mut text = Vec::new();
    let completer = shells.completer(shell)?;
    let written = completer.write_registration(VARIABLE, "kennel", "kennel", "kennel", &mut text);
    written.ok()?;
    String::from_utf8(text).ok()
}

/// Completes ids of runs, live ones first, each with its state and its command.
pub(crate) fn runs(typed: &OsStr) -> Vec<CompletionCandidate> {
    let typed = typed.to_string_lossy().to_ascii_uppercase();
    let mut runs = listed();
    runs.sort_by_key(|run| run.end_time.is_some());
    let fits = runs
        .into_iter()
        .filter(|run| run.run_id.starts_with(&typed));
    let candidate = |(order, run): (usize, kennel_proto::pb::Run)| {
        let (state, command) = (words::state(run.state()), command::or_dash(&run));
        let help = terminal_text::one_line(&format!("{state} {command}"));
        let candidate = CompletionCandidate::new(&run.run_id).display_order(Some(order));
        candidate.help(Some(help.into()))
    };
    fits.enumerate().map(candidate).collect()
}

/// Completes restart modes.
pub(crate) fn restarts() -> Vec<CompletionCandidate> {
    let all = ["never", "on-failure", "always", "agent", "keepalive"];
    all.map(CompletionCandidate::new).into()
}

/// Completes labels of existing runs.
pub(crate) fn labels(typed: &OsStr) -> Vec<CompletionCandidate> {
    let typed = typed.to_string_lossy();
    let pairs = listed().into_iter().flat_map(|run| run.labels);
    let pairs: BTreeSet<String> = pairs.map(|(key, value)| format!("{key}={value}")).collect();
    let fits = pairs.into_iter().filter(|pair| pair.starts_with(&*typed));
    fits.map(CompletionCandidate::new).collect()
}

/// Returns the newest runs of the server that the words name; none where it does not answer at once.
fn listed() -> Vec<kennel_proto::pb::Run> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let Ok(runtime) = runtime else {
        return Vec::new();
    };
    let asked = async {
        let client = typed_client(&std::env::args().collect::<Vec<_>>());
        let client = client.ok_or_else(|| Failure::new("no flags"))?;
        let here = Surroundings::here(kennel_linux::effective_uid());
        let link = Link::open(&client, args::Format::default(), &here).await?;
        let listed = list::all(
            &link.connection,
            kennel_proto::pb::RunFilter::default(),
            RUNS_MAX,
        );
        listed.await.map_err(refused)
    };
    let answer = runtime.block_on(async { tokio::time::timeout(ANSWER_MAX, asked).await });
    // Runs that the server cannot read are left out without a note, which would appear in the typed line.
    let listed = answer.ok().and_then(Result::ok);
    listed.map(|listed| listed.runs).unwrap_or_default()
}

/// Returns the flags of clients, as far as they were typed. The words before `--` are the shell's.
fn typed_client(words: &[String]) -> Option<ClientArgs> {
    let typed = words.iter().skip_while(|word| *word != "--").skip(1);
    let command = ClientArgs::augment_args(Command::new("kennel")).ignore_errors(true);
    let rest = Arg::new("rest").num_args(0..);
    let typed = command.arg(rest).try_get_matches_from(typed).ok()?;
    ClientArgs::from_arg_matches(&typed).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn completion_asks_the_server_on_command_line() {
        let typed = |line: &str| {
            typed_client(&line.split(' ').map(str::to_owned).collect::<Vec<_>>()).expect(line)
        };
        let named = |line: &str| typed(line).server;
        assert_eq!(named("kennel -- kennel stop 0"), None);
        assert_eq!(
            named("kennel -- kennel --server unix:/s stop").as_deref(),
            Some("unix:/s")
        );
        assert_eq!(
            named("kennel -- kennel stop --server=unix:/s").as_deref(),
            Some("unix:/s")
        );
        let far = typed("kennel -- kennel --context far --tls-ca=/ca stop --tls-server-name n");
        assert_eq!(far.remote.context.as_deref(), Some("far"));
        assert_eq!(far.remote.tls_ca.as_deref(), Some(Path::new("/ca")));
        assert_eq!(
            (far.server, far.remote.tls_server_name.as_deref()),
            (None, Some("n"))
        );
    }

    // promise: C-55
    #[test]
    fn each_shell_has_a_completion_script() {
        for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
            let script = script(shell).expect(shell);
            assert!(
                script.contains(VARIABLE) && script.contains("kennel"),
                "{shell}: {script}"
            );
        }
    }
}
