//! Calls on an existing run: interrupt, resize, pause, resume and others.

use crate::{
    base::calls::{
        AnnotateCall, CallError, ExtendCall, ResizeCall, RestartCall, RunView, SignalCall,
        Signalled,
    },
    registry::{Order, Supervisor},
};
use kennel_keeper::client::{
    InterruptWay, Interrupted, Listing, Sent, SignalResult, SignalledProcesses,
};
use kennel_lifecycle::{Refusal, RunId, RunState};
use tokio::sync::oneshot;

type Reply<T> = oneshot::Sender<Result<T, CallError>>;

impl Supervisor {
    /// Sends SIGINT to the leader's group, or what interrupts on a terminal, once per request id. Returns how the
    /// signal was sent, where it was sent now.
    pub async fn interrupt(
        &self,
        run: RunId,
        request_id: Option<String>,
    ) -> Result<(RunView, Option<InterruptWay>), CallError> {
        let (view, Interrupted { result, way }) = self
            .ask(run, |reply| Order::Interrupt(request_id, reply))
            .await?;
        match result {
            SignalResult::Failed(errno) => Err(CallError::SignalFailed { run, errno }),
            // Done, or the run is gone and its end report pending: the signal did no harm.
            _ => Ok((view, way)),
        }
    }

    /// Sets the size of a run's terminal; answers when the size is applied.
    pub async fn resize(&self, call: ResizeCall) -> Result<RunView, CallError> {
        let handle = self.shared.find(call.run);
        let turn = handle.map(|handle| handle.resize_turn);
        let _turn = match &turn {
            Some(turn) => Some(turn.lock().await),
            None => None,
        };
        let order = |reply| Order::Resize(call, reply);
        Ok(self.ask(call.run, order).await?.0)
    }

    /// Stops every task; answers when all tasks were seen stopped and the row says so. OK when the run is paused
    /// already.
    pub async fn pause(&self, run: RunId) -> Result<RunView, CallError> {
        let (view, result) = self.ask(run, Order::Pause).await?;
        match result {
            SignalResult::Done => Ok(view),
            SignalResult::Partial(moving) => Err(CallError::NotPaused { run, moving }),
            SignalResult::Failed(errno) => Err(CallError::SignalFailed { run, errno }),
            SignalResult::Gone | SignalResult::UnknownRun => Err(CallError::NotPaused {
                run,
                moving: Vec::new(),
            }),
        }
    }

    /// Continues a paused run; OK when it runs already.
    pub async fn resume(&self, run: RunId) -> Result<RunView, CallError> {
        Ok(self.ask(run, Order::Resume).await?.0)
    }

    /// Starts another attempt; answers when that runs or could not be started, or the run has ended.
    pub async fn restart(&self, call: RestartCall) -> Result<RunView, CallError> {
        let run = call.run;
        let order = |reply| Order::Restart(call, reply);
        let (view, before) = self.ask(run, order).await?;
        let Some(handle) = self.shared.find(run) else {
            return Ok(view);
        };
        let mut live = handle.live.clone();
        let another = live.wait_for(|live| {
            let view = &live.view;
            let runs = view.times.started.is_some() || view.state == RunState::Backoff;
            live.over || view.state.is_terminal() || view.attempt > before && runs
        });
        match another.await.map(|live| live.clone()) {
            Ok(live) if live.view.state.is_terminal() || !live.over => Ok(live.view),
            Ok(_) | Err(_) => self.get(run).await,
        }
    }

    /// Changes annotations; answers when the change is durable.
    pub async fn annotate(&self, call: AnnotateCall) -> Result<RunView, CallError> {
        let (run, call) = (call.run, Box::new(call));
        let order = |reply| Order::Annotate(call, reply);
        Ok(self.ask(run, order).await?.0)
    }

    /// Extends limits of time, all or none; answers when that is durable.
    pub async fn extend(&self, call: ExtendCall) -> Result<RunView, CallError> {
        let (run, call) = (call.run, Box::new(call));
        let order = |reply| Order::Extend(call, reply);
        Ok(self.ask(run, order).await?.0)
    }

    /// Sends one signal, once per request id; the memory of ids is that of [`Self::interrupt`], and the keeper's.
    pub async fn signal(&self, call: SignalCall) -> Result<Signalled, CallError> {
        let (run, sent) = self
            .ask(call.run, |reply| Order::Signal(call, reply))
            .await?;
        let (signalled, repeated) = match sent {
            Sent::Now(signalled) if signalled.no_terminal => {
                return Err(CallError::NoTerminal { run: run.run });
            }
            Sent::Now(signalled) => (signalled, false),
            Sent::Before => (SignalledProcesses::default(), true),
        };
        Ok(Signalled {
            run,
            signalled,
            repeated,
        })
    }

    /// Lists the processes of the run's tree; empty where the run has ended, or is another server's.
    pub async fn tree(&self, run: RunId) -> Result<(RunView, Listing), CallError> {
        let Some(handle) = self.shared.find(run) else {
            let view = self.get(run).await?;
            if !view.state.is_terminal() {
                self.refuse_unless_here(&view).await?;
            }
            return Ok((view, Listing::default()));
        };
        let listing = self.shared.kernel.tree(run).await?;
        let view = handle.live.borrow().view.clone();
        // `get` reports a run withdrawn without a row as not found.
        if view.state.is_terminal() {
            return Ok((self.get(run).await?, Listing::default()));
        }
        Ok((view, listing))
    }

    async fn ask<T>(
        &self,
        run: RunId,
        order: impl FnOnce(Reply<T>) -> Order,
    ) -> Result<(RunView, T), CallError> {
        let Some(handle) = self.shared.find(run) else {
            let view = self.get(run).await?;
            if !view.state.is_terminal() {
                self.refuse_unless_here(&view).await?;
            }
            return Err(view.refuse_call(Refusal::Ended));
        };
        match handle.ask(order).await {
            Some(Ok(result)) => Ok((handle.live.borrow().view.clone(), result)),
            // The error names the state at refusal, which may be outdated.
            Some(Err(error)) => Err(error),
            None => Err(handle.live.borrow().view.refuse_call(Refusal::Ended)),
        }
    }
}
