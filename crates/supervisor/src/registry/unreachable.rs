//! Runs whose shim is alive but has not reconnected yet. Recovery waits for them instead of ending them: a slow shim
//! proves nothing.

use kennel_lifecycle::RunId;
use std::collections::HashMap;
use tokio::sync::watch;

/// State of a shim that had not reconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Door {
    /// The shim has not reconnected yet.
    Waits,
    /// The keeper has the run.
    Opened,
    /// The shim is gone.
    Left,
    /// The run is adopted, or has ended.
    Done,
}

/// Shims that had not reconnected when this server began.
#[derive(Debug)]
pub(crate) struct Doors(watch::Sender<HashMap<RunId, Door>>);

impl Doors {
    pub(crate) fn new(late: &[RunId]) -> Self {
        let doors = late.iter().map(|run| (*run, Door::Waits)).collect();
        Self(watch::Sender::new(doors))
    }

    /// Records the state of one.
    pub(crate) fn set(&self, run: RunId, what: Door) {
        self.0.send_modify(|doors| {
            doors.insert(run, what);
        });
    }

    /// Whether the run's shim was late, and the run is not finished here.
    pub(crate) fn is_late(&self, run: RunId) -> bool {
        let doors = self.0.borrow();
        doors.get(&run).is_some_and(|door| *door != Door::Done)
    }

    /// Waits until the state of one is decided.
    pub(crate) async fn answer(&self, run: RunId) -> Door {
        let mut doors = self.0.subscribe();
        let came = |doors: &HashMap<RunId, Door>| doors.get(&run) != Some(&Door::Waits);
        let doors = doors.wait_for(came).await;
        // Never an error: `self` owns the sender.
        let door = doors.ok().and_then(|doors| doors.get(&run).copied());
        door.unwrap_or(Door::Left)
    }
}
