//! The signals of a run, as the audit trail has them.

use super::RunTask;
use crate::{
    event,
    trail::{SignalTold, TrailEntry, TrailRecord},
};
use kennel_lifecycle::{Deadline, Limit, Phase, RunId, Signal, SignalSender, StopReason, StopStep};

impl RunTask {
    /// A round of the stop ladder. One that a keeper tells again is handed in again: the server that heard of it first may
    /// not have come to write it down.
    pub(super) fn tell_round(&self, step: &StopStep) {
        let why = match self.machine.phase() {
            Phase::Stopping { order, .. }
            | Phase::Draining {
                stop: Some(order), ..
            } => because(&order.reason),
            Phase::Draining { stop: None, .. } => {
                "the leader had ended, and the rest of its tree was to be stopped".to_owned()
            }
            _ => "its own plan".to_owned(),
        };
        let boot_id = &self.shared.hello.host.boot_id;
        let record = round(self.run, self.new.attempt, step, why, boot_id);
        self.shared.trail.tell(record);
    }
}

/// One round of signals.
pub(crate) fn round(
    run: RunId,
    attempt: u32,
    step: &StopStep,
    why: String,
    boot_id: &str,
) -> TrailRecord {
    let why = match step.signal {
        Signal::CONT => format!("{why}; so that those who were held can act on it"),
        _ => why,
    };
    let sender = match step.sender {
        SignalSender::Keeper => "keeper",
        SignalSender::Shim => "shim",
    };
    let told = SignalTold {
        attempt,
        signal: step.signal.to_string(),
        scope: event::scope_word(step.scope).to_owned(),
        sender: sender.to_owned(),
        why,
        delivered: step.delivered,
        gone: step.gone,
        refused: step.refused,
        errno: step.errno,
        processes: Vec::new(),
        unlisted: step.targets(),
        boot_id: boot_id.to_owned(),
    };
    TrailRecord::at(step.at, Some(run.to_string()), TrailEntry::Signal(told))
}

fn because(reason: &StopReason) -> String {
    let of = |request_id: &Option<String>| {
        let id = request_id.as_ref();
        id.map_or_else(String::new, |id| format!(", request {id}"))
    };
    match reason {
        StopReason::Abort { by, request_id } => {
            format!("{by} asked for its end{}", of(request_id))
        }
        StopReason::Restart { by, request_id } => {
            format!("{by} asked for another attempt{}", of(request_id))
        }
        StopReason::ServerShutdown => "the service was shutting down".into(),
        StopReason::DeadlineExceeded(Deadline::MaxRuntime) => {
            "it had run for longer than it may (max_runtime)".into()
        }
        StopReason::DeadlineExceeded(Deadline::MaxPause) => {
            "it had been paused for longer than it may (max_pause)".into()
        }
        StopReason::Orphaned => "no server had come back for too long".into(),
        StopReason::LimitExceeded(Limit::OutputBytes) => {
            "it had written more than is kept of it".into()
        }
        StopReason::LimitExceeded(Limit::Disk) => "there was no room for its output".into(),
    }
}
