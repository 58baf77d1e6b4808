//! The store of runs: one trait, two databases.
//!
//! Owns all SQL. Never reads a clock (now is a parameter) and decides nothing: a caller gives the new row, the database
//! checks that the change is permitted.

mod change;
mod consumer;
mod database;
mod database_store;
mod entries;
mod history;
mod json;
mod life;
mod list;
mod node;
mod open;
mod postgres;
mod put;
mod reader;
mod record;
mod record_bytes;
mod schema;
mod select;
mod sql;
mod sqlite;
mod updates;
mod url;
mod writer;

pub use change::{CHANGE_FORM, Change};
pub use consumer::{ConsumerChange, ConsumerFilter, ConsumerKey, ConsumerRow};
pub use database_store::open_later;
pub use entries::{
    ENTRIES_BYTES_MAX, EntriesEnd, EntriesText, EntryList, EntryPlace, Omitted, RunEntries,
    RunEntry,
};
pub use history::{EndedRow, RemovedRow, RowRemoval};
pub use json::spec_text;
pub use kennel_lifecycle::{Desired, Times};
pub use life::{Life, StoredNode};
pub use list::{
    Age, Ages, FoundRows, ListFilter, ListOrder, ListPage, PageStart, Reports, SCANNED_MAX,
    UnreadRow, WithOutput,
};
pub use node::{EpochRow, LeftStop, NodeRemoval, NodeRow, Opening};
pub use open::{OpenError, migrate, open, open_with};
pub use record_bytes::{ROW_BYTES, row_bytes};
pub use schema::{Contract, MIGRATIONS, Migration, SchemaState, schema_level};
pub use url::{InvalidStoreUrl, StoreUrl};

use async_trait::async_trait;
use kennel_lifecycle::{
    Facets, Held, HostIdentity, KeeperEpoch, NextAttempt, NodeId, Outcome, OutputRemoval, Policy,
    ProcessIdentity, RecordedSpec, RowState, RunId, RunIdentity, RunState, StopOrder, Timestamp,
    UnknownName,
};
use serde::{Deserialize, Serialize};
use std::{ops::Deref, sync::Arc};

/// A row as it is written before the command may run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NewRun {
    /// Key.
    pub run: RunId,
    /// Owner: the principal that spawned it, such as `uid:0`.
    pub owner: String,
    /// Number of the attempt; 1 for the first.
    pub attempt: u32,
    /// Node that runs it.
    pub node: NodeId,
    /// The node's generation, under which this is written. In a row: that of the server which wrote it as a whole.
    pub generation: i64,
    /// Epoch of its keeper.
    pub keeper_epoch: KeeperEpoch,
    /// Command, shim, control group, host; absent only for a row that is born closed.
    pub identity: Option<RunIdentity>,
    /// Containment of the run with its gaps; absent where there is no identity.
    pub held: Option<Held>,
    /// The caller's W3C trace context.
    pub traceparent: Option<String>,
    /// The ended run that this one restarts.
    pub restarted_from: Option<RunId>,
    /// The client's own key of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_key: Option<String>,
    /// The client's spec, without environment values and input.
    pub spec: Arc<RecordedSpec>,
    /// Keyed digest of the client's whole spec.
    pub spec_digest: Vec<u8>,
    /// Version of the digest's algorithm.
    pub spec_digest_version: i32,
    /// Time at which the request was accepted.
    pub created: Timestamp,
    /// Position among all runs, which the store gives when it inserts the row. Before: an age that it exceeds.
    pub age: Age,
}

/// An empty row, to be filled in: it has no run, node or keeper.
impl Default for NewRun {
    fn default() -> Self {
        Self {
            run: RunId::from_u128(0),
            owner: String::new(),
            attempt: 1,
            node: NodeId::from_u128(0),
            generation: 0,
            keeper_epoch: KeeperEpoch::from_u128(0),
            identity: None,
            held: None,
            traceparent: None,
            restarted_from: None,
            request_key: None,
            spec: Arc::default(),
            spec_digest: Vec::new(),
            spec_digest_version: 0,
            created: Timestamp(0),
            age: Age::NONE,
        }
    }
}

impl NewRun {
    /// Returns what no other run of its owner may have, the key first.
    pub fn claims(&self) -> impl Iterator<Item = Claim> {
        Claim::of(self.request_key.as_ref(), self.spec.name.as_ref())
    }

    /// Returns the policy of the run.
    pub fn policy(&self) -> &Policy {
        &self.spec.policy
    }
}

/// An attempt that has ended, and that is not the run's last one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PastAttempt {
    /// Number of the attempt; 1 for the first.
    pub number: u32,
    /// Its leader; absent: no process was made.
    pub leader: Option<ProcessIdentity>,
    /// Its outcome. Only the newest of a run has its whole certificate; the others have the usage.
    pub outcome: Outcome,
    /// Its milestones; `ended` is set.
    pub times: Times,
}

/// Write the end of an attempt that another one follows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rest {
    /// Attempts that have ended, the one that ends at present last; at most [`PAST_ATTEMPTS_MAX`].
    #[serde(serialize_with = "json::newest_alone")]
    pub past: Vec<PastAttempt>,
    /// Restarts in a row, with the one that follows.
    pub restarts: u32,
    /// Time at which the next attempt is due.
    pub next: Timestamp,
}

/// Most stops that are read at once.
pub const LEFT_STOPS_MAX: u32 = 500;

/// Most ended attempts that a row stores beside the present one.
pub const PAST_ATTEMPTS_MAX: usize = 10;

/// The end of a run as it is written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Closure {
    /// Its outcome.
    pub outcome: Outcome,
    /// Its milestones; `ended` is set.
    pub times: Times,
    /// Its entries; absent: it has no journal.
    pub entries: Option<EntriesText>,
    /// Whether the run has files beside its row, which its node removes at some time: output, or a journal.
    pub has_files: bool,
}

impl Closure {
    /// Returns an age that the end's position among those of its node is not below; absent: it has none.
    pub(crate) fn output_age(&self) -> Option<Age> {
        let ended = self.times.ended.filter(|_| self.has_files);
        ended.map(|at| Age(at.0))
    }
}

/// The state column: the public states, and those between that recovery must know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "&'static str", try_from = "String")]
pub enum StoredState {
    /// Written before the gate opened; the command may run.
    #[default]
    Starting,
    /// Whether the command has started.
    Running,
    /// A pause was requested.
    Pausing,
    /// Kennel has paused the run.
    Paused,
    /// An attempt has ended, and another one is due.
    Backoff,
    /// Ended, with this public terminal state.
    Ended(RunState),
}

impl StoredState {
    /// Whether the run has ended.
    pub fn is_ended(self) -> bool {
        matches!(self, Self::Ended(_))
    }
}

impl From<StoredState> for &'static str {
    fn from(state: StoredState) -> Self {
        match state {
            StoredState::Starting => RunState::Starting.name(),
            StoredState::Running => RunState::Running.name(),
            StoredState::Pausing => RowState::Pausing.name(),
            StoredState::Paused => RunState::Paused.name(),
            StoredState::Backoff => RunState::Backoff.name(),
            StoredState::Ended(state) => state.name(),
        }
    }
}

impl TryFrom<String> for StoredState {
    type Error = UnknownName;

    fn try_from(name: String) -> Result<Self, UnknownName> {
        if name == RowState::Pausing.name() {
            return Ok(Self::Pausing);
        }
        let of = "StoredState";
        match name.parse() {
            Ok(RunState::Starting) => Ok(Self::Starting),
            Ok(RunState::Running) => Ok(Self::Running),
            Ok(RunState::Paused) => Ok(Self::Paused),
            Ok(RunState::Backoff) => Ok(Self::Backoff),
            Ok(
                state @ (RunState::Succeeded
                | RunState::Failed
                | RunState::Cancelled
                | RunState::Lost),
            ) => Ok(Self::Ended(state)),
            Ok(RunState::Stopping) | Err(_) => Err(UnknownName { of, name }),
        }
    }
}

/// A row as it is read. The default is an empty one, to be filled in.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunRow {
    /// The row as first written, with the latest attempt.
    pub new: NewRun,
    /// State column.
    pub state: StoredState,
    /// Desired state.
    pub desired: Desired,
    /// Time at which SIGKILL is due, where a stop was requested.
    pub stop_deadline: Option<Timestamp>,
    /// The first stop that was requested; present exactly where the deadline is.
    pub stop: Option<StopOrder>,
    /// Times of the milestones.
    pub times: Times,
    /// Outcome; present exactly where `state` is `Ended`.
    pub outcome: Option<Outcome>,
    /// Attempts before the present one, the newest of them; in `Backoff` the last is the present one.
    #[serde(serialize_with = "json::newest_alone")]
    pub past: Vec<PastAttempt>,
    /// Restarts in a row.
    pub restarts: u32,
    /// Time at which the next attempt is due; present exactly where `state` is `Backoff`.
    pub next_restart: Option<Timestamp>,
    /// Position of its end among those of its node; absent: it has not ended, or has no files beside its row.
    pub output_age: Option<Age>,
    /// Removal of the output; absent: it was not removed.
    pub output_removed: Option<OutputRemoval>,
    /// Facets that clients and output have set.
    pub facets: Facets,
    /// Entries of the run, written with its end. Absent where it has no journal, and in all but [`Store::get`], which
    /// alone reads that column.
    pub entries: Option<EntriesText>,
}

impl Deref for RunRow {
    type Target = NewRun;

    fn deref(&self) -> &NewRun {
        &self.new
    }
}

impl RunRow {
    /// Returns the attempt that the run waits for, where it does.
    pub fn next_attempt(&self) -> Option<NextAttempt> {
        self.next_restart.map(|due| NextAttempt {
            restarts: self.restarts,
            due,
        })
    }

    /// Its place in a list: where a page after it begins.
    pub fn page_start(&self) -> PageStart {
        PageStart {
            age: self.new.age,
            run: self.new.run,
        }
    }

    /// Returns the row of a run that was just written.
    pub fn open(new: NewRun) -> Self {
        Self {
            new,
            ..Self::default()
        }
    }
}

/// What one run of an owner has alone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Claim {
    /// The client's own key, as long as the row is there.
    Key(String),
    /// Its name, as long as it is open.
    Name(String),
}

impl Claim {
    /// Returns those of a run, the key first.
    pub fn of(key: Option<&String>, name: Option<&String>) -> impl Iterator<Item = Self> {
        let name = name.cloned().map(Self::Name);
        key.cloned().map(Self::Key).into_iter().chain(name)
    }
}

/// Result of a change.
#[derive(Clone, Debug, PartialEq)]
pub enum Changed {
    /// It is made. The age of the row that it has inserted; [`Age::NONE`]: it has inserted none.
    Done(Age),
    /// Another row has the id, the key or the name of a run that was to be inserted; nothing was written. That of a name
    /// may have ended since.
    Taken(Box<RunRow>),
}

/// Error of the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Verified not written, now or later: the caller can retry.
    #[error("the store is not available: {0}")]
    Unavailable(String),
    /// Perhaps written: the connection was lost or the time ran out after the statement was sent.
    #[error("the store did not say whether it has written: {0}")]
    Unknown(String),
    /// The schema is for later versions of Kennel alone: as unavailable, until this node is upgraded.
    #[error(
        "SCHEMA_TOO_NEW: the database requires level {min_level} of its schema, and this Kennel has level {level}"
    )]
    SchemaTooNew {
        /// Least level of a server that may use it.
        min_level: i64,
        /// Level of this program.
        level: i64,
    },
    /// Another keeper has the node's lease.
    #[error("another keeper has the lease of this node")]
    Held,
    /// The row differs from the caller's expectation: another generation, or closed already.
    #[error("the row of run {0} is held by another generation or is closed")]
    Fenced(RunId),
    /// The database contains a value that this version cannot read, or a CHECK refused a row: a bug of Kennel.
    #[error("the store and this server disagree: {0}")]
    Corrupt(String),
    /// The row has a value that this version cannot read: a later one has written it, or it is damaged.
    #[error("the store and this server disagree: {0}")]
    Unread(Box<UnreadRow>),
}

/// The durable state. Each method is one durable moment: when it returns Ok, the change survives a crash of server and
/// database. All but the reads name the generation.
#[async_trait]
pub trait Store: Send + Sync + std::fmt::Debug {
    /// Returns the present life of the database, and the node's state there. Valid in every life. `SchemaTooNew`, and so
    /// all calls after this one, where the least level of the schema is above that of this program.
    async fn stored_node(&self, node: NodeId) -> Result<StoredNode, StoreError>;

    /// Writes node and keeper, raises the node's generation above the stored and the known one, and writes the keeper
    /// into the open rows of held runs, in one transaction. Returns the new generation; servers with an earlier one are
    /// fenced. From here on the store serves requests in this life of the database alone. `Held` where another keeper has a lease
    /// that has not ended, by the clock of the database; SQLite, whose file has one node, holds nothing.
    async fn open_node(&self, opening: &Opening) -> Result<i64, StoreError>;

    /// Renews the node's lease. It runs beside all other writes, and waits for none of them. Returns whether stops are
    /// left for the node. `draining`: start of the node's drain. `Held` where the generation is not the node's present
    /// one.
    async fn renew(
        &self,
        node: NodeId,
        generation: i64,
        draining: Option<Timestamp>,
    ) -> Result<bool, StoreError>;

    /// Leaves a stop for the node of an open run. A stop that is left for it already retains its reason and time, and
    /// gets the shorter grace of the two. A stop of a run that is not open there is not left; both are Ok.
    async fn leave_stop(&self, node: NodeId, stop: &LeftStop) -> Result<(), StoreError>;

    /// Returns the stops that are left for a node, the oldest first, at most [`LEFT_STOPS_MAX`].
    async fn left_stops(&self, node: NodeId) -> Result<Vec<LeftStop>, StoreError>;

    /// Returns the stops that are left for these runs, on any node.
    async fn left_stops_of(&self, runs: &[RunId]) -> Result<Vec<LeftStop>, StoreError>;

    /// Removes a stop that the node has carried out. One whose grace has changed stays.
    async fn remove_left_stop(&self, node: NodeId, stop: &LeftStop) -> Result<(), StoreError>;

    /// Gives the lease up: another keeper may acquire the node at once. Another keeper's lease is unchanged.
    async fn give_up(&self, node: NodeId, generation: i64) -> Result<(), StoreError>;

    /// Gives a node whose lease has expired to `keeper_epoch`, which no keeper has. Raises its generation,
    /// as [`Store::open_node`]; its former server is fenced. Returns the new generation. `Held` where
    /// the lease has not expired, by the clock of the database.
    async fn forget_node(&self, node: NodeId, keeper_epoch: KeeperEpoch)
    -> Result<i64, StoreError>;

    /// Removes nodes, some at a time; whether some were. A node that comes back later is a new row, with a generation
    /// above the one that it had.
    async fn remove_nodes(&self, which: NodeRemoval) -> Result<bool, StoreError>;

    /// Returns the existing ones of these nodes; `None`: all but those that have ended, which gave their lease up and
    /// were not forgotten.
    async fn nodes(&self, these: Option<&[NodeId]>) -> Result<Vec<NodeRow>, StoreError>;

    /// Returns the age of the newest run of the database; every row that is inserted later has a higher one.
    async fn newest_age(&self) -> Result<Age, StoreError>;

    /// Returns keepers of the node that have open rows, or its lease. Valid in every life.
    async fn open_epochs(&self, node: NodeId) -> Result<Vec<EpochRow>, StoreError>;

    /// Makes one change of a run, by this generation of this node; its rows get that generation. Concurrent calls share a
    /// commit. A change that was made already changes nothing and is Ok. `Fenced` where the generation is not the node's
    /// present one, or the row is not as the change requires: see [`Change`].
    async fn change(
        &self,
        node: NodeId,
        generation: i64,
        run: RunId,
        change: &Change,
    ) -> Result<Changed, StoreError>;

    /// Returns ended runs of the node that have no detached processes and have their output; at most `limit` that ended
    /// before the one at `start`, the newest end first.
    async fn with_output(
        &self,
        node: NodeId,
        start: Option<Age>,
        limit: u32,
    ) -> Result<Vec<WithOutput>, StoreError>;

    /// Returns ended runs of the node that follow the one at `start`, the oldest first, at most `limit`. `boot`: the present
    /// boot of this host.
    async fn ended_rows(
        &self,
        node: NodeId,
        boot: &str,
        start: Age,
        limit: u32,
    ) -> Result<Vec<EndedRow>, StoreError>;

    /// Removes rows of ended runs, with their consumers and the stops that were left for them; returns those removed. A later
    /// run that has one of the remembered ids is not inserted: such a change is `Fenced`.
    async fn remove_rows(&self, removal: &RowRemoval) -> Result<Vec<RemovedRow>, StoreError>;

    /// Returns those of these ids that are remembered of removed rows.
    async fn removed_ids(&self, runs: &[RunId]) -> Result<Vec<RunId>, StoreError>;

    /// Returns the newest id of a removed row that is not remembered any more.
    async fn newest_forgotten(&self) -> Result<Option<RunId>, StoreError>;

    /// Returns the first node after this one that has rows, and that the database does not have any more; none in SQLite, whose
    /// file has one node.
    async fn stray_node(&self, after: Option<NodeId>) -> Result<Option<NodeId>, StoreError>;

    /// Returns one row, with its entries. A row of the node that was acquired, whose spec has values of a later version,
    /// is read without them; any other one is unread.
    async fn get(&self, run: RunId) -> Result<Option<RunRow>, StoreError>;

    /// Returns the run of an owner that has a key, or the newest of a name.
    async fn claimed(&self, owner: &str, claim: &Claim) -> Result<Option<RunRow>, StoreError>;

    /// At most `limit` rows after `start`, in the order of the filter. A page may have fewer rows, or none, also if more
    /// follow: one call examines at most [`SCANNED_MAX`] rows.
    async fn list(
        &self,
        filter: &ListFilter,
        start: Option<PageStart>,
        limit: u32,
    ) -> Result<ListPage, StoreError>;

    /// Returns all open rows of the node. One whose spec has values of a later version is read without them.
    async fn open_runs(&self, node: NodeId) -> Result<FoundRows, StoreError>;

    /// Returns the existing ones of these runs.
    async fn get_all(&self, runs: &[RunId]) -> Result<FoundRows, StoreError>;

    /// Returns ended rows of the node whose leader or shim had one of these process ids on this host; at most `limit`,
    /// newest first.
    async fn ended_with_pids(
        &self,
        node: NodeId,
        host: &HostIdentity,
        pids: &[i32],
        limit: u32,
    ) -> Result<Vec<RunRow>, StoreError>;

    /// Makes one change of named consumers.
    async fn change_consumers(
        &self,
        change: &ConsumerChange,
        generation: i64,
    ) -> Result<(), StoreError>;

    /// Returns named consumers of a node, at most `limit`.
    async fn consumers(
        &self,
        node: NodeId,
        filter: &ConsumerFilter,
        limit: u32,
    ) -> Result<Vec<ConsumerRow>, StoreError>;

    /// Counts the consumers of this key's owner: those of the key's run, or of multi-run streams, and all of the node.
    async fn count_consumers(
        &self,
        node: NodeId,
        key: &ConsumerKey,
    ) -> Result<(u64, u64), StoreError>;

    /// Returns the bytes of the rows of a node by owner.
    async fn record_bytes(&self, node: NodeId) -> Result<Vec<(String, u64)>, StoreError>;

    /// Whether the store answers, and would accept writes, as far as it can tell without one.
    async fn ping(&self) -> Result<(), StoreError>;

    /// Returns the kind of the store and its schema, for people: `sqlite 3.51.3, schema 1`.
    fn describe(&self) -> String;

    /// Accepts no more writes, carries out those that are queued, and closes the connections. Later calls find the
    /// store unavailable. A store without open connections has nothing to do.
    async fn finish(&self) {}
}
