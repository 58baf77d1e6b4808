//! Whether another attempt follows one that has ended, and when.
//!
//! Attempts sit above the machine, which knows one of them. A new attempt begins only where the earlier one is proved
//! to have left nothing (INV-20); without proof the run ends.

use crate::names::named;
use crate::{EndReason, Exit, Outcome, StartFailure, StartStage, Violation};
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
    /// Ends after which another attempt follows.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum RestartMode {
        /// No attempt follows.
        #[default]
        Never = "never",
        /// An attempt follows every end but success: exit code 0 and those that the policy counts as success.
        OnFailure = "on_failure",
        /// An attempt follows every end.
        Always = "always",
    }
}

/// Policy of restarts of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RestartPolicy {
    /// Ends after which an attempt follows.
    #[serde(skip_serializing_if = "crate::is_default")]
    pub mode: RestartMode,
    /// Pause before the first restart in a row.
    pub delay: Duration,
    /// Factor by which the pause grows with each further one.
    pub factor: u32,
    /// Longest pause.
    pub max_delay: Duration,
    /// Random lengthening of a pause, in hundredths at most.
    #[serde(skip_serializing_if = "crate::is_default")]
    pub jitter_percent: u32,
    /// Most restarts in a row; absent: no bound.
    #[serde(skip_serializing_if = "crate::is_default")]
    pub max_restarts: Option<u32>,
    /// Uptime after which an attempt begins a new row.
    pub min_uptime: Duration,
    /// Exit codes after which no attempt follows, whatever the mode says.
    #[serde(skip_serializing_if = "crate::is_default")]
    pub prevent_exit_codes: Vec<u8>,
    /// Exit codes after which an attempt follows, whatever the mode says.
    #[serde(skip_serializing_if = "crate::is_default")]
    pub force_exit_codes: Vec<u8>,
    /// Whether a run that was restarted too often in a row is held until a client restarts it, and does not end.
    #[serde(skip_serializing_if = "crate::is_default")]
    pub hold: bool,
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
            hold: false,
        }
    }
}

impl RestartPolicy {
    /// Returns the policy for the process behind an agent: after 1, 2 and 4 seconds, then no more.
    pub fn agent() -> Self {
        Self {
            mode: RestartMode::Always,
            max_restarts: Some(3),
            ..Self::default()
        }
    }

    /// Returns the policy that keeps a run alive: after 2 seconds, twice as long each time, at most a minute, without
    /// end.
    pub fn keepalive() -> Self {
        Self {
            mode: RestartMode::Always,
            delay: Duration::from_secs(2),
            ..Self::default()
        }
    }

    /// Whether the policy ever restarts anything.
    pub fn restarts(&self) -> bool {
        self.mode != RestartMode::Never
    }

    /// Returns the pause after `restarts` in a row; `chance` is any random number.
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
        if self.hold && self.max_restarts.is_none() {
            bad("hold", "needs max_restarts, which is what it follows");
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

/// Request on a run besides its policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientRequest {
    /// No request was made.
    #[default]
    None,
    /// The run is to be restarted.
    Restart,
    /// The run is to end.
    Stop,
}

/// An attempt that has ended, with the context of the decision.
#[derive(Clone, Copy, Debug)]
pub struct Attempted<'a> {
    /// Outcome of the attempt.
    pub outcome: &'a Outcome,
    /// Number of the attempt; 1 for the first.
    pub number: u32,
    /// Time from its start to its leader's exit; absent: not known, or it never ran.
    pub uptime: Option<Duration>,
    /// Restarts in a row before it.
    pub restarts: u32,
    /// Whether the boot in which it ran is over, so that nothing of it can be left.
    pub boot_over: bool,
    /// Whether the run outlives the service: then an end together with the service's is not its own.
    pub outlives_service: bool,
    /// The request on the run.
    pub request: ClientRequest,
}

/// Decision after an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Another attempt follows after this time; the number is that of the restarts in a row, with this one.
    Again {
        /// Delay before it; `MAX`: until a client restarts the run.
        delay: Duration,
        /// Restarts in a row.
        restarts: u32,
    },
    /// No attempt follows: the run has ended as the attempt has.
    End,
    /// No attempt follows: the run was restarted too often in a row.
    Exhausted {
        /// Number of restarts.
        restarts: u32,
    },
    /// No attempt follows, though the policy would restart the run: a process of the attempt may be left.
    NotProven,
}

/// Class of an end.
enum Class {
    /// Final, whatever the policy says.
    Final,
    /// Another attempt was requested.
    Asked,
    /// Caused from outside: the service or the host has ended.
    Interrupted,
    /// The attempt was not begun, since the store did not take its record: that is no fault of the command.
    Unrecorded,
    /// The attempt ended by itself, successfully or not.
    Own { failed: bool },
}

/// Decides on the attempt after one that has ended.
pub fn next(policy: &RestartPolicy, attempted: &Attempted<'_>, chance: u32) -> Next {
    let wanted = match (attempted.request, class(policy, attempted)) {
        (ClientRequest::Stop, _) | (ClientRequest::None, Class::Final) => return Next::End,
        (ClientRequest::Restart, _) | (ClientRequest::None, Class::Asked) => Next::Again {
            delay: Duration::ZERO,
            restarts: 0,
        },
        (ClientRequest::None, _) if !policy.restarts() => return Next::End,
        (ClientRequest::None, Class::Interrupted) => {
            if !attempted.outlives_service {
                return Next::End;
            }
            Next::Again {
                delay: Duration::ZERO,
                restarts: attempted.restarts,
            }
        }
        (ClientRequest::None, Class::Unrecorded) => Next::Again {
            delay: policy.pause(attempted.restarts.saturating_sub(1), chance),
            restarts: attempted.restarts,
        },
        (ClientRequest::None, Class::Own { failed }) => {
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
        let restarts = before;
        return if policy.hold {
            let delay = Duration::MAX;
            Next::Again { delay, restarts }
        } else {
            Next::Exhausted { restarts }
        };
    }
    Next::Again {
        delay: policy.pause(before, chance),
        restarts: before.saturating_add(1),
    }
}

/// INVARIANT: no attempt begins beside possible leftovers of the earlier one.
fn is_proven(attempted: &Attempted<'_>) -> bool {
    let tree = &attempted.outcome.tree;
    attempted.boot_over || tree.is_proven()
}

fn class(policy: &RestartPolicy, attempted: &Attempted<'_>) -> Class {
    let outcome = attempted.outcome;
    if attempted.number == 1 && outcome.exit.is_none() {
        // The command never ran: the caller of Spawn gets the error, and may retry.
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
        // The gate is shut when its server dies: nothing ran, which is not a failure.
        EndReason::StartFailed(StartFailure {
            stage: StartStage::Record | StartStage::Gate,
            ..
        }) => Class::Unrecorded,
        // A service that lost its shim is restarted as after a failure of its own.
        EndReason::StartFailed(_)
        | EndReason::OomKilled(_)
        | EndReason::MemoryReserve(_)
        | EndReason::ShimLost
        | EndReason::NotReady
        | EndReason::NotLive { .. }
        | EndReason::Watchdog { .. } => Class::Own { failed: true },
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
