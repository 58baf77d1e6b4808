//! Named readers of events: the acknowledged position of each, kept in the store, and the active reader of each name.
//!
//! A position is durable before it is reported, and only moves forward. Of two readers of one name the newer one is
//! active. This module never reads events itself.

use crate::{
    base::{
        calls::{CallError, Position, RunView},
        clock,
    },
    record::node_store::read,
    registry::{
        Supervisor,
        consumers::{ConsumerPlace, ConsumerSeat, Lost},
    },
    streams::by_row::ahead,
};
use kennel_lifecycle::RunId;
use kennel_store::{ConsumerChange, ConsumerFilter, ConsumerKey, ConsumerRow, StoreError};
use std::sync::atomic::Ordering;

/// Most consumers of one run, of each owner.
const CONSUMERS_PER_RUN_MAX: u64 = 16;
/// Most consumers of many runs on one node, of each owner.
const CONSUMERS_OF_MANY_MAX: u64 = 64;
/// Most consumers of one node, of each owner.
const CONSUMERS_PER_OWNER_MAX: u64 = 10_000;

/// Start of a consumer that does not exist yet.
#[derive(Clone, Debug)]
pub struct ConsumerBegin {
    /// For one run: the seq behind which it begins. For many: 0.
    pub acked: u64,
    /// The same position as a client's cursor.
    pub cursor: Vec<u8>,
}

/// Position up to which a consumer acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckPoint {
    /// The event of a run with this seq.
    Seq(u64),
    /// The message of many runs with this number, given to this reader.
    Message {
        /// Session of the reader.
        session: u64,
        /// Number of the message.
        number: u64,
    },
}

/// Present state of a consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerView {
    /// Its row.
    pub row: ConsumerRow,
    /// Whether a reader of it is active.
    pub is_read: bool,
}

impl Supervisor {
    /// Takes the seat of a consumer: its earlier reader stops. A missing consumer is registered where its start is
    /// given; otherwise nothing is done. For many runs, `place` is the position that the reader reports.
    pub async fn take_consumer(
        &self,
        key: &ConsumerKey,
        begin: Option<ConsumerBegin>,
        place: Option<ConsumerPlace>,
    ) -> Result<Option<ConsumerSeat>, CallError> {
        let shared = &self.shared;
        let consumers = &shared.consumers;
        let _turn = consumers.turn(key).await;
        let row = match (self.consumer_row(key).await?, begin) {
            // The same reader resumes, and may still acknowledge received events.
            (Some(row), _) if place.is_some() => {
                let is_its = |place: &ConsumerPlace| place.session == row.session;
                if !place.as_ref().is_some_and(is_its) {
                    return Err(taken_over(key));
                }
                row
            }
            (Some(row), _) => {
                let session = row.session + 1;
                let row = ConsumerRow { session, ..row };
                self.put_consumer(&row).await?;
                row
            }
            (None, None) => return Ok(None),
            (None, Some(begin)) => {
                let now = clock::now();
                let _making = consumers.making.lock().await;
                self.check_room(key).await?;
                let row = ConsumerRow {
                    key: key.clone(),
                    node: shared.config.node,
                    // A cursor of a deleted consumer is not valid for its successor.
                    session: now.0.max(1).unsigned_abs(),
                    acked: begin.acked,
                    cursor: begin.cursor,
                    created: now,
                    acked_at: None,
                };
                self.put_consumer(&row).await?;
                row
            }
        };
        Ok(Some(consumers.seat(row, place)))
    }

    /// Moves a consumer forward. An older point changes nothing. Returns the resulting state. `cursor` makes the new
    /// position from the present one.
    pub async fn ack(
        &self,
        key: &ConsumerKey,
        point: AckPoint,
        cursor: impl FnOnce(&[u8]) -> Vec<u8> + Send,
    ) -> Result<ConsumerView, CallError> {
        let consumers = &self.shared.consumers;
        let _turn = consumers.turn(key).await;
        let row = self.known_consumer(key).await?;
        let (acked, is_moved) = match (key.run, point) {
            (Some(run), AckPoint::Seq(seq)) => {
                if seq > row.acked {
                    self.check_head(run, key, seq).await?;
                }
                (seq, seq > row.acked)
            }
            (None, AckPoint::Message { session, number }) => {
                if session != row.session {
                    return Err(taken_over(key));
                }
                (number, number > row.acked)
            }
            (Some(_), AckPoint::Message { .. }) | (None, AckPoint::Seq(_)) => {
                let why = "an acknowledgement of another kind than its consumer";
                return Err(CallError::Internal(why.into()));
            }
        };
        if !is_moved {
            return Ok(self.seen(row));
        }
        let row = ConsumerRow {
            acked,
            cursor: cursor(&row.cursor),
            acked_at: Some(clock::now()),
            ..row
        };
        self.put_consumer(&row).await?;
        Ok(self.seen(row))
    }

    /// Returns one consumer.
    pub async fn consumer(&self, key: &ConsumerKey) -> Result<ConsumerView, CallError> {
        Ok(self.seen(self.known_consumer(key).await?))
    }

    /// Lists consumers of this node, in the order of their keys.
    pub async fn consumers(
        &self,
        filter: &ConsumerFilter,
        limit: u32,
    ) -> Result<Vec<ConsumerView>, CallError> {
        let node = self.shared.config.node;
        let rows = read!(self.shared.store, consumers(node, filter, limit))?;
        Ok(rows.into_iter().map(|row| self.seen(row)).collect())
    }

    /// Deletes a consumer; its reader stops. Returns its last state.
    pub async fn delete_consumer(&self, key: &ConsumerKey) -> Result<ConsumerView, CallError> {
        let consumers = &self.shared.consumers;
        let _turn = consumers.turn(key).await;
        let row = self.known_consumer(key).await?;
        let deleted = ConsumerChange::Delete(self.shared.config.node, key.clone());
        self.shared.store.change_consumers(&deleted).await?;
        let view = self.seen(row);
        if let Some(reader) = consumers.readers.lock().remove(key) {
            reader.lost.send_replace(Some(Lost::Deleted));
        }
        consumers.floors.changed(key.run);
        Ok(view)
    }

    async fn put_consumer(&self, row: &ConsumerRow) -> Result<(), CallError> {
        let put = ConsumerChange::Put(row.clone());
        let put = self.shared.store.change_consumers(&put).await;
        // Waiting tasks ask the store, whether the row was written or not.
        self.shared.consumers.floors.changed(row.key.run);
        put.map_err(|error| match error {
            // Another server has the node by now.
            StoreError::Fenced(_) => CallError::StoreUnavailable,
            error => error.into(),
        })
    }

    async fn consumer_row(&self, key: &ConsumerKey) -> Result<Option<ConsumerRow>, CallError> {
        let filter = ConsumerFilter {
            run: Some(key.run),
            name: Some(key.name.clone()),
            owner: Some(key.owner.clone()),
            after: None,
        };
        let node = self.shared.config.node;
        Ok(read!(self.shared.store, consumers(node, &filter, 1))?.pop())
    }

    async fn known_consumer(&self, key: &ConsumerKey) -> Result<ConsumerRow, CallError> {
        if let Some(row) = self.consumer_row(key).await? {
            return Ok(row);
        }
        if let Some(run) = key.run {
            let view = self.get(run).await?;
            self.refuse_unless_here(&view).await?;
        }
        Err(CallError::ConsumerNotFound {
            run: key.run,
            name: key.name.clone(),
        })
    }

    async fn check_room(&self, key: &ConsumerKey) -> Result<(), CallError> {
        let node = self.shared.config.node;
        let (of_run, of_node) = read!(self.shared.store, count_consumers(node, key))?;
        let (what, most) = match key.run {
            Some(_) => ("consumers of a run of this owner", CONSUMERS_PER_RUN_MAX),
            None => (
                "consumers of many runs of this owner",
                CONSUMERS_OF_MANY_MAX,
            ),
        };
        let (what, limit) = if of_run >= most {
            (what, most)
        } else if of_node >= CONSUMERS_PER_OWNER_MAX {
            ("consumers of this owner", CONSUMERS_PER_OWNER_MAX)
        } else {
            return Ok(());
        };
        Err(CallError::TooManyConsumers { what, limit })
    }

    /// Refuses to acknowledge events that have not happened.
    async fn check_head(&self, run: RunId, key: &ConsumerKey, seq: u64) -> Result<(), CallError> {
        let given = self
            .shared
            .consumers
            .readers
            .lock()
            .get(key)
            .map_or(0, |reader| {
                // Relaxed: a number that is too small only causes a read of the journal.
                reader.given.load(Ordering::Relaxed)
            });
        if seq <= given {
            return Ok(());
        }
        let (_, events): (RunView, _) = self.events(run, Position::LiveOnly).await?;
        let head = events.head();
        if seq > head {
            return Err(ahead(run, seq, head));
        }
        Ok(())
    }

    fn seen(&self, row: ConsumerRow) -> ConsumerView {
        let is_read = self.shared.consumers.readers.lock().contains_key(&row.key);
        ConsumerView { row, is_read }
    }
}

fn taken_over(key: &ConsumerKey) -> CallError {
    CallError::ConsumerTakenOver {
        run: key.run,
        name: key.name.clone(),
    }
}
