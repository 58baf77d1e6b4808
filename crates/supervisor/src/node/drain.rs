//! Drain: an operator takes the node out of service, without disturbing its runs, and may put it back.
//!
//! A drain lives as long as the service: the next server of this keeper continues it (`state_file`).

mod state_file;

use crate::{
    base::{
        blocking::blocking,
        calls::CallError,
        cause::{Chain, is_full},
        clock,
        drain::{Drain, DrainAction, DrainCall, DrainStatus},
    },
    registry::{Handle, Order, Supervisor},
};
use kennel_lifecycle::{StopOrder, StopReason, Wait};
use kennel_linux::crash_point;
use std::time::Duration;
use tokio::sync::{oneshot, watch};

impl Supervisor {
    /// Refuses new runs from now on, and ends existing ones at once, at the deadline, or never. A new drain replaces
    /// the one before. Answers when every run that is to end has been asked to.
    pub async fn drain(&self, call: DrainCall) -> Result<DrainStatus, CallError> {
        if self.shared.serving.is_refusing() {
            return Err(CallError::Draining);
        }
        let drain = Drain {
            action: call.action,
            by: call.by,
            request_id: call.request_id,
            since: clock::now(),
            deadline: call
                .deadline
                .filter(|_| call.action == DrainAction::Finish)
                .map(|wait| clock::now().plus(wait)),
        };
        tracing::info!(
            action = drain.action.api_name(),
            by = drain.by,
            "draining this node"
        );
        self.keep(Some(drain.clone())).await?;
        self.begin_drain(drain, call.deadline);
        Ok(self.drain_status())
    }

    /// Takes new runs again. Stops that a drain has begun continue to their end.
    pub async fn undrain(&self) -> Result<DrainStatus, CallError> {
        if self.shared.serving.is_refusing() {
            return Err(CallError::Draining);
        }
        if self.keep(None).await?.is_some() {
            tracing::info!("this node accepts new runs again");
        }
        Ok(self.drain_status())
    }

    /// Continues the drain that an earlier server of this keeper began, before any call is answered.
    pub(crate) async fn resume_drain(&self) {
        let (dir, epoch) = (self.shared.config.data_dir.clone(), self.shared.hello.epoch);
        let found = blocking(move || state_file::find(&dir, epoch)).await;
        let drain = match found.flatten() {
            Ok(Some(drain)) => drain,
            Ok(None) => return,
            Err(error) => {
                return tracing::error!(error = %Chain(&error), "cannot read the drain state of this node, accepting new runs");
            }
        };
        tracing::info!(
            action = drain.action.api_name(),
            by = drain.by,
            "this node is still being drained"
        );
        self.shared.drain.send_replace(Some(drain.clone()));
        let now = self.shared.clock.now_as_of(drain.since);
        let left = drain.deadline.map(|at| at.since(now));
        self.begin_drain(drain, left);
    }

    /// Ends the existing runs as a drain in force demands: now, after this time, or never.
    fn begin_drain(&self, drain: Drain, deadline: Option<Duration>) {
        match (drain.action, deadline) {
            (DrainAction::Abort, _) => self.abort_all(&drain),
            (DrainAction::Finish, Some(wait)) => {
                let watch = self.shared.drain.subscribe();
                let aborting = self.clone().abort_at_deadline(drain, wait, watch);
                self.shared.background.spawn(aborting);
            }
            (DrainAction::Finish, None) => {}
        }
    }

    /// Puts a drain in force, or none; on disk first. Returns the one before it.
    async fn keep(&self, drain: Option<Drain>) -> Result<Option<Drain>, CallError> {
        let _one_at_a_time = self.shared.drain_on_disk.lock().await;
        let (dir, epoch) = (self.shared.config.data_dir.clone(), self.shared.hello.epoch);
        let to_disk = drain.clone();
        let written = blocking(move || match &to_disk {
            Some(drain) => state_file::keep(&dir, epoch, drain),
            None => state_file::forget(&dir),
        });
        written.await.flatten().map_err(|error| {
            let why = format!("the drain cannot be written down: {error}");
            if is_full(&error) {
                CallError::HostFull(why)
            } else {
                CallError::Internal(why)
            }
        })?;
        crash_point!("drain.kept");
        Ok(self.shared.drain.send_replace(drain))
    }

    /// Returns whether this node is being drained, and the runs that remain.
    pub fn drain_status(&self) -> DrainStatus {
        // A held run has no process, and a draining node starts none.
        let is_held = |handle: &Handle| {
            let waits_for = handle.live.borrow().view.waits_for();
            waits_for == Some(Wait::Restart)
        };
        let running = self.shared.running().into_iter();
        let running = running.filter(|(_, handle)| !is_held(handle));
        let mut remaining: Vec<_> = running.map(|(run, _)| run).collect();
        remaining.sort_unstable();
        DrainStatus {
            drain: self.drained(),
            remaining,
        }
    }

    /// Watches drains: each start and each end.
    pub fn drains(&self) -> watch::Receiver<Option<Drain>> {
        self.shared.drain.subscribe()
    }

    async fn abort_at_deadline(
        self,
        drain: Drain,
        wait: Duration,
        mut watch: watch::Receiver<Option<Drain>>,
    ) {
        watch.mark_unchanged();
        tokio::select! {
            // Another drain or none is in force: this deadline no longer counts.
            _ = watch.changed() => return,
            () = self.shared.serving.until_refusing() => return,
            () = tokio::time::sleep(wait) => {}
        }
        let due = Drain {
            action: DrainAction::Abort,
            deadline: None,
            ..drain.clone()
        };
        let still = self.shared.drain.send_if_modified(|now| {
            let same = now.as_ref() == Some(&drain);
            if same {
                *now = Some(due.clone());
            }
            same
        });
        if still {
            tracing::warn!("drain deadline exceeded: ending the remaining runs");
            self.abort_all(&due);
        }
    }

    /// Ends the existing runs, where the drain in force is to end them.
    pub(crate) fn abort_drained(&self) {
        let drain = self.drained();
        if let Some(drain) = drain.filter(|drain| drain.action == DrainAction::Abort) {
            self.abort_all(&drain);
        }
    }

    fn abort_all(&self, drain: &Drain) {
        for (_, handle) in self.shared.all() {
            let order = drain.order(handle.live.borrow().view.policy().grace());
            let (reply, _) = oneshot::channel();
            handle.send(Order::Stop(order, reply), &self.shared.background);
        }
    }
}

impl Drain {
    /// Makes the stop order of one run, as if its abort had been requested.
    pub(crate) fn order(&self, grace: Duration) -> StopOrder {
        StopOrder {
            reason: StopReason::Abort {
                by: self.by.clone(),
                request_id: self.request_id.clone(),
            },
            grace,
        }
    }
}
