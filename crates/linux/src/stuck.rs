//! Processes of a tree that SIGKILL does not end, and the reasons, as far as the kernel shows them.

use crate::{
    procfs::{self, Stat},
    targets::SignalOutcome,
    tree::Tree,
};
use kennel_lifecycle::{Signal, Stuck, StuckProcess, limits::STUCK_LISTED_MAX};
use nix::errno::Errno;
use std::fs;

/// Sends SIGKILL to each member once more; returns the members that survive it, by rising number.
pub fn kill(tree: &Tree) -> Stuck {
    tree.signal(Signal::KILL);
    let mut pids: Vec<i32> = tree.pids().into_iter().collect();
    pids.sort_unstable();
    list(pids.into_iter().filter_map(|pid| kill_one(tree, pid)))
}

/// Returns as many as are listed, and the number of the others.
pub fn list(processes: impl Iterator<Item = StuckProcess>) -> Stuck {
    let mut stuck = Stuck::default();
    for process in processes {
        if stuck.processes.len() < STUCK_LISTED_MAX {
            stuck.processes.push(process);
        } else {
            stuck.unlisted = stuck.unlisted.saturating_add(1);
        }
    }
    stuck
}

fn kill_one(tree: &Tree, pid: i32) -> Option<StuckProcess> {
    let before = procfs::stat(pid).ok()?;
    let sent = tree.signal_member(pid, &before, Signal::KILL);
    judge(pid, &before, sent)
}

/// Judges a process after SIGKILL was `sent` and `before` was read: returns why it is still there, where it is.
pub fn judge(pid: i32, before: &Stat, sent: SignalOutcome) -> Option<StuckProcess> {
    let after = procfs::stat(pid).ok()?;
    if after.start_ticks != before.start_ticks {
        return None;
    }
    let why = why(pid, &after, sent)?;
    Some(StuckProcess {
        pid,
        start_ticks: after.start_ticks,
        state: char::from(after.state),
        why,
    })
}

fn why(pid: i32, after: &Stat, sent: SignalOutcome) -> Option<String> {
    Some(match sent {
        SignalOutcome::Failed(errno) => refused(pid, Signal::KILL, errno),
        SignalOutcome::Delivered | SignalOutcome::Gone if after.is_dead() => held_when_dead(pid)?,
        SignalOutcome::Delivered | SignalOutcome::Gone if after.state == b'D' => out_of_reach(pid),
        SignalOutcome::Delivered => "SIGKILL was delivered, and it has not ended yet".to_owned(),
        SignalOutcome::Gone => return None,
    })
}

/// Returns the reason for a process that may not be signalled.
pub fn refused(pid: i32, signal: Signal, errno: i32) -> String {
    let uid = procfs::status(pid, "Uid:").unwrap_or_default();
    let uid = uid.split_ascii_whitespace().next().unwrap_or("?");
    let desc = Errno::from_raw(errno).desc();
    format!("{signal} is refused ({desc}): it runs as uid {uid}")
}

/// Returns the reason for a process in state `D`.
pub fn out_of_reach(pid: i32) -> String {
    let at = fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
    let at = match at.trim() {
        "" | "0" => String::new(),
        at => format!(", in {at}"),
    };
    format!("it waits in the kernel where no signal reaches it{at}")
}

/// Returns the reason why a dead process is not reaped; `None`: none can be seen.
pub fn held_when_dead(pid: i32) -> Option<String> {
    let tracer = procfs::status(pid, "TracerPid:").filter(|tracer| tracer != "0");
    if let Some(tracer) = tracer {
        return Some(format!(
            "it has ended, and process {tracer}, which traces it, has not released it"
        ));
    }
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?.count();
    (threads > 1).then(|| "its first thread has ended, and others have not".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_as_the_kernel_shows() {
        let me = std::process::id().cast_signed();
        let in_state = |state| Stat {
            state,
            ..procfs::stat(me).expect("own process")
        };
        let reason = |state, sent| why(me, &in_state(state), sent);
        let waits = reason(b'D', SignalOutcome::Delivered).expect("it is there");
        assert!(waits.contains("no signal reaches it"), "{waits}");
        let refused = reason(b'S', SignalOutcome::Failed(libc::EPERM)).expect("it is there");
        let uid = nix::unistd::getuid();
        assert!(refused.contains("refused"), "{refused}");
        assert!(refused.ends_with(&format!("uid {uid}")), "{refused}");
        let slow = reason(b'R', SignalOutcome::Delivered).expect("it is there");
        assert!(slow.contains("has not ended yet"), "{slow}");
        assert_eq!(reason(b'S', SignalOutcome::Gone), None);
    }
}
