//! Inactivity of a run, where its spec limits that: the time without output and input.

use super::RunTask;
use crate::{base::clock, run::output::Output};
use kennel_lifecycle::{Activity, Deadline, Phase, StopReason, Timestamp};
use std::time::Duration;
use tokio::time::Instant;

/// Least time for a server that adopts a run to read the bytes waiting in its pipes before the run counts as inactive,
/// or as not ready.
pub(super) const ADOPTED_LEAST: Duration = Duration::from_secs(1);

/// Start of the time without output and input.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Silence {
    /// Absent: the silence does not count now.
    since: Option<Instant>,
    /// Time that an extension has left, when it last began to be counted, and the start of the present count: no
    /// silence is too long before its end.
    spared: Option<(Duration, Option<Instant>)>,
}

impl Silence {
    /// Ends the silence: there was output or input.
    pub(super) fn break_off(&mut self) {
        self.since = None;
    }

    /// Has no silence end the run for so long from now on, pauses not counted.
    pub(super) fn spare(&mut self, time: Duration) {
        self.spared = Some((time, None));
    }

    /// Returns the time left until a silence with this limit is too long, from now on.
    pub(super) fn left(&self, limit: Duration, now: Instant) -> Duration {
        let passed = self.since.map_or(Duration::ZERO, |since| now - since);
        let spared = self
            .spared
            .map_or(Duration::ZERO, |spared| Self::rest(spared, now));
        limit.saturating_sub(passed).max(spared)
    }

    /// Returns when a silence with this limit is too long; absent: it does not count.
    fn ends(&self, limit: Duration) -> Option<Instant> {
        // An `Instant` may not reach ten years ahead.
        let own = self.since?.checked_add(limit)?;
        match self.spared {
            Some((left, Some(since))) => Some(own.max(since.checked_add(left)?)),
            _ => Some(own),
        }
    }

    fn rest((left, since): (Duration, Option<Instant>), now: Instant) -> Duration {
        left.saturating_sub(since.map_or(Duration::ZERO, |since| now - since))
    }

    /// Counts the time of an extension, except in a pause.
    fn count_spared(&mut self, paused: bool, now: Instant) {
        self.spared = self.spared.map(|spared| match (paused, spared.1) {
            (true, _) => (Self::rest(spared, now), None),
            (false, since) => (spared.0, since.or(Some(now))),
        });
    }

    /// Makes a silence that has lasted for so long already. At least the time to read the bytes waiting in the pipes
    /// remains of the limit.
    fn after(passed: Duration, limit: Duration, now: Instant) -> Self {
        let passed = passed.min(limit.saturating_sub(ADOPTED_LEAST));
        Self {
            since: now.checked_sub(passed),
            spared: None,
        }
    }
}

impl RunTask {
    /// Resumes the silence of an adopted run: the server before this one recorded its last event at `found_at`.
    pub(super) fn resume_silence(&mut self, found_at: Timestamp) {
        let Some(limit) = self.new.policy().timeouts.inactivity else {
            return;
        };
        let passed = self.shared.clock.now_as_of(found_at).since(found_at);
        self.conditions.silence = Silence::after(passed, limit, clock::instant());
    }

    /// Resumes an extension that an earlier server has recorded.
    pub(super) fn resume_spared(&mut self) {
        let end = self.extension(Deadline::Inactivity).end;
        let left = end.saturating_sub(self.run_time().unwrap_or(end));
        if !left.is_zero() {
            self.conditions.silence.spare(left);
        }
    }

    /// Returns when the run reaches its limit of inactivity; absent: it has no such limit, or its silence does not
    /// count.
    pub(super) fn inactive_at(&self) -> Option<Instant> {
        let limit = self.new.policy().timeouts.inactivity?;
        self.conditions.silence.ends(limit)
    }

    /// Begins, continues or ends the silence. Returns the reason to stop the run once the limit is reached.
    pub(super) fn keep_silence(&mut self) -> Option<StopReason> {
        self.new.policy().timeouts.inactivity?;
        let waits =
            self.facets.shown().activity_of(self.new.attempt) == Some(Activity::AwaitingInput);
        let counts = matches!(self.machine.phase(), Phase::Running)
            && (!waits || self.new.policy().timeouts.counts_awaiting)
            && !self.output.as_ref().is_some_and(Output::is_held_back);
        let now = clock::instant();
        let paused = matches!(self.machine.phase(), Phase::Paused);
        self.conditions.silence.count_spared(paused, now);
        if !counts {
            self.conditions.silence.since = None;
            return None;
        }
        self.conditions.silence.since.get_or_insert(now);
        let is_over = self.inactive_at().is_some_and(|at| at <= now);
        is_over.then_some(StopReason::DeadlineExceeded(Deadline::Inactivity))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: TM-10b
    #[test]
    fn adopted_inactivity_limit_leaves_time_to_read() {
        let limit = Duration::from_mins(10);
        let now = Instant::now();
        let left = |passed| {
            let since = Silence::after(passed, limit, now).since;
            since.expect("this host is up for longer") + limit - now
        };
        assert_eq!(left(Duration::ZERO), limit);
        assert_eq!(left(Duration::from_mins(1)), Duration::from_mins(9));
        assert_eq!(left(limit * 2), ADOPTED_LEAST);
    }

    #[test]
    fn inactivity_extension_does_not_run_in_pauses() {
        let (limit, second) = (Duration::from_secs(10), Duration::from_secs(1));
        let now = Instant::now();
        let mut silence = Silence::default();
        assert_eq!(silence.left(limit, now), limit);
        silence.spare(limit * 2);
        silence.count_spared(false, now);
        assert_eq!(silence.left(limit, now + second), second * 19);
        silence.count_spared(true, now + second);
        assert_eq!(silence.left(limit, now + second * 60), second * 19);
        silence.count_spared(false, now + second * 60);
        assert_eq!(silence.left(limit, now + second * 69), limit);
        silence.since = Some(now + second * 60);
        assert_eq!(silence.left(limit, now + second * 70), second * 9);
        assert_eq!(silence.left(limit, now + second * 90), Duration::ZERO);
    }
}
