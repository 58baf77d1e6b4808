//! Signals that callers request: an Interrupt, or one by name. The keeper, which outlives this process, remembers under
//! which request ids they were sent.

use super::RunTask;
use crate::base::{
    calls::{CallError, SignalCall},
    ports::Kernel,
};
use kennel_keeper::client::{ClientError, Interrupted, Sent, SignalResult};
use kennel_lifecycle::{AnsweredBy, Command, Input, Refusal, RunId};
use tokio::sync::oneshot;

/// A signal in progress, with the channel of its answer.
#[derive(Debug)]
pub(super) enum PendingSignal {
    Interrupt(
        Option<String>,
        oneshot::Sender<Result<Interrupted, CallError>>,
    ),
    Named(SignalCall, oneshot::Sender<Result<Sent, CallError>>),
}

impl PendingSignal {
    fn request_id(&self) -> Option<&str> {
        match self {
            Self::Interrupt(id, _) => id.as_deref(),
            Self::Named(call, _) => call.request_id.as_deref(),
        }
    }

    async fn send(self, kernel: &dyn Kernel, run: RunId) {
        let fault = |error: ClientError| error.into();
        // A caller that is gone needs no answer.
        match self {
            Self::Interrupt(id, reply) => {
                let result = kernel.interrupt(run, id.as_deref()).await;
                drop(reply.send(result.map_err(fault)));
            }
            Self::Named(call, reply) => {
                let id = call.request_id.as_deref();
                let result = kernel.signal(run, call.signal, call.target, id).await;
                drop(reply.send(result.map_err(fault)));
            }
        }
    }

    /// Answers that one was sent under its request id before.
    fn sent_before(self) {
        match self {
            Self::Interrupt(_, reply) => {
                let (result, way) = (SignalResult::Done, None);
                drop(reply.send(Ok(Interrupted { result, way })));
            }
            Self::Named(_, reply) => drop(reply.send(Ok(Sent::Before))),
        }
    }

    fn refuse(self, error: CallError) {
        match self {
            Self::Interrupt(_, reply) => drop(reply.send(Err(error))),
            Self::Named(_, reply) => drop(reply.send(Err(error))),
        }
    }
}

impl RunTask {
    /// Sends a signal if the machine allows it.
    pub(super) fn signal(&mut self, signal: PendingSignal) {
        self.waiters.signal = Some(signal);
        let answer = self.feed(Input::Command(Command::Interrupt));
        if let (Err(refusal), Some(signal)) = (answer, self.waiters.signal.take()) {
            self.refuse_signal(signal, refusal);
        }
    }

    /// Refuses a signal; a repeated request is answered that its signal was sent before, whatever the state of the run.
    fn refuse_signal(&mut self, signal: PendingSignal, refusal: Refusal) {
        let refused = self.refuse_call(refusal);
        let Some(id) = signal.request_id().map(str::to_owned) else {
            return signal.refuse(refused);
        };
        self.op(|shared, run, _| async move {
            match shared.kernel.was_sent(run, &id).await {
                Ok(true) => signal.sent_before(),
                Ok(false) | Err(_) => signal.refuse(refused),
            }
        });
    }

    /// Sends the signal that the machine has allowed. Both kinds are one request to it: a signal after which the run
    /// continues.
    pub(super) fn send_signal(&mut self) {
        let Some(signal) = self.waiters.signal.take() else {
            return;
        };
        if matches!(signal, PendingSignal::Interrupt(..)) {
            self.answered(None, AnsweredBy::Interrupt, String::new(), None);
        }
        self.op(|shared, run, _| async move {
            signal.send(shared.kernel.as_ref(), run).await;
        });
    }
}
