//! Drives runs: one task per run feeds the pure machine and performs its effects.
//!
//! The tracker of all live runs lives here, and so does the clock. Knows neither prost nor SQL nor system calls:
//! it asks the keeper, the store and the journal.

mod api;

pub use api::*;
use kennel_lifecycle::RunId;
pub use kennel_store::{Desired, ListFilter, PageStart, Times};

/// The tracker of all runs of this node. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Supervisor {}

/// Events of one run, from a position on. Ends after `Ended`.
#[derive(Debug)]
pub struct Events {}

#[expect(
    clippy::todo,
    clippy::unused_async,
    unused_variables,
    reason = "signatures first"
)]
impl Supervisor {
    /// Runs a command; answers when it runs, or why it does not. May be dropped at any time: the start goes on.
    pub async fn spawn(&self, call: SpawnCall) -> Result<Spawned, CallError> {
        todo!()
    }

    /// Ends a run. May be repeated; a repeat may only shorten the grace. A key that nobody knows is fenced, and the
    /// closed run that stands for the fence is given.
    pub async fn abort(&self, call: AbortCall) -> Result<RunView, CallError> {
        todo!()
    }

    /// SIGINT to the leader's group, once per request id.
    pub async fn interrupt(
        &self,
        run: RunId,
        request_id: Option<String>,
    ) -> Result<RunView, CallError> {
        todo!()
    }

    /// Stops every task; answers when all were seen stopped and the row says so. OK when it is paused already.
    pub async fn pause(&self, run: RunId) -> Result<RunView, CallError> {
        todo!()
    }

    /// Continues; OK when it runs already.
    pub async fn resume(&self, run: RunId) -> Result<RunView, CallError> {
        todo!()
    }

    /// One run.
    pub async fn get(&self, run: RunId) -> Result<RunView, CallError> {
        todo!()
    }

    /// Runs, newest first, and where the next page begins, if there is one.
    pub async fn list(
        &self,
        filter: ListFilter,
        start: Option<PageStart>,
        limit: u32,
    ) -> Result<(Vec<RunView>, Option<PageStart>), CallError> {
        todo!()
    }

    /// Waits for a condition, for as long as the caller waits.
    pub async fn wait(&self, run: RunId, condition: Condition) -> Result<Waited, CallError> {
        todo!()
    }

    /// The run as it is, and its events from a position on. The last seq at this moment is [`Events::head`].
    pub async fn events(&self, run: RunId, from: Position) -> Result<(RunView, Events), CallError> {
        todo!()
    }

    /// What this server is.
    pub async fn info(&self) -> ServerInfo {
        todo!()
    }

    /// Whether a process (by its pid) is a run's own: then it has no rights here.
    #[must_use]
    pub fn owns_process(&self, pid: i32) -> bool {
        todo!()
    }

    /// Fires once this server refuses new work: listeners close, streams end.
    #[must_use]
    pub fn draining(&self) -> tokio_util::sync::CancellationToken {
        todo!()
    }
}

#[expect(
    clippy::todo,
    clippy::unused_async,
    unused_variables,
    reason = "signatures first"
)]
impl Events {
    /// Last seq that there is now.
    #[must_use]
    pub fn head(&self) -> u64 {
        todo!()
    }

    /// The next events, at least one, at most `bytes_max` bytes of output (but always one). Waits while there is
    /// none; `None` after the run's last. Cancel-safe.
    pub async fn next(&mut self, bytes_max: usize) -> Result<Option<Vec<Event>>, CallError> {
        todo!()
    }
}
