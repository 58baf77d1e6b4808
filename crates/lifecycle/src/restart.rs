//! Whether another attempt follows one that has ended, and when.
//!
//! Attempts sit above the machine, which knows one of them. A new one begins only where nothing of the one before is
//! left, and that is proved (INV-20); what cannot be proved ends the run.

use crate::names::named;
use crate::{EndReason, Exit, Outcome, StartFailure, StartStage, TreeVerdict, Violation};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Shortest pause before another attempt.
pub const DELAY_MIN: Duration = Duration::from_millis(10);
/// Longest pause, and longest time after which an attempt counts as a success.
pub const DELAY_MAX: Duration = Duration::from_hours(24);
/// Largest factor by which a pause grows.
pub const FACTOR_MAX: u32 = 10;
/// Most exit codes in a class.
pub const EXIT_CODES_MAX: usize = 255;

named! {
    /// After which ends another attempt follows.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum RestartMode {
        /// After none.
        #[default]
        Never = "never",
        /// After all but success: exit code 0 and those that the policy counts as success.
        OnFailure = "on_failure",
        /// After all.
        Always = "always",
    }
}

/// When a command is started again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RestartPolicy {
    /// After which ends.
    pub mode: RestartMode,
    /// Pause before the first restart in a row.
    pub delay: Duration,
    /// By which the pause grows with each further one.
    pub factor: u32,
    /// Longest pause.
    pub max_delay: Duration,
    /// By how many hundredths, at most and at random, a pause is lengthened.
    pub jitter_percent: u32,
    /// Most restarts in a row; absent: no bound.
    pub max_restarts: Option<u32>,
    /// An attempt that has run for so long begins a new row.
    pub min_uptime: Duration,
    /// After these exit codes none follows, whatever the mode says.
    pub prevent_exit_codes: Vec<u8>,
    /// After these one follows, whatever the mode says.
    pub force_exit_codes: Vec<u8>,
}

impl Default for RestartPolicy {
    fn default() -> Self {
        Self {
            mode: RestartMode::Never,
            delay: Duration::from_secs(1),
            factor: 2,
            max_delay: Duration::from_mins(1),
            jitter_percent: 0,
            max_restarts: None,
            min_uptime: Duration::from_secs(10),
            prevent_exit_codes: Vec::new(),
            force_exit_codes: Vec::new(),
        }
    }
}

impl RestartPolicy {
    /// For the process behind an agent: after 1, 2 and 4 seconds, then no more.
    #[must_use]
    pub fn agent() -> Self {
        Self {
            mode: RestartMode::Always,
            max_restarts: Some(3),
            ..Self::default()
        }
    }

    /// For what is to be there: after 2 seconds, twice as long each time, at most a minute, for ever.
    #[must_use]
    pub fn keepalive() -> Self {
        Self {
            mode: RestartMode::Always,
            delay: Duration::from_secs(2),
            ..Self::default()
        }
    }

    /// Whether it ever starts anything again.
    #[must_use]
    pub fn restarts(&self) -> bool {
        self.mode != RestartMode::Never
    }

    /// The pause after `restarts` in a row; `chance` is any number, taken at random.
    #[must_use]
    pub fn pause(&self, restarts: u32, chance: u32) -> Duration {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let grown = u64::from(self.factor).saturating_pow(restarts);
        let pause = micros(self.delay).saturating_mul(grown);
        let pause = pause.min(micros(self.max_delay));
        let widest = u128::from(pause) * u128::from(self.jitter_percent) / 100;
        let more = widest * u128::from(chance) / u128::from(u32::MAX);
        Duration::from_micros(pause.saturating_add(u64::try_from(more).unwrap_or(u64::MAX)))
    }

    pub(crate) fn check(&self, found: &mut Vec<Violation>) {
        let mut bad = |field: &str, what: &str| {
            found.push(Violation::new(format!("spec.restart.{field}"), what));
        };
        if !(DELAY_MIN..=DELAY_MAX).contains(&self.delay) {
            bad("delay", "must be 10 ms to 24 hours");
        }
        if !(1..=FACTOR_MAX).contains(&self.factor) {
            bad("factor", "must be 1 to 10");
        }
        if self.max_delay < self.delay || self.max_delay > DELAY_MAX {
            bad(
                "max_delay",
                "must be at least the delay and at most 24 hours",
            );
        }
        if self.jitter_percent > 100 {
            bad("jitter_percent", "must be at most 100");
        }
        if self.max_restarts == Some(0) {
            bad(
                "max_restarts",
                "must be at least 1; RESTART_MODE_NEVER is for none",
            );
        }
        if self.min_uptime.is_zero() || self.min_uptime > DELAY_MAX {
            bad("min_uptime", "must be more than zero and at most 24 hours");
        }
        let codes = [
            ("prevent_exit_codes", &self.prevent_exit_codes),
            ("force_exit_codes", &self.force_exit_codes),
        ];
        for (field, codes) in codes {
            if codes.len() > EXIT_CODES_MAX {
                bad(field, "must have at most 255 entries");
            }
        }
        if self
            .prevent_exit_codes
            .iter()
            .any(|code| self.force_exit_codes.contains(code))
        {
            bad(
                "force_exit_codes",
                "must have no code that is in prevent_exit_codes",
            );
        }
    }
}

/// What is wanted of a run besides its policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wish {
    /// Nobody has said anything.
    #[default]
    None,
    /// That it be started again.
    Restart,
    /// That it end.
    Stop,
}

/// An attempt that has ended, with what the decision takes from around it.
#[derive(Clone, Copy, Debug)]
pub struct Attempted<'a> {
    /// How.
    pub outcome: &'a Outcome,
    /// 1 for the first.
    pub number: u32,
    /// From its start to its leader's end; absent: not known, or it never ran.
    pub uptime: Option<Duration>,
    /// Restarts in a row before it.
    pub restarts: u32,
    /// The boot in which it ran is over, so nothing of it can be left.
    pub boot_over: bool,
    /// The run outlives the service: its end together with the service's is not its own.
    pub outlives_service: bool,
    /// What is wanted.
    pub wish: Wish,
}

/// What follows an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Another one, after this time; the number is that of the restarts in a row, with this one.
    Again {
        /// How long after.
        delay: Duration,
        /// Restarts in a row.
        restarts: u32,
    },
    /// Nothing: the run has ended as the attempt has.
    End,
    /// Nothing: it was started again too often in a row.
    Exhausted {
        /// How often.
        restarts: u32,
    },
    /// Nothing, though the policy would start it again: somebody of the attempt may be left.
    NotProven,
}

/// How an end counts.
enum Class {
    /// For good, whatever the policy says.
    Final,
    /// Because another attempt was asked for.
    Asked,
    /// Not by itself: the service or the host has ended.
    Interrupted,
    /// It was not begun, since the store did not take its record: that is not the command's.
    Unrecorded,
    /// By itself, well or ill.
    Own { failed: bool },
}

/// Decides what follows an attempt that has ended.
#[must_use]
pub fn next(policy: &RestartPolicy, attempted: &Attempted<'_>, chance: u32) -> Next {
    let wanted = match (attempted.wish, class(policy, attempted)) {
        (Wish::Stop, _) | (Wish::None, Class::Final) => return Next::End,
        (Wish::Restart, _) | (Wish::None, Class::Asked) => Next::Again {
            delay: Duration::ZERO,
            restarts: 0,
        },
        (Wish::None, _) if !policy.restarts() => return Next::End,
        (Wish::None, Class::Interrupted) => {
            if !attempted.outlives_service {
                return Next::End;
            }
            Next::Again {
                delay: Duration::ZERO,
                restarts: attempted.restarts,
            }
        }
        (Wish::None, Class::Unrecorded) => Next::Again {
            delay: policy.pause(attempted.restarts.saturating_sub(1), chance),
            restarts: attempted.restarts,
        },
        (Wish::None, Class::Own { failed }) => {
            if policy.mode == RestartMode::OnFailure && !failed {
                return Next::End;
            }
            again(policy, attempted, chance)
        }
    };
    match wanted {
        Next::Again { .. } if !is_proven(attempted) => Next::NotProven,
        next => next,
    }
}

fn again(policy: &RestartPolicy, attempted: &Attempted<'_>, chance: u32) -> Next {
    let lasted = attempted
        .uptime
        .is_some_and(|time| time >= policy.min_uptime);
    let before = if lasted { 0 } else { attempted.restarts };
    if policy.max_restarts.is_some_and(|most| before >= most) {
        return Next::Exhausted { restarts: before };
    }
    Next::Again {
        delay: policy.pause(before, chance),
        restarts: before.saturating_add(1),
    }
}

/// INVARIANT: no attempt begins beside what may be left of the one before.
fn is_proven(attempted: &Attempted<'_>) -> bool {
    let tree = &attempted.outcome.tree;
    attempted.boot_over || matches!(tree, TreeVerdict::Empty(_) | TreeVerdict::NeverRan)
}

fn class(policy: &RestartPolicy, attempted: &Attempted<'_>) -> Class {
    let outcome = attempted.outcome;
    if attempted.number == 1 && outcome.exit.is_none() {
        // It never ran: whoever has spawned it is told, and may do it again.
        return Class::Final;
    }
    match &outcome.reason {
        EndReason::Aborted { .. }
        | EndReason::Fenced { .. }
        | EndReason::NodeForgotten { .. }
        | EndReason::DeadlineExceeded(_)
        | EndReason::LimitExceeded(_)
        | EndReason::ParentEnded
        | EndReason::RestartsExhausted { .. } => Class::Final,
        EndReason::Restarted { .. } => Class::Asked,
        // The gate is shut when its server dies: nothing ran, and it is nobody's failure.
        EndReason::StartFailed(StartFailure {
            stage: StartStage::Record | StartStage::Gate,
            ..
        }) => Class::Unrecorded,
        // A service that has lost our part of it is started again as after a failure of its own.
        EndReason::StartFailed(_)
        | EndReason::OomKilled(_)
        | EndReason::ShimLost
        | EndReason::NotReady
        | EndReason::NotLive { .. } => Class::Own { failed: true },
        EndReason::Result { .. } => Class::Own { failed: false },
        EndReason::ServerShutdown
        | EndReason::ServiceLost
        | EndReason::Rebooted
        | EndReason::OrphanTerminated => Class::Interrupted,
        EndReason::Exited | EndReason::SuccessExit => match outcome.exit {
            Some(Exit::Code(code)) if lists(&policy.prevent_exit_codes, code) => Class::Final,
            Some(Exit::Code(code)) => {
                let succeeded = code == 0 || outcome.reason == EndReason::SuccessExit;
                let failed = !succeeded || lists(&policy.force_exit_codes, code);
                Class::Own { failed }
            }
            Some(Exit::Signal { .. } | Exit::Unknown) | None => Class::Own { failed: true },
        },
    }
}

fn lists(codes: &[u8], code: i32) -> bool {
    codes.iter().any(|listed| i32::from(*listed) == code)
}
