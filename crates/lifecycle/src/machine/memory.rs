//! Whether the leader of a run was killed for want of memory.
//!
//! The kernel counts such kills by control group and does not say whom it killed. What is told from that: somebody of
//! the run was, the leader died by SIGKILL, and nobody here had sent one.

use crate::{EndReason, Exit, MemoryKills, Report, Signal};

/// What is known of it.
#[derive(Debug, Default)]
pub(super) struct Memory {
    kills: Option<MemoryKills>,
    /// A SIGKILL has gone out to somebody of the run.
    kill_sent: bool,
    /// Whether the leader died by SIGKILL before one had gone out; absent: it has not been heard of.
    leader_killed: Option<bool>,
}

impl Memory {
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

    /// Why a run is over that nobody has stopped.
    pub(super) fn reason_without_stop(&self) -> EndReason {
        match self.kills {
            Some(kills) if self.leader_killed == Some(true) => EndReason::OomKilled(kills),
            _ => EndReason::Exited,
        }
    }

    /// What is to be told besides such a reason.
    pub(super) fn beside(&self, reason: &EndReason) -> Option<MemoryKills> {
        self.kills
            .filter(|_| !matches!(reason, EndReason::OomKilled(_)))
    }
}
