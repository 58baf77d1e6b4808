//! Runs whose shim is alive but has not reconnected yet. Recovery waits for them instead of ending them: a slow shim
//! proves nothing.

use kennel_lifecycle::RunId;
use std::collections::HashMap;
use tokio::sync::watch;

/// State of a shim that had not reconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LateShim {
    /// The shim has not reconnected yet.
    Waiting,
    /// The keeper has the run.
    Reconnected,
    /// The shim is gone.
    Gone,
    /// The run is adopted, or has ended.
    Done,
}

/// Shims that had not reconnected when this server began.
#[derive(Debug)]
pub(crate) struct LateShims(watch::Sender<HashMap<RunId, LateShim>>);

impl LateShims {
    pub(crate) fn new(late: &[RunId]) -> Self {
        let states = late.iter().map(|run| (*run, LateShim::Waiting)).collect();
        Self(watch::Sender::new(states))
    }

    /// Records the state of one.
    pub(crate) fn set(&self, run: RunId, what: LateShim) {
        self.0.send_modify(|states| {
            states.insert(run, what);
        });
    }

    /// Whether the run's shim was late, and the run is not finished here.
    pub(crate) fn is_late(&self, run: RunId) -> bool {
        let states = self.0.borrow();
        states.get(&run).is_some_and(|shim| *shim != LateShim::Done)
    }

    /// Waits until the state of one is decided.
    pub(crate) async fn answer(&self, run: RunId) -> LateShim {
        let mut states = self.0.subscribe();
        let came = |states: &HashMap<RunId, LateShim>| states.get(&run) != Some(&LateShim::Waiting);
        let states = states.wait_for(came).await;
        // `wait_for` cannot fail: `self` owns the sender.
        let shim = states.ok().and_then(|states| states.get(&run).copied());
        shim.unwrap_or(LateShim::Gone)
    }
}
