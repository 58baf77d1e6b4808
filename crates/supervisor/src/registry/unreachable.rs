//! Runs whose shims are there and have not answered at their doors yet. They are waited for, and not ended: that somebody is
//! slow proves nothing.

use kennel_lifecycle::RunId;
use std::collections::HashMap;
use tokio::sync::watch;

/// What has come of a door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Door {
    /// Nothing yet.
    Waits,
    /// The keeper has the run.
    Opened,
    /// Nobody is there any more.
    Left,
    /// The run is gone on with, or ended.
    Done,
}

/// The doors that were late when this server began.
#[derive(Debug)]
pub(crate) struct Doors(watch::Sender<HashMap<RunId, Door>>);

impl Doors {
    pub(crate) fn new(late: &[RunId]) -> Self {
        let doors = late.iter().map(|run| (*run, Door::Waits)).collect();
        Self(watch::Sender::new(doors))
    }

    /// Takes in what has come of one.
    pub(crate) fn tell(&self, run: RunId, what: Door) {
        self.0.send_modify(|doors| {
            doors.insert(run, what);
        });
    }

    /// Whether the run was late, and is not done with.
    pub(crate) fn is_late(&self, run: RunId) -> bool {
        let doors = self.0.borrow();
        doors.get(&run).is_some_and(|door| *door != Door::Done)
    }

    /// What has come of one, once something has.
    pub(crate) async fn answer(&self, run: RunId) -> Door {
        let mut doors = self.0.subscribe();
        let came = |doors: &HashMap<RunId, Door>| doors.get(&run) != Some(&Door::Waits);
        let doors = doors.wait_for(came).await;
        // The sender is this very value.
        let door = doors.ok().and_then(|doors| doors.get(&run).copied());
        door.unwrap_or(Door::Left)
    }
}
