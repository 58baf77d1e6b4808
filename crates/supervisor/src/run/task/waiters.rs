//! Callers of a run that wait for an answer which the run's own steps give.

use super::signalling::PendingSignal;
use crate::base::{calls::CallError, view::StartAnswer};
use kennel_keeper::client::SignalResult;
use kennel_lifecycle::Phase;
use tokio::sync::oneshot;

/// Channel of the answer to Pause or Resume.
type Reply = oneshot::Sender<Result<SignalResult, CallError>>;

/// The callers, each kind with what its answer needs.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    /// Answer to Spawn, should the run not start; absent: the reason of the failure is the answer.
    pub(super) refused: Option<StartAnswer>,
    /// The signal for which the machine's decision is pending.
    pub(super) signal: Option<PendingSignal>,
    pub(super) pausing: Vec<Reply>,
    pub(super) resuming: Vec<Reply>,
    pub(super) pause_result: Option<SignalResult>,
}

impl Waiters {
    /// Sets the answer to Spawn, should the run not start.
    pub(super) fn refuse(&mut self, error: CallError) {
        self.refused = Some(StartAnswer::Failed(error));
    }

    /// Answers those that wait for a pause.
    pub(super) fn paused(&mut self, answer: &Result<SignalResult, CallError>) {
        tell(&mut self.pausing, answer);
    }

    /// Answers the callers whose wait ends with this phase, and refuses those that have nothing left to wait for.
    pub(super) fn answer(&mut self, phase: &Phase, refused: CallError) {
        let refused = Err(refused);
        match phase {
            Phase::Pausing { .. } | Phase::Paused => {}
            Phase::Running => {
                let partial = || SignalResult::Partial(Vec::new());
                let result = self.pause_result.clone().unwrap_or_else(partial);
                tell(&mut self.pausing, &Ok(result));
            }
            _ => tell(&mut self.pausing, &refused),
        }
        match phase {
            Phase::Resuming => {}
            Phase::Running => tell(&mut self.resuming, &Ok(SignalResult::Done)),
            _ => tell(&mut self.resuming, &refused),
        }
    }
}

fn tell(waiters: &mut Vec<Reply>, answer: &Result<SignalResult, CallError>) {
    for waiter in waiters.drain(..) {
        // A caller that is gone needs no answer.
        let _ = waiter.send(answer.clone());
    }
}
