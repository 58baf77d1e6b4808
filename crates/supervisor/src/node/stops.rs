//! Stops of runs that callers request, and fences of unknown ones.

use crate::{
    base::{
        OPEN_ROW_POLL,
        calls::{AbortCall, AbortWait, CallError, IfUnknown, RunView},
    },
    registry::{Handle, Order, Supervisor},
    run::intake,
};
use kennel_lifecycle::{EndReason, Outcome, StopCertificate, StopOrder, StopReason, TreeVerdict};
use kennel_store::{Change, Changed, Closure, Desired, ROW_BYTES, StoreError, Times};

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
                    self.refuse_unless_here(&row.into()).await?;
                }
                // Recovery has a task for the run by now.
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

    /// Records a stop for a key that only the store could know: no run of this key is live here, and a later spawn at this
    /// node meets the fence that is pending for the store. Unless it is a known run of this node, another node may start
    /// one before the fence is delivered: no caller gets the answer that it is done. `None`: the store may know now.
    async fn fence_later(&self, call: &AbortCall) -> Result<Option<RunView>, CallError> {
        let record = &self.shared.record;
        if !record.has_pending_fence(call.run) {
            let promised = record.promise(call.run, self.fence_of(call)).await;
            promised.map_err(|_| CallError::StoreUnavailable)?;
            self.shared.record_bytes.add(&call.owner, ROW_BYTES);
        }
        // A run that was spawned meanwhile can be stopped; a later one meets the pending fence.
        if self.shared.find(call.run).is_some() {
            return Ok(None);
        }
        if call.wait == AbortWait::None {
            let Some(mut row) = record.open_row(call.run) else {
                let (run, node) = (call.run, Box::new(self.own_node()));
                return Err(CallError::AbortUndelivered { run, node });
            };
            // Only this node ends its own runs.
            row.desired = Desired::Stop;
            return Ok(Some(row.into()));
        }
        record.delivered(call.run).await;
        // The row is readable once the node is acquired.
        let _ = self.shared.store.taken_over().await;
        Ok(None)
    }

    /// Puts a closed row under an unknown key, so that a later spawn meets it. `None`: another call inserted a row
    /// first.
    async fn fence(&self, call: &AbortCall) -> Result<Option<RunView>, CallError> {
        let fence = self.fence_of(call);
        match self.shared.store.change(call.run, &fence).await {
            Ok(Changed::Done(_)) => {
                self.shared.record_bytes.add(&call.owner, ROW_BYTES);
                Ok(fence.upon(None).map(RunView::from))
            }
            Ok(Changed::Taken(row)) => Ok(row.outcome.is_some().then(|| (*row).into())),
            Err(StoreError::Fenced(_)) if self.is_removed(call.run).await => {
                Err(CallError::RunRemoved(call.run))
            }
            // The row with this key was withdrawn meanwhile, or another server has the node.
            Err(StoreError::Fenced(_)) if self.shared.store.is_present().await => Ok(None),
            Err(StoreError::Unavailable(_) | StoreError::Unknown(_) | StoreError::Fenced(_)) => {
                self.fence_later(call).await
            }
            Err(fault) => Err(fault.into()),
        }
    }

    /// Makes the row that stands for a fence.
    fn fence_of(&self, call: &AbortCall) -> Change {
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
        Change::Fenced(Box::new(new), Box::new(closure))
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
