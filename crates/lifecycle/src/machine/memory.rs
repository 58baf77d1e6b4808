//! Whether the leader of a run was killed for want of memory.
//!
//! The kernel counts such kills by control group and does not report which processes. Derived from that: a process of
//! the run was killed, the leader died by SIGKILL, and Kennel had sent none.

use crate::{EndReason, Exit, MemoryKills, Report, Signal};

/// Known memory kills.
#[derive(Debug, Default)]
pub(super) struct MemoryEvidence {
    kills: Option<MemoryKills>,
    /// Whether a SIGKILL was sent to a process of the run.
    kill_sent: bool,
    /// Whether the leader died by SIGKILL before one was sent; absent: its exit is not known.
    leader_killed: Option<bool>,
}

impl MemoryEvidence {
    pub(super) fn note(&mut self, report: &Report) {
        match report {
            Report::Signalled(step) if step.signal == Signal::KILL => self.kill_sent = true,
            Report::KillSent => self.kill_sent = true,
            Report::LeaderExited(exit) => {
                let by = matches!(exit, Exit::Signal { signal, .. } if *signal == Signal::KILL);
                self.leader_killed.get_or_insert(by && !self.kill_sent);
            }
            Report::MemoryKills(kills) if kills.kills > 0 => self.kills = Some(*kills),
            _ => {}
        }
    }

    /// Returns why a run without a stop has ended.
    pub(super) fn reason_without_stop(&self) -> EndReason {
        match self.kills {
            Some(kills) if self.leader_killed == Some(true) => EndReason::OomKilled(kills),
            _ => EndReason::Exited,
        }
    }

    /// Returns the memory kills to report besides such a reason.
    pub(super) fn beside(&self, reason: &EndReason) -> Option<MemoryKills> {
        self.kills
            .filter(|_| !matches!(reason, EndReason::OomKilled(_)))
    }
}
