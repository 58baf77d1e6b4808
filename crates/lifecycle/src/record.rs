//! The record of a run's entries: the one fold, used live by the [`Machine`](crate::Machine) and in every recovery, so
//! that no server reports again what an earlier one has reported (INV-19).

use crate::{
    Entry, Exit, Outcome, ResumeReason, Signal, StopOrder, StopStep, StreamsEnd, Stuck,
    TerminalSize, Timestamp, TreeVerdict, entry::NextAttempt, limits,
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, time::Duration};

/// Times of a run's milestones; absent: not reached, or not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// Time of the confirmed exec.
    pub started: Option<Timestamp>,
    /// Time of the leader's exit.
    pub leader_exited: Option<Timestamp>,
    /// Time of the output's end.
    pub streams_closed: Option<Timestamp>,
    /// Time at which the tree was proved empty.
    pub tree_empty: Option<Timestamp>,
    /// Time at which the end was complete.
    pub ended: Option<Timestamp>,
}

impl Times {
    /// Returns these times, completed by those of `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            started: self.started.or(other.started),
            leader_exited: self.leader_exited.or(other.leader_exited),
            streams_closed: self.streams_closed.or(other.streams_closed),
            tree_empty: self.tree_empty.or(other.tree_empty),
            ended: self.ended.or(other.ended),
        }
    }
}

/// Most pauses of which begin and end are known: so the time of others depends on what is done to the clock.
const RECENT_PAUSES_MAX: usize = 32;

/// The newest entry about pauses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LastPause {
    /// No entry is about pauses.
    #[default]
    Never,
    /// Every task is stopped.
    Paused,
    /// The tree runs again.
    Resumed(ResumeReason),
}

/// Record of the entries of one attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one kind of entry, and any of them may be missing"
)]
pub struct AttemptRecord {
    /// Whether its row is written.
    pub recorded: bool,
    /// Whether the command has started.
    pub started: bool,
    /// The newest entry about pauses.
    pub pause: LastPause,
    /// Start of the present pause, by the entries.
    pub paused_since: Option<Timestamp>,
    /// Begin and end of the last earlier pauses.
    pub recent_pauses: Vec<(Timestamp, Timestamp)>,
    /// Duration of the pauses before those.
    pub paused: Duration,
    /// Number of earlier pauses.
    pub pauses: u16,
    /// The first stop, and the time at which SIGKILL was due by it.
    pub stopping: Option<(StopOrder, Timestamp)>,
    /// Number of rounds of signals.
    pub steps: u32,
    /// Processes that SIGKILL does not end; the newest entry counts.
    pub stuck: Option<Stuck>,
    /// Exit of the leader.
    pub leader: Option<Exit>,
    /// End of the output.
    pub streams: Option<StreamsEnd>,
    /// Whether the verdict on the tree is there.
    pub tree: bool,
    /// Whether kills for want of memory were reported.
    pub memory_kills: bool,
    /// Whether the attempt has ended, and another one follows.
    pub attempt_ended: bool,
    /// Whether the run has ended.
    pub ended: bool,
    /// Times of the milestones.
    pub times: Times,
    /// Size of the terminal; the newest entry counts.
    pub terminal: Option<TerminalSize>,
    /// Processes that were spared, by process id and start.
    pub spared: BTreeSet<(i32, u64)>,
    /// Senders of notices that were refused, by process id and user.
    pub notices_refused: BTreeSet<(i32, u32)>,
    /// Kind of the first entry without which deciding about the run would be wrong, and which only a later version reads.
    pub critical: Option<String>,
    /// The signals that the keeper may report again: the first rounds, the last one, the last SIGKILL of a client.
    pub signals: SignalRecord,
}

/// The signals of an attempt that its keeper may report again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SignalRecord {
    steps: Vec<(Timestamp, StopStep)>,
    last_step: Option<(Timestamp, StopStep)>,
    last_kill: Option<(Timestamp, Entry)>,
}

impl AttemptRecord {
    /// Folds one entry of the attempt. An `Ended` or `Later` of another attempt is the run's too: see [`Self::of`].
    pub fn fold(&mut self, at: Timestamp, entry: &Entry) {
        match entry {
            Entry::Recorded { .. } => self.recorded = true,
            Entry::Started => {
                self.started = true;
                self.times.started = Some(at);
            }
            Entry::NoticeRefused { pid, uid, .. } => {
                self.notices_refused.insert((*pid, *uid));
            }
            Entry::Paused => {
                self.pause = LastPause::Paused;
                self.paused_since = Some(at);
            }
            Entry::Resumed { reason } => self.resumed(at, *reason),
            Entry::TerminalResized(size) => self.terminal = Some(*size),
            Entry::Stopping { order, deadline } => {
                self.stopping
                    .get_or_insert_with(|| (order.clone(), *deadline));
            }
            Entry::SignalSent { signal, .. } if *signal == Signal::KILL => {
                self.signals.last_kill = Some((at, entry.clone()));
            }
            Entry::StopStep(step) => self.stepped(at, *step),
            Entry::LeaderExited(exit) => {
                self.leader = Some(*exit);
                self.times.leader_exited = Some(at);
            }
            Entry::StreamsClosed(how) => {
                self.streams = Some(*how);
                self.times.streams_closed = Some(at);
            }
            Entry::Stuck(stuck) => self.stuck = Some(stuck.clone()),
            Entry::TreeEnded(verdict) => {
                self.tree = true;
                if matches!(verdict, TreeVerdict::Empty(_)) {
                    self.times.tree_empty = Some(at);
                }
            }
            Entry::MemoryKills(_) => self.memory_kills = true,
            Entry::ProcessSpared { pid, start_ticks } => {
                self.spared.insert((*pid, *start_ticks));
            }
            Entry::AttemptEnded { .. } => self.attempt_ended = true,
            Entry::Ended(_) => self.ended = true,
            Entry::Later(later) => {
                let kind = later.is_critical.then(|| later.kind.clone());
                self.critical = self.critical.take().or(kind);
            }
            // Other entries concern the run: see Facets.
            _ => {}
        }
    }

    /// Returns when an attempt with this time limit, pauses not counted, is over; absent: it has no limit, or is
    /// paused. `between` as in [`run_time`](Self::run_time).
    pub fn over_at(
        &self,
        max_runtime: Option<Duration>,
        between: &impl Fn(Timestamp, Timestamp) -> Duration,
    ) -> Option<Timestamp> {
        match (max_runtime, self.times.started, self.paused_since) {
            (Some(max), Some(started), None) => Some(started.plus(max).plus(self.paused(between))),
            _ => None,
        }
    }

    /// Returns for how long the attempt has run by then, pauses not counted; absent: it has not started. `between`
    /// measures the time between two readings of the clock, which may have been set in between.
    pub fn run_time(
        &self,
        at: Timestamp,
        between: &impl Fn(Timestamp, Timestamp) -> Duration,
    ) -> Option<Duration> {
        let is_before = |since: &Timestamp| !between(*since, at).is_zero();
        let until = self.paused_since.filter(is_before).unwrap_or(at);
        let passed = between(self.times.started?, until);
        Some(passed.saturating_sub(self.paused(between)))
    }

    fn paused(&self, between: &impl Fn(Timestamp, Timestamp) -> Duration) -> Duration {
        let recent = self.recent_pauses.iter();
        recent.fold(self.paused, |sum, (since, until)| {
            sum.saturating_add(between(*since, *until))
        })
    }

    /// Returns the record of one attempt in the entries of a whole run: (time, attempt, entry), in order.
    pub fn of<'a>(
        entries: impl IntoIterator<Item = (Timestamp, u32, &'a Entry)>,
        attempt: u32,
    ) -> Self {
        let mut record = Self::default();
        for (at, of, entry) in entries {
            if of == attempt || matches!(entry, Entry::Ended(_) | Entry::Later(_)) {
                record.fold(at, entry);
            }
        }
        record
    }

    /// Whether an entry about a signal exists already: the keeper reports its signals to each new server. INV-19: an
    /// event with an entry gets no second one.
    pub fn has_signal(&self, at: Timestamp, entry: &Entry) -> bool {
        match entry {
            Entry::StopStep(step) => {
                let steps = self.signals.steps.iter().chain(&self.signals.last_step);
                steps.into_iter().any(|seen| *seen == (at, *step))
            }
            Entry::SignalSent { .. } => {
                let last = self.signals.last_kill.as_ref();
                last.is_some_and(|(seen, kill)| *seen == at && kill == entry)
            }
            _ => false,
        }
    }

    /// Whether the end of the attempt, or of the run where none follows, is recorded.
    pub fn has_end(&self, next: Option<NextAttempt>) -> bool {
        self.ended || next.is_some() && self.attempt_ended
    }

    /// Returns the missing entries of an attempt that ended with this outcome, in order; the last one is its end. A
    /// command that never ran has that one only.
    pub fn missing_ends(&self, outcome: &Outcome, next: Option<NextAttempt>) -> Vec<Entry> {
        let mut missing = Vec::new();
        if self.has_end(next) {
            return missing;
        }
        if let Some(exit) = outcome.exit {
            if self.leader.is_none() {
                missing.push(Entry::LeaderExited(exit));
            }
            if let (Some(how), None) = (outcome.streams, self.streams) {
                missing.push(Entry::StreamsClosed(how));
            }
            if !self.tree {
                missing.push(Entry::TreeEnded(outcome.tree.clone()));
            }
        }
        missing.push(Entry::end(outcome, next));
        missing
    }

    /// Returns an accepted stop, with the grace to give the keeper again after its server has died.
    ///
    /// A plan may bring the SIGKILL of a plan in progress forward and never delays it, so the whole grace may be given:
    /// the keeper, whose clock does not jump, knows the time left. Of a later and shorter stop only the time of its
    /// SIGKILL is known: `now` is the present on the clock as it was set at [`Self::stop_asked_at`].
    pub fn stop_again(&self, now: Timestamp, order: StopOrder, deadline: Timestamp) -> StopOrder {
        let first = self.stopping.as_ref().map(|(_, at)| *at);
        if first.is_none_or(|at| at <= deadline) {
            return order;
        }
        let grace = order.grace.min(deadline.since(now));
        StopOrder { grace, ..order }
    }

    /// Returns when the first stop was requested; absent: there is none.
    pub fn stop_asked_at(&self) -> Option<Timestamp> {
        let (order, deadline) = self.stopping.as_ref()?;
        Some(deadline.minus(order.grace))
    }

    fn resumed(&mut self, at: Timestamp, reason: ResumeReason) {
        self.pause = LastPause::Resumed(reason);
        self.pauses = self.pauses.saturating_add(1);
        if let Some(since) = self.paused_since.take() {
            if self.recent_pauses.len() == RECENT_PAUSES_MAX {
                let (since, until) = self.recent_pauses.remove(0);
                self.paused += until.since(since);
            }
            self.recent_pauses.push((since, at));
        }
    }

    fn stepped(&mut self, at: Timestamp, step: StopStep) {
        self.steps = self.steps.saturating_add(1);
        if self.signals.steps.len() < limits::STEPS_LISTED_MAX {
            self.signals.steps.push((at, step));
        } else {
            self.signals.last_step = Some((at, step));
        }
    }
}
