//! The end of the run that this one belongs to: the child's own task waits for it, whichever server drives it.

use super::RunTask;
use crate::{base::clock, registry::Shared};
use kennel_lifecycle::{RunId, StopOrder};
use kennel_linux::crash_point;
use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

/// Interval at which the row of a live parent is read that no task of this server drives.
const PARENT_POLL: Duration = Duration::from_secs(1);

/// Waits for the end of a parent.
#[derive(Default)]
pub(super) enum ParentWatch {
    /// The wait was not begun.
    #[default]
    Idle,
    Waiting(Pin<Box<dyn Future<Output = ()> + Send>>),
    /// The parent has ended, and what follows was done.
    Over,
}

impl fmt::Debug for ParentWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "Idle",
            Self::Waiting(_) => "Waiting",
            Self::Over => "Over",
        })
    }
}

impl ParentWatch {
    /// Returns once when the parent has ended. May be dropped at any time and called again.
    pub(super) async fn ended(&mut self, shared: &Arc<Shared>, parent: RunId) {
        if let Self::Idle = self {
            *self = Self::Waiting(Box::pin(until_ended(Arc::clone(shared), parent)));
        }
        match self {
            Self::Waiting(waiting) => waiting.await,
            Self::Idle | Self::Over => std::future::pending().await,
        }
        *self = Self::Over;
    }
}

impl RunTask {
    /// Returns the stop after the end of its parent. Absent: the run has no parent, or continues without it.
    pub(super) fn stop_with_parent(&self) -> Option<(RunId, StopOrder)> {
        let parent = self.new.spec.parent?;
        Some((parent.run, parent.stop_at_end(self.new.policy().grace())?))
    }

    /// Has the run stopped because its parent has ended. A server that dies before that is recorded leaves it to the next one,
    /// whose task of this run waits for the same end and finds it in the parent's row.
    pub(super) fn parent_ended(&mut self) {
        let Some((parent, order)) = self.stop_with_parent() else {
            return;
        };
        self.at = clock::now();
        tracing::info!(run_id = %self.run, parent_run_id = %parent, "the parent of the run has ended, stopping the run");
        crash_point!("parent.ended");
        self.stop_unasked(order);
    }
}

/// Waits until a run has ended for good, which is durable then: its task shows that, or what is recorded of it. A run that has
/// neither was removed after its end, or its command never ran.
async fn until_ended(shared: Arc<Shared>, parent: RunId) {
    let mut is_missing = false;
    loop {
        if let Some(handle) = shared.find(parent) {
            let mut live = handle.live.clone();
            drop(handle);
            let seen = live.wait_for(|live| live.view.outcome.is_some() || live.over);
            if seen.await.is_ok_and(|live| live.view.outcome.is_some()) {
                return;
            }
        }
        // A recorded end may not have reached the database yet.
        if shared.record.pending_end(parent).is_some() {
            return;
        }
        match shared.store.get(parent).await {
            Ok(Some(row)) if row.outcome.is_none() => {}
            // At startup runs are adopted one by one: a parent whose row the database lost may still get a task.
            Ok(None) if is_recorded(&shared, parent) || !is_missing => is_missing = true,
            Ok(_) => return,
            Err(error) => {
                tracing::debug!(%parent, %error, "cannot read whether the parent of a run has ended");
            }
        }
        tokio::time::sleep(PARENT_POLL).await;
    }
}

/// Whether this node has recorded the run and its end not.
fn is_recorded(shared: &Shared, run: RunId) -> bool {
    shared.record.open_row(run).is_some() || shared.record.is_unfinished(run)
}
