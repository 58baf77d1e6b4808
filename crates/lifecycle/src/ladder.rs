//! The stop ladder: the times of its signals, and the actions before the first. The keeper climbs it, and a shim whose
//! keeper died.
//!
//! Pure: the climber passes the time (milliseconds on any clock that does not jump) and performs the actions.

use crate::Signal;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// One action of a stop before its first signal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopAction {
    /// The action.
    pub action: Action,
    /// Time until the next action, or the first signal.
    pub wait: Duration,
}

/// Time in which a command of a stop is ended before the next rung.
const COMMAND_END_MS: u64 = 100;

/// Polite actions at their offsets, then SIGKILL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopPlan {
    /// Polite actions, in order, each at its offset from the start.
    #[serde(deserialize_with = "crate::known")]
    pub steps: Vec<Step>,
    /// Time of SIGKILL, from the start. Steps at or after it are left out.
    pub kill_after: Duration,
}

/// One polite rung.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The action of the rung.
    pub action: Action,
    /// Its time, from the start of the plan.
    pub after: Duration,
}

/// Action of one rung.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Send this signal to the tree.
    Signal(Signal),
    /// Close standard input.
    CloseInput,
    /// Write these bytes to standard input, or type them on the terminal.
    Input(#[serde(with = "crate::os_text::bytes")] Vec<u8>),
    /// Run a command in the tree, until the next rung at most.
    Exec(Vec<String>),
}

impl StopPlan {
    /// Returns the plan of an abort: SIGTERM, the grace, SIGKILL.
    pub fn abort(grace: Duration) -> Self {
        Self::new(&[(Signal::TERM, Duration::ZERO)], grace)
    }

    /// Returns the plan of a shutdown: SIGINT, half the grace, SIGTERM, the other half, SIGKILL: background jobs of sh
    /// ignore SIGINT.
    pub fn shutdown(grace: Duration) -> Self {
        Self::new(
            &[(Signal::INT, Duration::ZERO), (Signal::TERM, grace / 2)],
            grace,
        )
    }

    /// Whether this is the plan of a shutdown: only that begins with SIGINT.
    pub fn is_shutdown(&self) -> bool {
        let first = self.steps.first();
        first.is_some_and(|step| step.action == Action::Signal(Signal::INT))
    }

    /// Returns the plan for a run on a terminal: SIGHUP, half the grace, SIGTERM, the other half, SIGKILL. A closed
    /// terminal has the same effect; an interactive shell ignores SIGTERM, and takes SIGINT for a key.
    #[must_use]
    pub fn on_terminal(&self) -> Self {
        let grace = self.kill_after;
        Self::new(
            &[(Signal::HUP, Duration::ZERO), (Signal::TERM, grace / 2)],
            grace,
        )
    }

    /// Returns this plan after these actions. SIGKILL stays due at its time; the rest of the plan shares the remaining
    /// time as before. The waits are those of a stop with this grace: a shorter grace shortens them in the same
    /// proportion.
    #[must_use]
    pub fn behind(self, actions: &[StopAction], grace: Duration) -> Self {
        let whole = self.kill_after;
        if actions.is_empty() || whole.is_zero() {
            return self;
        }
        let mut at = Duration::ZERO;
        let mut steps = Vec::with_capacity(actions.len() + self.steps.len());
        for StopAction { action, wait } in actions {
            let action = action.clone();
            steps.push(Step { action, after: at });
            at = at.saturating_add(scaled(*wait, whole.min(grace), grace));
        }
        let left = whole.saturating_sub(at);
        for Step { action, after } in self.steps {
            let after = at.saturating_add(scaled(after, left, whole));
            steps.push(Step { action, after });
        }
        Self {
            steps: steps.into_iter().filter(|s| s.after < whole).collect(),
            kill_after: whole,
        }
    }

    fn new(steps: &[(Signal, Duration)], kill_after: Duration) -> Self {
        let steps = steps.iter().map(|&(signal, after)| Step {
            action: Action::Signal(signal),
            after,
        });
        Self {
            steps: steps.filter(|s| s.after < kill_after).collect(),
            kill_after,
        }
    }
}

/// A plan in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ladder {
    steps: Vec<(u64, Action)>,
    next: usize,
    kill_at: u64,
    killed: bool,
}

impl Ladder {
    /// Starts the plan at `now` (milliseconds).
    pub fn start(plan: &StopPlan, now: u64) -> Self {
        let kill_at = now.saturating_add(millis(plan.kill_after));
        let steps = plan
            .steps
            .iter()
            .map(|s| (now.saturating_add(millis(s.after)), s.action.clone()));
        Self {
            steps: steps.collect(),
            next: 0,
            kill_at,
            killed: false,
        }
    }

    /// Applies a second order, which may only shorten the plan: the earlier SIGKILL counts, and earlier steps come
    /// sooner in the same proportion.
    pub fn shorten(&mut self, plan: &StopPlan, now: u64) {
        let kill_at = now.saturating_add(millis(plan.kill_after));
        if self.kill_at <= kill_at {
            return;
        }
        let (before, after) = (
            self.kill_at.saturating_sub(now),
            kill_at.saturating_sub(now),
        );
        for (at, _) in self.steps.iter_mut().skip(self.next) {
            let wait = u128::from(at.saturating_sub(now)) * u128::from(after);
            let wait = wait / u128::from(before.max(1));
            *at = (*at).min(now.saturating_add(u64::try_from(wait).unwrap_or(u64::MAX)));
        }
        self.kill_at = kill_at;
    }

    /// Returns how long a command of the last action may run, in milliseconds: it has ended when the next rung is due.
    pub fn time_of_command(&self, now: u64) -> u64 {
        let whole = self.wake_at().map_or(0, |at| at.saturating_sub(now));
        whole - COMMAND_END_MS.min(whole / 4)
    }

    /// Ends the last action early: the polite rungs that follow come sooner by the time it has not used.
    pub fn hurry(&mut self, now: u64) {
        let Some((at, _)) = self.steps.get(self.next) else {
            return;
        };
        let spare = at.saturating_sub(now);
        for (at, _) in self.steps.iter_mut().skip(self.next) {
            *at = at.saturating_sub(spare);
        }
    }

    /// Skips the actions other than signals that were due before: an earlier climber may have done them.
    pub fn skip_input_before(&mut self, now: u64) {
        self.steps
            .retain(|(at, action)| *at >= now || matches!(action, Action::Signal(_)));
    }

    /// Returns the next due action, if there is one. Call until it returns `None`.
    pub fn due(&mut self, now: u64) -> Option<Action> {
        if self.killed {
            return None;
        }
        if now >= self.kill_at {
            self.killed = true;
            return Some(Action::Signal(Signal::KILL));
        }
        let (at, action) = self.steps.get(self.next)?;
        if now < *at {
            return None;
        }
        self.next += 1;
        Some(action.clone())
    }

    /// Returns when to call again; absent once SIGKILL was sent.
    pub fn wake_at(&self) -> Option<u64> {
        if self.killed {
            return None;
        }
        let step = self.steps.get(self.next).map(|(at, _)| *at);
        Some(step.map_or(self.kill_at, |at| at.min(self.kill_at)))
    }
}

/// Scales this time, where `whole` has become `part`.
fn scaled(time: Duration, part: Duration, whole: Duration) -> Duration {
    if part == whole || whole.is_zero() {
        return time;
    }
    let nanos = time.as_nanos().saturating_mul(part.as_nanos()) / whole.as_nanos();
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

fn millis(wait: Duration) -> u64 {
    u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)
}
