//! Stops of runs whose node could not be reached: queued in the store, and carried out by the node.
//!
//! A second stop of a run shortens the grace of the first, as at the node.
//!
//! A stop is removed after it is durable in the run's own row. The server after one that dies in between meets it
//! again, and a stop that is on the row already changes nothing: each takes effect once.

use crate::{
    audit_log::{LoggedRequest, TrailEntry, TrailRecord},
    base::{
        calls::{AbortCall, AbortWait, CallError, IfUnknown, RunView},
        clock,
        other_node::Elsewhere,
    },
    record::node_store::read,
    registry::Supervisor,
};
use kennel_lifecycle::{RunId, StopOrder, StopReason};
use kennel_linux::crash_point;
use kennel_store::{LeftStop, StoreError};
use std::time::Duration;

/// What the record of another node's run says of a stop.
enum Recorded {
    /// The run has not ended, and its spec has this grace.
    Open { grace: Duration },
    /// The run has ended.
    Ended(Box<RunView>),
}

impl Supervisor {
    /// Ends a run. For a run of a node that could not be reached, a stop is queued.
    pub async fn abort_or_leave(&self, call: AbortCall) -> Result<RunView, CallError> {
        loop {
            let elsewhere = match self.abort(call.clone()).await {
                Err(CallError::RunElsewhere { elsewhere, .. }) => elsewhere,
                answer => return answer,
            };
            match self.leave_abort(call.clone(), elsewhere).await {
                // The run's node withdrew the run meanwhile: nothing ran, and the id must be fenced.
                Err(CallError::RunNotFound(_)) if call.if_unknown == IfUnknown::Fence => {}
                answer => return answer,
            }
        }
    }

    /// Queues a stop for the node of a run. Returns the run where it has ended meanwhile; otherwise an error which says
    /// that the stop is queued and not carried out.
    async fn leave_abort(
        &self,
        call: AbortCall,
        elsewhere: Box<Elsewhere>,
    ) -> Result<RunView, CallError> {
        let run = call.run;
        let grace = match self.recorded(run).await? {
            Recorded::Ended(view) => return Ok(*view),
            Recorded::Open { grace } => call.grace.unwrap_or(grace),
        };
        let reason = StopReason::Abort {
            by: call.by,
            request_id: call.request_id,
        };
        let stop = LeftStop {
            run,
            order: StopOrder { reason, grace },
            asked: clock::now(),
        };
        let store = &self.shared.store;
        store.leave_stop(elsewhere.node, &stop).await?;
        // No stop is queued for an ended run.
        match self.recorded(run).await? {
            Recorded::Ended(view) => Ok(*view),
            Recorded::Open { .. } => Err(CallError::AbortQueued { run, elsewhere }),
        }
    }

    /// Reads what a stop needs of the record of another node's run. An open record that a later version has written
    /// has it in columns of its own; the end in such a record cannot be shown here.
    async fn recorded(&self, run: RunId) -> Result<Recorded, CallError> {
        let row = match self.shared.store.get(run).await {
            Ok(row) => row.ok_or(CallError::RunNotFound(run))?,
            Err(StoreError::Unread(row)) if !row.has_ended => {
                return Ok(Recorded::Open { grace: row.grace });
            }
            Err(fault) => return Err(self.read_fault(fault).await),
        };
        if row.outcome.is_none() {
            let grace = row.new.spec.policy.grace();
            return Ok(Recorded::Open { grace });
        }
        let view = self.located(row.into()).await?;
        Ok(Recorded::Ended(Box::new(view)))
    }

    /// Carries out the stops that are queued for this node.
    pub(crate) async fn carry_out_left_stops(&self) {
        let shared = &self.shared;
        let stops = match read!(shared.store, left_stops(shared.config.node)) {
            Ok(stops) => stops,
            Err(error) => {
                return tracing::warn!(%error, "cannot read the queued stops of this node, retrying");
            }
        };
        for stop in stops {
            self.carry_out_stop(stop).await;
        }
    }

    async fn carry_out_stop(&self, stop: LeftStop) {
        let LeftStop { run, order, asked } = &stop;
        let run = *run;
        let StopReason::Abort { by, request_id } = order.reason.clone() else {
            return tracing::error!(run_id = %run, "a queued request for this node is not an Abort");
        };
        let request = LoggedRequest {
            rpc: "Abort".to_owned(),
            by: by.clone(),
            request_id: request_id.clone().unwrap_or_default(),
            code: "OK".to_owned(),
            calls: 1,
            ..LoggedRequest::default()
        };
        let call = AbortCall {
            run,
            grace: Some(order.grace),
            wait: AbortWait::None,
            if_unknown: IfUnknown::Refuse,
            owner: by.clone(),
            by,
            request_id,
        };
        match self.abort(call).await {
            Ok(_) | Err(CallError::RunNotFound(_)) => {}
            Err(error) => {
                return tracing::warn!(run_id = %run, %error, "a queued stop for this node failed, retrying");
            }
        }
        crash_point!("left_stop.carried_out");
        let request = request.with("left_at_us", asked.0.to_string());
        let entry = TrailEntry::Request(request);
        let record = TrailRecord::now(Some(run.to_string()), entry);
        self.shared.trail.record(record);
        if let Err(error) = self.shared.store.remove_left_stop(&stop).await {
            tracing::warn!(run_id = %run, %error, "cannot remove a queued stop that was carried out, retrying");
        }
    }
}
