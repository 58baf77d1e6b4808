//! Signals that callers ask for: an Interrupt, or one by name.

use super::{Done, RunTask, SignalReply};
use crate::{
    SignalCall, keeper_fault,
    ports::Kernel,
    tracker::{OrderError, Sent},
};
use kennel_lifecycle::RunId;
use kennel_linux::client::{ShotResult, SignalResult};
use tokio::sync::oneshot;

/// A signal that is on its way, with where its answer goes.
#[derive(Debug)]
pub(super) enum Signalling {
    Interrupt(SignalReply),
    Named(SignalCall, oneshot::Sender<Result<Sent, OrderError>>),
}

impl Signalling {
    /// Says that one went out under its request id before.
    pub(super) fn sent_before(self) {
        // A caller that has gone needs no answer.
        match self {
            Self::Interrupt(reply) => drop(reply.send(Ok(SignalResult::Done))),
            Self::Named(_, reply) => drop(reply.send(Ok(Sent::Before))),
        }
    }

    pub(super) fn fail(self, error: OrderError) {
        match self {
            Self::Interrupt(reply) => drop(reply.send(Err(error))),
            Self::Named(_, reply) => drop(reply.send(Err(error))),
        }
    }
}

impl RunTask {
    /// Sends what the machine was asked for. Both kinds are one wish to it: a signal after which the run goes on.
    pub(super) fn send_signal(&mut self) {
        let Some((request_id, signal)) = self.signal.take() else {
            return;
        };
        self.op(move |shared, run, done| async move {
            let kernel = shared.kernel.as_ref();
            let (in_vain, tell) = match signal {
                Signalling::Interrupt(reply) => interrupt(kernel, run, reply).await,
                Signalling::Named(call, reply) => named(kernel, call, reply).await,
            };
            // Forgotten before it is told, so that who asks again is not met by the memory.
            if let (true, Some(id)) = (in_vain, request_id) {
                let _ = done.send(Done::NotSignalled(id)).await;
            }
            tell();
        });
    }
}

/// Whether the signal may be asked for again, and how to tell what came of it.
type Told = (bool, Box<dyn FnOnce() + Send>);

async fn interrupt(kernel: &dyn Kernel, run: RunId, reply: SignalReply) -> Told {
    let result = kernel.interrupt(run).await;
    let in_vain = matches!(result, Ok(SignalResult::Failed(_)));
    let result = result.map_err(|error| OrderError::Call(keeper_fault(&error)));
    (in_vain, Box::new(move || drop(reply.send(result))))
}

async fn named(
    kernel: &dyn Kernel,
    call: SignalCall,
    reply: oneshot::Sender<Result<Sent, OrderError>>,
) -> Told {
    let result = kernel.signal(call.run, call.signal, call.target).await;
    // An answer that was lost does not say that nobody was reached.
    let in_vain = result.as_ref().is_ok_and(|sent| {
        let reached = |shot: &kennel_linux::client::Shot| shot.result == ShotResult::Delivered;
        sent.unlisted == 0 && !sent.shots.iter().any(reached)
    });
    let result = result.map(Sent::Now);
    let result = result.map_err(|error| OrderError::Call(keeper_fault(&error)));
    (in_vain, Box::new(move || drop(reply.send(result))))
}
