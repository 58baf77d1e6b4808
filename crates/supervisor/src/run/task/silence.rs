//! Inactivity of a run, where its spec limits that: the time without output and input.

use super::RunTask;
use crate::{base::clock, run::output::Output};
use kennel_lifecycle::{Deadline, Phase, StopReason, Timestamp};
use std::time::Duration;
use tokio::time::Instant;

/// Least time for a server that adopts a run to read the bytes waiting in its pipes before the run counts as inactive.
const ADOPTED_LEAST: Duration = Duration::from_secs(1);

/// Start of the time without output and input.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Silence {
    /// Absent: the silence does not count now.
    since: Option<Instant>,
}

impl Silence {
    /// Ends the silence: there was output or input.
    pub(super) fn break_off(&mut self) {
        self.since = None;
    }

    /// Makes a silence that has lasted for so long already. At least the time to read the bytes waiting in the pipes
    /// remains of the limit.
    fn after(passed: Duration, limit: Duration, now: Instant) -> Self {
        let passed = passed.min(limit.saturating_sub(ADOPTED_LEAST));
        Self {
            since: now.checked_sub(passed),
        }
    }
}

impl RunTask {
    /// Resumes the silence of an adopted run: the server before this one recorded its last event at `found_at`.
    pub(super) fn resume_silence(&mut self, found_at: Timestamp) {
        let Some(limit) = self.new.policy().timeouts.inactivity else {
            return;
        };
        let passed = clock::now().since(found_at);
        self.silence = Silence::after(passed, limit, clock::instant());
    }

    /// Returns when the run reaches its limit of inactivity; absent: it has no such limit, or its silence does not
    /// count.
    pub(super) fn inactive_at(&self) -> Option<Instant> {
        let limit = self.new.policy().timeouts.inactivity?;
        // A clock may not reach a time ten years from now.
        self.silence.since?.checked_add(limit)
    }

    /// Begins, continues or ends the silence. Returns the reason to stop the run once the limit is reached.
    pub(super) fn keep_silence(&mut self) -> Option<StopReason> {
        self.new.policy().timeouts.inactivity?;
        let counts = matches!(self.machine.phase(), Phase::Running { .. })
            && !self.output.as_ref().is_some_and(Output::is_held_back);
        if !counts {
            self.silence.since = None;
            return None;
        }
        let now = clock::instant();
        self.silence.since.get_or_insert(now);
        let is_over = self.inactive_at().is_some_and(|at| at <= now);
        is_over.then_some(StopReason::DeadlineExceeded(Deadline::Inactivity))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adopted_silence_continues_and_leaves_time_to_read() {
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
}
