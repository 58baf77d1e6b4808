//! The changes of a run's row as the node log stores them, and the one fold that applies them to a row.
//!
//! Their JSON is read by later versions: `change.lock` holds one line for each and goes red when one changes.

use crate::{
    Changed, Closure, Desired, LeftStop, NewRun, Rest, RunRow, Store, StoreError, StoredState,
    Times, json,
};
use kennel_lifecycle::{
    EndReason, Facets, NodeId, OutputRemoval, RowState, RunId, StopOrder, StopReason, Timestamp,
};

/// The form of the changes: it differs after each change of `change.lock`.
pub const CHANGE_FORM: [u8; 8] = hash(include_bytes!("change.lock"));

kennel_lifecycle::tagged! {
    /// One change of a run. Writing a change twice is the same as once.
    #[derive(Clone, Debug, PartialEq)]
    pub enum Change {
        /// An attempt is about to be made: noted before any part of it exists. Promises nothing, and no store takes it.
        Intended(Box<NewRun>) = "intended",
        /// The row before exec, state `starting`, if there is none of its id, its key, or open with its name.
        Inserted(Box<NewRun>) = "inserted",
        /// The next attempt, before exec: its number, identity and keeper, state `starting`, and the number of restarts
        /// in a row with it. Requires an open row that waits for exactly that attempt, with the desired state to run.
        Begun(Box<NewRun>, u32) = "begun",
        /// The end of an attempt and the time of the next, as one: the run waits for it from here on, and its desired
        /// state is to run. The run is that attempt. It may not have been begun: then its number is used up. Requires
        /// an open row that waits for it or runs it.
        Rested(Box<NewRun>, Box<Rest>) = "rested",
        /// The run is to stop. A second one may only bring the deadline forward. Requires an open row.
        Stop {
            /// Requester, reason and grace.
            order: StopOrder,
            /// Time at which SIGKILL is due.
            deadline: Timestamp,
        } = "stop",
        /// The state. Requires an open row.
        State {
            /// The new state.
            state: RowState,
            /// Start of the run, where it is known.
            started: Option<Timestamp>,
        } = "state",
        /// The facets. Requires an open row.
        Facets(Box<Facets>) = "facets",
        /// The end: writes the whole row where there is none, so that a late INSERT meets the key, and closes an open
        /// one. A closed row stays as it is.
        Closed(Box<NewRun>, Box<Closure>) = "closed",
        /// A closed row (cancelled, fenced), if its key has none.
        Fenced(Box<NewRun>, Box<Closure>) = "fenced",
        /// There is no row of a run whose gate was never opened: its first attempt, which no caller knows of. Requires
        /// that it is of this node, has not ended, is not to stop, by a stop that is left too, and has not advanced.
        Withdrawn = "withdrawn",
        /// The output of an ended run of this node is removed: written before the removal. A marked row stays as it is.
        OutputRemoved(OutputRemoval) = "output_removed",
        /// This node has no work left for the run. No store takes it.
        Forgotten = "forgotten",
        /// The whole row, as read, or as it was written in an earlier life of the database. Requires an open row of
        /// this node or none. A closed row stays as it is, unless it was closed as lost and the one given is open: a
        /// keeper that took the node from the run's could not see the run.
        Snapshot(Box<RunRow>) = "snapshot",
    }
}

impl Change {
    /// Whether this row, or that there is none, is as the change requires. One that changes no row requires nothing.
    pub(crate) fn fits(&self, row: Option<&RunRow>) -> bool {
        let Some(row) = row else {
            return self.upon(None).is_some();
        };
        let is_next = |attempt| row.state == StoredState::Backoff && row.new.attempt + 1 == attempt;
        match self {
            Self::Snapshot(lives) if lives.outcome.is_none() => match &row.outcome {
                Some(end) => matches!(end.reason, EndReason::ServiceLost | EndReason::Rebooted),
                None => true,
            },
            Self::OutputRemoved(_) => row.outcome.is_some() && row.output_removed.is_none(),
            _ if row.outcome.is_some() => false,
            Self::Begun(new, _) => is_next(new.attempt) && row.desired == Desired::Run,
            Self::Rested(new, _) => is_next(new.attempt) || row.new.attempt == new.attempt,
            Self::State { .. } => row.state != StoredState::Backoff,
            _ => true,
        }
    }

    /// Returns the row after this change. `None`: there is none, or its contents are not known.
    pub fn upon(&self, row: Option<RunRow>) -> Option<RunRow> {
        match self {
            Self::Intended(_) | Self::Forgotten => row,
            Self::Snapshot(row) => Some((**row).clone()),
            Self::Inserted(new) => Some(RunRow::open((**new).clone())),
            Self::Fenced(new, closure) => row.or_else(|| Some(fenced(new, closure))),
            Self::Withdrawn => row.filter(|row| row.outcome.is_some()),
            Self::OutputRemoved(removal) => row.map(|row| RunRow {
                output_removed: row.outcome.is_some().then_some(*removal),
                ..row
            }),
            Self::Closed(new, closure) => {
                let row = row.unwrap_or_else(|| RunRow::open((**new).clone()));
                Some(if row.outcome.is_some() {
                    row
                } else {
                    closed(row, new, closure)
                })
            }
            Self::Begun(..)
            | Self::Rested(..)
            | Self::Stop { .. }
            | Self::State { .. }
            | Self::Facets(_) => row.map(|row| self.upon_open(row)),
        }
    }

    /// Applies the change to an open row; only such a row changes.
    fn upon_open(&self, row: RunRow) -> RunRow {
        match self {
            _ if row.outcome.is_some() => row,
            Self::Begun(new, restarts) => RunRow {
                new: (**new).clone(),
                state: StoredState::Starting,
                times: Times::default(),
                restarts: *restarts,
                next_restart: None,
                ..row
            },
            Self::Rested(new, rest) => rested(row, new, rest),
            Self::Stop { order, deadline } => stopped(row, order, *deadline),
            // This is a late report of the ended attempt.
            Self::State { .. } if row.state == StoredState::Backoff => row,
            Self::State { state, started } => in_state(row, *state, *started),
            Self::Facets(facets) => RunRow {
                facets: (**facets).clone(),
                ..row
            },
            _ => row,
        }
    }

    /// Writes a change that waited in a log to the store, by this generation of this node.
    ///
    /// # Errors
    ///
    /// The store has not accepted it. [`StoreError::Fenced`] and [`StoreError::Corrupt`]: it never will. A change that
    /// decides about a gate, or that only the store's own answer makes true, is never written late and is
    /// [`StoreError::Corrupt`].
    pub async fn write_late(
        &self,
        store: &dyn Store,
        node: NodeId,
        generation: i64,
        run: RunId,
    ) -> Result<(), StoreError> {
        match self {
            Self::Fenced(new, closure) => write_fence(store, generation, new, closure).await,
            Self::Stop { .. } | Self::State { .. } | Self::Facets(_) | Self::Closed(..) => {
                let written = store.change(node, generation, run, self).await;
                written.map(drop)
            }
            _ => {
                let why = format!(
                    "{:?} is not written later than it was requested",
                    self.name()
                );
                Err(StoreError::Corrupt(why))
            }
        }
    }

    /// Returns the change as JSON.
    pub fn encode(&self) -> Vec<u8> {
        json::bytes(self)
    }

    /// Parses a change of these bytes.
    ///
    /// # Errors
    ///
    /// The bytes contain no change that this version can read; the text gives the reason.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(bytes).map_err(|e| e.to_string())
    }
}

/// Writes a fence. A run that has the key already is stopped: by its own node, for which the stop is left.
async fn write_fence(
    store: &dyn Store,
    generation: i64,
    new: &NewRun,
    closure: &Closure,
) -> Result<(), StoreError> {
    let run = new.run;
    let fence = Change::Fenced(Box::new(new.clone()), Box::new(closure.clone()));
    let (node, grace) = match store.change(new.node, generation, run, &fence).await {
        Ok(Changed::Taken(row)) if row.outcome.is_none() => {
            (row.new.node, row.new.spec.policy.grace())
        }
        Err(StoreError::Unread(row)) if row.node != new.node && !row.has_ended => {
            (row.node, row.grace)
        }
        // The run under the key has ended.
        Ok(Changed::Done(_) | Changed::Taken(_)) => return Ok(()),
        Err(StoreError::Unread(row)) if row.has_ended => return Ok(()),
        Err(error) => return Err(error),
    };
    let reason = StopReason::Abort {
        by: new.owner.clone(),
        request_id: None,
    };
    let order = StopOrder { reason, grace };
    let asked = closure.times.ended.unwrap_or(new.created);
    if node != new.node {
        let stop = LeftStop { run, order, asked };
        return store.leave_stop(node, &stop).await;
    }
    let deadline = asked.plus(grace);
    let stop = Change::Stop { order, deadline };
    store.change(node, generation, run, &stop).await.map(drop)
}

fn fenced(new: &NewRun, closure: &Closure) -> RunRow {
    RunRow {
        desired: Desired::Stop,
        ..closed(RunRow::open(new.clone()), new, closure)
    }
}

/// Closes a row. Known times stay where the closing knows none; those of an earlier attempt do not.
fn closed(row: RunRow, new: &NewRun, closure: &Closure) -> RunRow {
    let is_same = row.new.attempt == new.attempt;
    let known = if is_same { row.times } else { Times::default() };
    RunRow {
        new: NewRun {
            attempt: new.attempt,
            ..row.new
        },
        state: StoredState::Ended(closure.outcome.state()),
        times: closure.times.or(known),
        outcome: Some(closure.outcome.clone()),
        entries: closure.entries.clone(),
        output_age: closure.output_age(),
        next_restart: None,
        ..row
    }
}

fn rested(row: RunRow, new: &NewRun, rest: &Rest) -> RunRow {
    let times = rest.past.last().map(|ended| ended.times);
    RunRow {
        new: NewRun {
            attempt: new.attempt,
            ..row.new
        },
        state: StoredState::Backoff,
        times: Times {
            ended: None,
            ..times.unwrap_or_default()
        },
        past: rest.past.clone(),
        restarts: rest.restarts,
        next_restart: Some(rest.next),
        ..row
    }
}

fn stopped(row: RunRow, order: &StopOrder, deadline: Timestamp) -> RunRow {
    let nearer = row.stop_deadline.map_or(deadline, |at| at.min(deadline));
    RunRow {
        desired: Desired::Stop,
        stop_deadline: Some(nearer),
        stop: row.stop.or_else(|| Some(order.clone())),
        ..row
    }
}

fn in_state(row: RunRow, state: RowState, started: Option<Timestamp>) -> RunRow {
    RunRow {
        state: match state {
            RowState::Running => StoredState::Running,
            RowState::Pausing => StoredState::Pausing,
            RowState::Paused => StoredState::Paused,
        },
        times: Times {
            started: started.or(row.times.started),
            ..row.times
        },
        ..row
    }
}

/// FNV-1a.
const fn hash(bytes: &[u8]) -> [u8; 8] {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(0x0100_0000_01b3);
        at += 1;
    }
    hash.to_le_bytes()
}
