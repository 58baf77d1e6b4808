//! The stop ladder: which signal goes out when. Climbed by the keeper, and by a shim whose keeper died.
//!
//! Pure: the climber says what time it is (milliseconds on any clock that does not jump) and does what it is told.

use crate::{Signal, limits};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Polite signals at their offsets, then SIGKILL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopPlan {
    /// Polite signals, in order, each at its offset from the start.
    pub steps: Vec<Step>,
    /// When SIGKILL goes out, from the start. Steps at or after it are left out.
    pub kill_after: Duration,
}

/// One polite rung.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// What is sent to the tree.
    pub signal: Signal,
    /// When, from the start of the plan.
    pub after: Duration,
}

impl StopPlan {
    /// SIGTERM, the grace, SIGKILL.
    #[must_use]
    pub fn abort(grace: Duration) -> Self {
        Self::new(&[(Signal::TERM, Duration::ZERO)], grace)
    }

    /// SIGINT, half the grace, SIGTERM, the other half, SIGKILL: background jobs of sh ignore SIGINT.
    #[must_use]
    pub fn shutdown(grace: Duration) -> Self {
        let grace = grace.min(limits::SHUTDOWN_GRACE_MAX);
        Self::new(
            &[(Signal::INT, Duration::ZERO), (Signal::TERM, grace / 2)],
            grace,
        )
    }

    /// The same for a run on a terminal: SIGHUP, half the grace, SIGTERM, the other half, SIGKILL. That is what comes when a
    /// terminal is closed; an interactive shell ignores SIGTERM, and SIGINT is a key to it.
    #[must_use]
    pub fn on_terminal(&self) -> Self {
        let grace = self.kill_after;
        Self::new(
            &[(Signal::HUP, Duration::ZERO), (Signal::TERM, grace / 2)],
            grace,
        )
    }

    fn new(steps: &[(Signal, Duration)], kill_after: Duration) -> Self {
        let steps = steps.iter().map(|&(signal, after)| Step { signal, after });
        Self {
            steps: steps.filter(|s| s.after < kill_after).collect(),
            kill_after,
        }
    }
}

/// A plan on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ladder {
    steps: Vec<(u64, Signal)>,
    next: usize,
    kill_at: u64,
    killed: bool,
}

impl Ladder {
    /// Sets out at `now` (milliseconds).
    #[must_use]
    pub fn start(plan: &StopPlan, now: u64) -> Self {
        let kill_at = now.saturating_add(millis(plan.kill_after));
        let steps = plan
            .steps
            .iter()
            .map(|s| (now.saturating_add(millis(s.after)), s.signal));
        Self {
            steps: steps.collect(),
            next: 0,
            kill_at,
            killed: false,
        }
    }

    /// A second order may only shorten the way: the earlier SIGKILL counts.
    pub fn shorten(&mut self, plan: &StopPlan, now: u64) {
        self.kill_at = self
            .kill_at
            .min(now.saturating_add(millis(plan.kill_after)));
    }

    /// The next signal that is due, if one is. Call until it gives `None`.
    pub fn due(&mut self, now: u64) -> Option<Signal> {
        if self.killed {
            return None;
        }
        if now >= self.kill_at {
            self.killed = true;
            return Some(Signal::KILL);
        }
        let (at, signal) = *self.steps.get(self.next)?;
        if now < at {
            return None;
        }
        self.next += 1;
        Some(signal)
    }

    /// When to ask again; absent once SIGKILL has gone out.
    #[must_use]
    pub fn wake_at(&self) -> Option<u64> {
        if self.killed {
            return None;
        }
        let step = self.steps.get(self.next).map(|(at, _)| *at);
        Some(step.map_or(self.kill_at, |at| at.min(self.kill_at)))
    }

    /// Whether SIGKILL has gone out.
    #[must_use]
    pub fn has_killed(&self) -> bool {
        self.killed
    }
}

fn millis(wait: Duration) -> u64 {
    u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)
}
