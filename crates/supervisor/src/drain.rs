//! Drain: an operator takes the node out of service, without taking anything from its runs, and may take it back.
//!
//! A drain lives as long as the service: the next server of this keeper goes on with it (`kept`).

mod kept;

use crate::{CallError, Supervisor, blocking::blocking, cause::Chain, clock, tracker::Order};
use kennel_lifecycle::{RunId, StopOrder, StopReason, Timestamp};
use kennel_linux::crash_point;
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// What becomes of the runs that are there when a drain begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainAction {
    /// They go on to their own end, or to the drain's deadline.
    Finish,
    /// They are ended, each within its own grace.
    Abort,
}

impl DrainAction {
    /// Its name in the contract, without prefix.
    fn name(self) -> &'static str {
        match self {
            Self::Finish => "FINISH",
            Self::Abort => "ABORT",
        }
    }
}

/// A request to drain this node.
#[derive(Clone, Debug)]
pub struct DrainCall {
    /// What becomes of the runs.
    pub action: DrainAction,
    /// After this time what still runs is ended; absent: never.
    pub deadline: Option<Duration>,
    /// Who asks.
    pub by: String,
    /// The request's own id, where it has one; it is that of the aborts that follow.
    pub request_id: Option<String>,
}

/// A drain in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drain {
    /// What becomes of the runs.
    pub action: DrainAction,
    /// Who asked for it.
    pub by: String,
    /// The request's own id, where it had one.
    pub request_id: Option<String>,
    /// Since when.
    pub since: Timestamp,
    /// When what still runs is ended; absent: never, or it has been.
    pub deadline: Option<Timestamp>,
}

/// How far a node is out of service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainStatus {
    /// The drain in force; absent: the node takes new runs.
    pub drain: Option<Drain>,
    /// Every live run, oldest first.
    pub remaining: Vec<RunId>,
}

impl Supervisor {
    /// Refuses new runs from now on, and ends those that are there at once, at the deadline, or never. Another drain
    /// takes the place of the one before. Answers when every run that shall end has been asked to.
    pub async fn drain(&self, call: DrainCall) -> Result<DrainStatus, CallError> {
        if self.shared.refusing.is_cancelled() {
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
            action = drain.action.name(),
            by = drain.by,
            "draining this node"
        );
        self.keep(Some(drain.clone())).await?;
        match (call.action, call.deadline) {
            (DrainAction::Abort, _) => self.abort_all(&drain),
            (DrainAction::Finish, Some(wait)) => {
                let watch = self.shared.drain.subscribe();
                tokio::spawn(self.clone().abort_at_deadline(drain, wait, watch));
            }
            (DrainAction::Finish, None) => {}
        }
        Ok(self.drain_status())
    }

    /// Takes new runs again. What a drain has begun to end goes on to its end.
    pub async fn undrain(&self) -> Result<DrainStatus, CallError> {
        if self.shared.refusing.is_cancelled() {
            return Err(CallError::Draining);
        }
        if self.keep(None).await?.is_some() {
            tracing::info!("this node takes new runs again");
        }
        Ok(self.drain_status())
    }

    /// Goes on with the drain that an earlier server of this keeper has begun. Before anybody is answered.
    pub(crate) async fn go_on_with_drain(&self) {
        let (dir, epoch) = (self.shared.config.data_dir.clone(), self.shared.hello.epoch);
        let found = blocking(move || kept::find(&dir, epoch)).await;
        let drain = match found.flatten() {
            Ok(Some(drain)) => drain,
            Ok(None) => return,
            Err(error) => {
                let error = Chain(&error);
                return tracing::error!(%error, "whether this node is being drained cannot be read, it takes new runs");
            }
        };
        tracing::info!(
            action = drain.action.name(),
            by = drain.by,
            "this node is still being drained"
        );
        self.shared.drain.send_replace(Some(drain.clone()));
        match (drain.action, drain.deadline) {
            (DrainAction::Abort, _) => self.abort_all(&drain),
            (DrainAction::Finish, Some(at)) => {
                let watch = self.shared.drain.subscribe();
                let wait = Duration::from_micros(
                    at.0.saturating_sub(clock::now().0).try_into().unwrap_or(0),
                );
                tokio::spawn(self.clone().abort_at_deadline(drain, wait, watch));
            }
            (DrainAction::Finish, None) => {}
        }
    }

    /// Puts a drain in force, or none; on disk first. Gives the one before it.
    async fn keep(&self, drain: Option<Drain>) -> Result<Option<Drain>, CallError> {
        let _one_at_a_time = self.shared.drain_on_disk.lock().await;
        let (dir, epoch) = (self.shared.config.data_dir.clone(), self.shared.hello.epoch);
        let to_disk = drain.clone();
        let written = blocking(move || match &to_disk {
            Some(drain) => kept::keep(&dir, epoch, drain),
            None => kept::forget(&dir),
        });
        written.await.flatten().map_err(|error| {
            CallError::Internal(format!("the drain cannot be written down: {error}"))
        })?;
        crash_point!("drain.kept");
        Ok(self.shared.drain.send_replace(drain))
    }

    /// Whether this node is being drained, and who is still running.
    #[must_use]
    pub fn drain_status(&self) -> DrainStatus {
        let running = self.shared.running().into_iter();
        let mut remaining: Vec<_> = running.map(|(run, _)| run).collect();
        remaining.sort_unstable();
        DrainStatus {
            drain: self.drained(),
            remaining,
        }
    }

    /// Tells each drain, and its end.
    #[must_use]
    pub fn drains(&self) -> watch::Receiver<Option<Drain>> {
        self.shared.drain.subscribe()
    }

    /// The drain in force.
    pub(crate) fn drained(&self) -> Option<Drain> {
        self.shared.drain.borrow().clone()
    }

    async fn abort_at_deadline(
        self,
        drain: Drain,
        wait: Duration,
        mut watch: watch::Receiver<Option<Drain>>,
    ) {
        watch.mark_unchanged();
        tokio::select! {
            // Another drain, or none: this one's deadline is nobody's any more.
            _ = watch.changed() => return,
            () = self.shared.refusing.cancelled() => return,
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
            tracing::warn!("the deadline of the drain has come: ending what still runs");
            self.abort_all(&due);
        }
    }

    /// Ends what is there, where the drain in force is to end it.
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
            handle.tell(Order::Stop(order, reply));
        }
    }
}

impl Drain {
    /// The end of one run, as if its abort had been asked for.
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
