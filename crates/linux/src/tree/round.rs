//! One round of a signal to one target, with its results.

use crate::targets::{MembershipEvidence, RoundTarget, SignalOutcome, TARGETS_LISTED_MAX};
use kennel_lifecycle::{Signal, SignalScope, SignalSender, StopStep, Timestamp};

/// One round of a signal to one target, with its results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignalRound {
    /// Target of the round.
    pub scope: SignalScope,
    /// Number of processes that took it.
    pub delivered: u32,
    /// Number of processes that had exited.
    pub gone: u32,
    /// Number of processes that the kernel refused to signal.
    pub refused: u32,
    /// errno(3) of the first refusal.
    pub errno: Option<i32>,
    /// Its processes, as far as they are known.
    pub targets: Vec<RoundTarget>,
}

impl SignalRound {
    /// Creates a round in which nothing was sent yet.
    pub fn new(scope: SignalScope) -> Self {
        Self {
            scope,
            delivered: 0,
            gone: 0,
            refused: 0,
            errno: None,
            targets: Vec::new(),
        }
    }

    /// Counts one process, and lists it.
    pub(super) fn add(
        &mut self,
        (pid, start_ticks): (i32, u64),
        evidence: MembershipEvidence,
        sent: SignalOutcome,
    ) {
        self.count(sent);
        self.list((pid, start_ticks), evidence, sent);
    }

    pub(super) fn list(
        &mut self,
        (pid, start_ticks): (i32, u64),
        evidence: MembershipEvidence,
        sent: SignalOutcome,
    ) {
        if self.targets.len() < TARGETS_LISTED_MAX {
            self.targets.push(RoundTarget {
                pid,
                start_ticks,
                evidence,
                result: sent,
            });
        }
    }

    /// Counts one signal by its result.
    pub fn count(&mut self, sent: SignalOutcome) {
        self.count_all(sent, 1);
    }

    /// Counts one result for so many processes.
    pub fn count_all(&mut self, sent: SignalOutcome, processes: usize) {
        let processes = u32::try_from(processes).unwrap_or(u32::MAX);
        let of = match sent {
            SignalOutcome::Delivered => &mut self.delivered,
            SignalOutcome::Gone => &mut self.gone,
            SignalOutcome::Failed(errno) => {
                self.errno.get_or_insert(errno);
                &mut self.refused
            }
        };
        *of = of.saturating_add(processes);
    }

    /// Whether it reached no process.
    pub fn is_empty(&self) -> bool {
        (self.delivered, self.gone, self.refused) == (0, 0, 0)
    }

    /// Returns the step for the certificate.
    pub fn step(&self, at: Timestamp, signal: Signal, sender: SignalSender) -> StopStep {
        StopStep {
            at,
            signal,
            scope: self.scope,
            sender,
            delivered: self.delivered,
            gone: self.gone,
            refused: self.refused,
            errno: self.errno,
        }
    }
}
