//! A task that goes on with a run of an earlier server.

use super::{RunTask, Runtime};
use crate::{output::Output, past::Past, tracker::Order, tracker::Shared, view::Live};
use kennel_lifecycle::{Input, Machine, Report, RowSays, RowState, StreamsEnd};
use kennel_linux::client::{HeldRun, KeeperReport};
use kennel_store::{RunRow, StoredState, Times};
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

/// Where the run stands.
#[derive(Debug)]
pub(crate) struct Standing {
    pub(crate) held: HeldRun,
    /// Its row; where it was not recorded, what would have been.
    pub(crate) row: RunRow,
    pub(crate) recorded: bool,
    /// Its journal, where that can be written.
    pub(crate) output: Option<Output>,
    /// What the journal has told.
    pub(crate) past: Past,
}

/// What an earlier server has left.
#[derive(Debug, Default)]
pub(super) struct Legacy {
    /// What the journal had told.
    pub(super) past: Past,
    /// How many rounds of signals were told again.
    pub(super) steps_again: usize,
    /// There was no row: what is there of the run is this task's to remove.
    pub(super) unrecorded: bool,
}

impl RunTask {
    /// Goes on with a run. What is to be done at once is done by [`Self::go_on`].
    pub(crate) fn adopt(
        shared: Arc<Shared>,
        standing: Standing,
        live: watch::Sender<Live>,
        orders: mpsc::Receiver<Order>,
        reports: mpsc::Receiver<KeeperReport>,
    ) -> Self {
        let Standing {
            held,
            row,
            recorded,
            output,
            past,
        } = standing;
        let mut runtime = Runtime::new(&held.policy);
        for (at, begins) in &past.pauses {
            if *begins {
                runtime.pause(*at);
            } else {
                runtime.resume(*at);
            }
        }
        let mut task = Self::with(
            shared,
            row.new.clone(),
            machine(&held, &row, recorded, &past),
            runtime,
            live,
            orders,
            reports,
        );
        task.times = known_times(row.times, past.times);
        task.desired = row.desired;
        task.stop_deadline = row.stop_deadline;
        task.output = output;
        if let (Some(why), false) = (held.held.cgroup_refused(), past.announced.recorded) {
            task.warning = Some(format!("this run has no control group: {why}"));
        }
        if past.announced.streams.is_none() && row.outcome.is_none() {
            task.attach(held);
        }
        if past.announced.started {
            task.flow();
        }
        task.legacy = Legacy {
            past,
            steps_again: 0,
            unrecorded: !recorded,
        };
        task.publish();
        task
    }

    /// The pipes are read where the server before has stopped reading them.
    fn attach(&mut self, held: HeldRun) {
        let attached = match (&mut self.output, held.outputs) {
            (Some(output), Some((stdout, stderr))) => {
                output.attach(stdout, stderr).map_err(|e| e.to_string())
            }
            (Some(_), None) => Err("this process has no room for its descriptors".into()),
            // That was said when the journal was opened.
            (None, _) => return,
        };
        if let Err(why) = attached {
            tracing::error!(run = %self.run, %why, "the output cannot be read any more");
            // It is told after the leader's end.
            let lost = Input::Report(Report::StreamsClosed(StreamsEnd::Lost));
            let _ = self.machine.step(self.at, lost);
        }
    }
}

fn machine(held: &HeldRun, row: &RunRow, recorded: bool, past: &Past) -> Machine {
    let announced = past.announced.clone();
    if let Some(outcome) = &row.outcome {
        return Machine::ended(outcome.clone(), &announced);
    }
    let says = RowSays {
        state: match row.state {
            StoredState::Running => Some(RowState::Running),
            StoredState::Pausing => Some(RowState::Pausing),
            StoredState::Paused => Some(RowState::Paused),
            StoredState::Starting | StoredState::Ended(_) => None,
        },
        stop: row.stop.clone().zip(row.stop_deadline),
    };
    let standing = kennel_lifecycle::Standing {
        identity: Box::new(held.identity.clone()),
        on_leader_exit: held.policy.on_leader_exit,
        released: held.released,
        pause: held.pause,
        row: recorded.then_some(says),
        announced,
    };
    Machine::adopted(crate::clock::now(), standing)
}

/// The journal tells of more, and first.
fn known_times(row: Times, told: Times) -> Times {
    Times {
        started: told.started.or(row.started),
        leader_exited: told.leader_exited.or(row.leader_exited),
        streams_closed: told.streams_closed.or(row.streams_closed),
        tree_empty: told.tree_empty.or(row.tree_empty),
        ended: row.ended,
    }
}
