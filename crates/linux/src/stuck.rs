//! Processes of a tree that SIGKILL does not end, and the reasons, as far as the kernel shows them.

use crate::{
    procfs::{self, Stat},
    targets::SignalOutcome,
    tree::{ListMembers, SignalEach, Tree},
};
use kennel_lifecycle::{Signal, Stuck, StuckProcess, limits::STUCK_LISTED_MAX};
use nix::errno::Errno;
use std::fs;

/// SIGKILL once more to each member, and a look at those that survive it, in steps of one process.
#[derive(Debug)]
pub struct KillAgain {
    /// Absent: all have the signal.
    each: Option<SignalEach>,
    list: Option<ListMembers>,
    /// Number of listed members that were looked at.
    judged: usize,
    /// The survivors, by rising number.
    pub stuck: Stuck,
}

impl KillAgain {
    /// Begins, all at once where that is possible.
    pub fn new(tree: &Tree) -> Self {
        let at_once = tree.kill_at_once().is_some();
        Self {
            each: (!at_once).then(|| SignalEach::all(tree, Signal::KILL)),
            list: None,
            judged: 0,
            stuck: Stuck::default(),
        }
    }

    /// Signals or looks at one process; returns whether all are done.
    pub fn step(&mut self, tree: &Tree) -> bool {
        if let Some(each) = &mut self.each {
            if each.step(tree) {
                self.each = None;
            }
            return false;
        }
        let new = || ListMembers::new(tree, usize::MAX);
        let list = self.list.get_or_insert_with(new);
        if !list.step(tree) {
            return false;
        }
        let Some((pid, ..)) = list.listed.get(self.judged) else {
            return true;
        };
        self.judged += 1;
        if let Some(process) = kill_one(tree, *pid) {
            add(&mut self.stuck, process);
        }
        false
    }
}

/// Returns as many as are listed, and the number of the others.
pub fn list(processes: impl Iterator<Item = StuckProcess>) -> Stuck {
    let mut stuck = Stuck::default();
    processes.for_each(|process| add(&mut stuck, process));
    stuck
}

fn add(stuck: &mut Stuck, process: StuckProcess) {
    if stuck.processes.len() < STUCK_LISTED_MAX {
        stuck.processes.push(process);
    } else {
        stuck.unlisted = stuck.unlisted.saturating_add(1);
    }
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
    let uid = procfs::uid(pid).map_or_else(|| "?".to_owned(), |uid| uid.to_string());
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

    // promise: T-26a
    #[test]
    fn stuck_reason_follows_kernel_process_state() {
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
