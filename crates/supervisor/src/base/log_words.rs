//! Spelling of values in log lines: the names of the contract, each value on one line.

use kennel_lifecycle::{
    Exit, Outcome, ProcessIdentity, RunIdentity, Stuck,
    recovery::{Observation, ProcessPresence},
};
use kennel_store::StoredState;
use std::fmt::Write as _;

/// Exit code, where the command has exited.
pub(crate) fn exit_code(exit: Option<Exit>) -> Option<i32> {
    match exit {
        Some(Exit::Code(code)) => Some(code),
        Some(Exit::Signal { .. } | Exit::Unknown) | None => None,
    }
}

/// Signal that killed the command, where one did.
pub(crate) fn exit_signal(exit: Option<Exit>) -> Option<String> {
    match exit {
        Some(Exit::Signal { signal, .. }) => Some(signal.to_string()),
        Some(Exit::Code(_) | Exit::Unknown) | None => None,
    }
}

/// `SUCCEEDED exited tree=empty`.
pub(crate) fn outcome(outcome: &Outcome) -> String {
    let (state, reason) = (outcome.state().api_name(), outcome.reason.name());
    format!("{state} {reason} tree={}", outcome.tree.name())
}

pub(crate) fn stored_state(state: StoredState) -> String {
    <&str>::from(state).to_ascii_uppercase()
}

/// `12:34567`: a pid with its start time, which together name one process.
fn process(process: &ProcessIdentity) -> String {
    format!("{}:{}", process.pid, process.start_ticks)
}

/// `command=12:34567 shim=11:34560 boot=...`.
pub(crate) fn identity(identity: Option<&RunIdentity>) -> String {
    let Some(identity) = identity else {
        return "none".to_owned();
    };
    let (command, shim) = (process(&identity.command), process(&identity.shim));
    let host = &identity.host;
    format!(
        "command={command} shim={shim} boot={} pidns={}",
        host.boot_id, host.pidns_inode
    )
}

/// Process ids with their states and reasons.
pub(crate) fn stuck(stuck: &Stuck) -> String {
    let mut text = String::new();
    for process in &stuck.processes {
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "{}{} ({}): {}",
            if text.is_empty() { "" } else { "; " },
            process.pid,
            process.state,
            process.why
        );
    }
    if stuck.unlisted > 0 {
        let _ = write!(text, "; {} more", stuck.unlisted);
    }
    text
}

/// Observation of a run of an earlier server.
pub(crate) fn observation(seen: &Observation) -> String {
    let mut text = format!(
        "host={} shim={} command={} cgroup={} exit_record={}",
        seen.host.name(),
        presence(seen.shim),
        presence(seen.command),
        seen.cgroup.name(),
        if seen.exit_record.is_some() {
            "yes"
        } else {
            "no"
        },
    );
    for (name, pids) in [("held", &seen.held), ("hints", &seen.hints)] {
        if !pids.is_empty() {
            let _ = write!(text, " {name}={}", list(pids));
        }
    }
    if let Some(namespace) = seen.namespace {
        let _ = write!(text, " namespace={}", presence(namespace));
    }
    if !seen.stuck.is_empty() {
        let _ = write!(text, " stuck={}", stuck(&seen.stuck));
    }
    text
}

fn presence(seen: ProcessPresence) -> &'static str {
    match seen {
        ProcessPresence::Same => "there",
        ProcessPresence::Gone => "gone",
        ProcessPresence::Unknown => "unknown",
    }
}

/// Separated by commas.
pub(crate) fn list<T: ToString>(values: &[T]) -> String {
    let values: Vec<String> = values.iter().map(ToString::to_string).collect();
    values.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_lifecycle::{EndReason, Proof, Signal, StopCertificate, TreeVerdict};

    // promise: M-30
    #[test]
    fn outcome_is_spelled_as_in_the_api() {
        let ended = |exit, reason| Outcome {
            reason,
            exit,
            tree: TreeVerdict::Empty(Proof::Echild),
            streams: None,
            certificate: StopCertificate::default(),
        };
        let zero = ended(Some(Exit::Code(0)), EndReason::Exited);
        assert_eq!(outcome(&zero), "SUCCEEDED exited tree=empty");
        assert_eq!(exit_code(zero.exit), Some(0));
        let signal = Exit::Signal {
            signal: Signal::TERM,
            core_dumped: false,
        };
        assert_eq!(exit_signal(Some(signal)).as_deref(), Some("SIGTERM"));
        assert_eq!(exit_code(Some(signal)), None);
    }
}
