//! Calls on an existing run: abort, interrupt, resize, pause, resume.

use crate::{
    base::{
        OPEN_ROW_POLL,
        calls::{
            AbortCall, AbortWait, AnnotateCall, CallError, ExtendCall, IfUnknown, ResizeCall,
            RestartCall, RunView, SignalCall, Signalled,
        },
    },
    registry::{Handle, Order, Supervisor},
    run::intake,
};
use kennel_keeper::client::{
    InterruptWay, Interrupted, Listing, Sent, SignalResult, SignalledProcesses,
};
use kennel_lifecycle::{
    EndReason, Outcome, Refusal, RunId, RunState, StopCertificate, StopOrder, StopReason,
    TreeVerdict,
};
use kennel_store::{Change, Closure, Desired, Inserted, NewRun, ROW_BYTES, StoreError, Times};
use tokio::sync::oneshot;

type Reply<T> = oneshot::Sender<Result<T, CallError>>;

impl Supervisor {
    /// Ends a run. May be repeated; a repeat may only shorten the grace. An unknown key is fenced, and the closed run
    /// that stands for the fence is returned.
    pub async fn abort(&self, call: AbortCall) -> Result<RunView, CallError> {
        loop {
            if let Some(handle) = self.shared.find(call.run) {
                if let Some(view) = stop(&handle, &call).await {
                    return Ok(view);
                }
                continue;
            }
            let known_end = || self.shared.record.ended_row(call.run);
            let row = match self.row(call.run).await {
                Ok(row) => Some(row),
                Err(CallError::RunNotFound(_)) => None,
                Err(CallError::StoreUnavailable) if let Some(row) = known_end() => Some(row),
                Err(CallError::StoreUnavailable) if call.if_unknown == IfUnknown::Fence => {
                    self.shared.check_records(&call.owner)?;
                    if let Some(view) = Box::pin(self.fence_later(&call)).await? {
                        return Ok(view);
                    }
                    continue;
                }
                Err(error) => return Err(error),
            };
            match row {
                Some(row) if row.outcome.is_some() => return self.located(row.into()).await,
                Some(row) if row.new.node != self.shared.config.node => {
                    self.refuse_elsewhere(&row.into()).await?;
                }
                // Recovery has taken up the run by now.
                Some(_) if self.shared.find(call.run).is_some() => {}
                Some(_) => tokio::time::sleep(OPEN_ROW_POLL).await,
                None if call.if_unknown == IfUnknown::Refuse => {
                    return Err(CallError::RunNotFound(call.run));
                }
                None => {
                    self.shared.check_records(&call.owner)?;
                    if let Some(view) = Box::pin(self.fence(&call)).await? {
                        return Ok(view);
                    }
                }
            }
        }
    }

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
            // The run is gone: its end is on its way; the signal reached no process and did no harm.
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
                self.refuse_elsewhere(&view).await?;
            }
            return Ok((view, Listing::default()));
        };
        let listing = self.shared.kernel.tree(run).await?;
        let view = handle.live.borrow().view.clone();
        // A run that left without a trace cannot be found.
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
                self.refuse_elsewhere(&view).await?;
            }
            return Err(view.refuse_call(Refusal::Ended));
        };
        match handle.ask(order).await {
            Some(Ok(result)) => Ok((handle.live.borrow().view.clone(), result)),
            // The task has given its state: it may be another one by now.
            Some(Err(error)) => Err(error),
            None => Err(handle.live.borrow().view.refuse_call(Refusal::Ended)),
        }
    }

    /// Records a stop for a key that only the store could know: no run of this key is live here, and a later spawn at this
    /// node meets the fence that is pending for the store. Unless it is a known run of this node, another node may start
    /// one before the fence is delivered: no caller gets the answer that it is done. `None`: the store may know now.
    async fn fence_later(&self, call: &AbortCall) -> Result<Option<RunView>, CallError> {
        let (new, closure) = self.fenced(call);
        let record = &self.shared.record;
        if !record.has_pending_fence(call.run) {
            let fence = Change::Fenced(Box::new(new), Box::new(closure));
            let promised = record.promise(call.run, fence).await;
            promised.map_err(|_| CallError::StoreUnavailable)?;
            self.shared.record_bytes.add(&call.owner, ROW_BYTES);
        }
        // A run that was spawned meanwhile can be stopped; a later one meets the pending fence.
        if self.shared.find(call.run).is_some() {
            return Ok(None);
        }
        if call.wait == AbortWait::None {
            let Some(row) = record.open_row(call.run) else {
                let (run, node) = (call.run, Box::new(self.own_node()));
                return Err(CallError::AbortUndelivered { run, node });
            };
            // A run of this node, which alone ends it.
            return Ok(Some(RunView {
                state: RunState::Stopping,
                desired: Desired::Stop,
                ..row.into()
            }));
        }
        record.delivered(call.run).await;
        // Its row can be read only then.
        let _ = self.shared.store.taken_over().await;
        Ok(None)
    }

    /// Puts a closed row under an unknown key, so that a later spawn meets it. `None`: another call inserted a row
    /// first.
    async fn fence(&self, call: &AbortCall) -> Result<Option<RunView>, CallError> {
        let (new, closure) = self.fenced(call);
        match self.shared.store.fence(&new, &closure).await {
            Ok(Inserted::New(_)) => {
                self.shared.record_bytes.add(&call.owner, ROW_BYTES);
                let mut view = intake::unborn(&new);
                view.state = closure.outcome.state();
                view.desired = Desired::Stop;
                view.times = closure.times;
                view.outcome = Some(closure.outcome);
                Ok(Some(view))
            }
            Ok(Inserted::Taken(row)) => Ok(row.outcome.is_some().then(|| (*row).into())),
            // The row that had the key is withdrawn meanwhile, or another server has the node.
            Err(StoreError::Fenced(_)) if self.shared.store.is_present().await => Ok(None),
            Err(StoreError::Unavailable(_) | StoreError::Unknown(_) | StoreError::Fenced(_)) => {
                self.fence_later(call).await
            }
            Err(fault) => Err(fault.into()),
        }
    }

    /// Makes the row that stands for a fence.
    fn fenced(&self, call: &AbortCall) -> (NewRun, Closure) {
        let new = intake::undescribed(&self.shared, call.run, call.owner.clone());
        let outcome = Outcome {
            reason: EndReason::Fenced {
                by: call.by.clone(),
            },
            exit: None,
            tree: TreeVerdict::NeverRan,
            streams: None,
            certificate: StopCertificate::default(),
        };
        let closure = Closure {
            outcome,
            times: Times {
                ended: Some(new.created),
                ..Times::default()
            },
            entries: None,
            has_files: false,
        };
        (new, closure)
    }
}

/// Stops a live run and waits as the call asks. `None`: the run left without a trace, or ended before the order came.
async fn stop(handle: &Handle, call: &AbortCall) -> Option<RunView> {
    let grace = call
        .grace
        .unwrap_or_else(|| handle.live.borrow().view.policy().grace());
    let reason = StopReason::Abort {
        by: call.by.clone(),
        request_id: call.request_id.clone(),
    };
    let order = StopOrder { reason, grace };
    let answer = handle.ask(|reply| Order::Stop(order, reply)).await;
    let mut live = handle.live.clone();
    if !matches!(answer, Some(Ok(()))) {
        let _ = live.wait_for(|live| live.over).await;
        return None;
    }
    let settled = live
        .wait_for(|live| {
            let view = &live.view;
            let durable = view.desired == Desired::Stop && !live.stop_pending;
            let reached = match call.wait {
                AbortWait::None => durable,
                AbortWait::LeaderExited => durable && view.times.leader_exited.is_some(),
                AbortWait::TreeEmpty => false,
            };
            reached || view.state.is_terminal() || live.over
        })
        .await;
    let live = settled.ok()?;
    // A run that was abandoned before it was recorded shows FAILED but has no outcome: the key is free again.
    let is_decided = live.view.outcome.is_some() || !live.view.state.is_terminal();
    (is_decided && !(live.over && live.view.outcome.is_none())).then(|| live.view.clone())
}
