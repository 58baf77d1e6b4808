//! Lists of runs: which rows, in which order, and where a page begins.

use crate::{NewRun, RunRow, StoreError, reader::Columns, record::Record};
use kennel_lifecycle::{
    Activity, NamePattern, NodeId, RunId, RunIdPart, RunKind, RunState, Timestamp, Wait,
    labels::{Requirement, Selector},
};
use serde::{Deserialize, Serialize};
use std::{fmt, time::Duration};

/// Filter of listed runs. Empty sets mean: all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListFilter {
    /// Runs in any of these public states. `Stopping` means: open, with a requested stop.
    pub states: Vec<RunState>,
    /// Runs of any of these kinds.
    pub kinds: Vec<RunKind>,
    /// Runs with such labels.
    pub labels: Selector,
    /// Runs whose id begins or ends with this; absent: any.
    pub id_part: Option<RunIdPart>,
    /// Children of this run; absent: any.
    pub parent: Option<RunId>,
    /// Runs of this owner alone; absent: of all.
    pub owner: Option<String>,
    /// Runs of any of these owners.
    pub owners: Vec<String>,
    /// Runs with a name of any of these patterns.
    pub names: Vec<NamePattern>,
    /// Any of these runs.
    pub runs: Vec<RunId>,
    /// Children of this run, their children, and so on; absent: any.
    pub below: Option<RunId>,
    /// Ages of runs at a time.
    pub ages: Ages,
    /// Runs with an end reason of any of these names.
    pub end_reasons: Vec<String>,
    /// Reports about runs, which the database does not test.
    pub reports: Reports,
    /// Runs of any of these nodes.
    pub nodes: Vec<NodeId>,
    /// Order of the list.
    pub order: ListOrder,
}

/// Ages that runs must have at a time; absent: any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ages {
    /// The time.
    pub at: Timestamp,
    /// Least time since the creation.
    pub min: Option<Duration>,
    /// Longest time since the creation.
    pub max: Option<Duration>,
    /// Least time since the end, which a live run has not.
    pub min_ended: Option<Duration>,
}

impl Ages {
    /// Returns the last and the first time of creation, and the last one of the end.
    pub fn bounds(&self) -> [Option<Timestamp>; 3] {
        [self.min, self.max, self.min_ended].map(|age| Some(self.at.minus(age?)))
    }
}

/// Reports about runs; empty: any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reports {
    /// Any of these activities; `None`: it is not known.
    pub activities: Vec<Option<Activity>>,
    /// Any of these waits; `None`: for nothing that is known.
    pub waits: Vec<Option<Wait>>,
    /// Whether the present attempt is ready.
    pub is_ready: Option<bool>,
    /// All of these requirements on annotations.
    pub annotations: Vec<Requirement>,
}

impl ListFilter {
    /// Whether no ended row matches: an index has the open ones alone, and they are few.
    pub(crate) fn is_of_open(&self) -> bool {
        !self.states.is_empty() && !self.states.iter().any(|state| state.is_terminal())
    }

    /// Whether rows of the table that do not match may stand between those that do. A part of an id is looked up in
    /// indexes of ids, and the children of a run have an index of their own.
    pub(crate) fn is_sparse(&self) -> bool {
        let has_index = self.is_of_open()
            || self.parent.is_some()
            || self.id_part.is_some()
            || !self.runs.is_empty();
        let is_whole = self.states.is_empty()
            && self.kinds.is_empty()
            && self.labels.requirements().is_empty()
            && self.owner.is_none()
            && self.owners.is_empty()
            && self.names.is_empty()
            && self.below.is_none()
            && self.ages.bounds() == [None; 3]
            && self.end_reasons.is_empty()
            && self.nodes.is_empty();
        !has_index && !is_whole
    }
}

/// Order of listed runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListOrder {
    /// The newest first: by descending [`Age`], over several nodes then by descending run id.
    #[default]
    NewestFirst,
    /// The oldest first: by ascending [`Age`], over several nodes then by ascending run id.
    OldestFirst,
}

impl ListOrder {
    /// Returns the place behind all rows of this age. Clients get it in a page token, which thus names no run that
    /// the filter leaves out.
    pub fn end_of(self, age: Age) -> PageStart {
        let run = match self {
            Self::NewestFirst => 0,
            Self::OldestFirst => u128::MAX,
        };
        let run = RunId::from_u128(run);
        PageStart { age, run }
    }
}

/// Position of a run in the order in which the database took the runs: microseconds, at least those of its creation, and
/// above those of every run before it. So no setting of a clock moves a run across a page, a cursor or another run of its
/// node. Nodes of one database have one sequence; only what two of them insert at the same time may share an age.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Age(pub i64);

impl Age {
    /// Before every run; also the age of a run that has no row yet.
    pub const NONE: Self = Self(0);
    /// After every run.
    pub const MAX: Self = Self(i64::MAX);

    /// Returns the age, where the run has one.
    pub fn known(self) -> Option<Self> {
        (self != Self::NONE).then_some(self)
    }
}

/// Start of a page: after this row, in the order of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageStart {
    /// Age of the last row of the page before.
    pub age: Age,
    /// Its key.
    pub run: RunId,
}

/// Most rows that one page of a list examines, so that its cost does not grow with the table where few rows match.
pub const SCANNED_MAX: u32 = 10_000;

/// A page of a list.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ListPage {
    /// The rows that match, in the order of the filter.
    pub rows: Vec<RunRow>,
    /// Those among them that cannot be read: they hide none of the others.
    pub unread: Vec<UnreadRow>,
    /// Where the next page begins; absent: no row follows.
    pub next: Option<PageStart>,
}

/// Rows that were asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FoundRows {
    /// Those that can be read.
    pub rows: Vec<RunRow>,
    /// Those that cannot: they hide none of the others.
    pub unread: Vec<UnreadRow>,
}

impl FoundRows {
    /// Returns the keys of all of them.
    pub fn runs(&self) -> impl Iterator<Item = RunId> {
        let unread = self.unread.iter().map(|row| row.run);
        self.rows.iter().map(|row| row.new.run).chain(unread)
    }

    /// Returns the keys of those that are open.
    pub fn open_runs(&self) -> impl Iterator<Item = RunId> {
        let rows = self.rows.iter().filter(|row| row.outcome.is_none());
        let unread = self.unread.iter().filter(|row| !row.has_ended);
        let unread = unread.map(|row| row.run);
        rows.map(|row| row.new.run).chain(unread)
    }
}

impl FromIterator<Result<RunRow, UnreadRow>> for FoundRows {
    fn from_iter<I: IntoIterator<Item = Result<RunRow, UnreadRow>>>(all: I) -> Self {
        let mut found = Self::default();
        for row in all {
            match row {
                Ok(row) => found.rows.push(row),
                Err(unread) => found.unread.push(unread),
            }
        }
        found
    }
}

/// What is known of a row that this version cannot read: a later one has written it, or it is damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadRow {
    /// Its key.
    pub run: RunId,
    /// The node that has written it.
    pub node: NodeId,
    /// Owner of the run.
    pub owner: String,
    /// Number of its newest attempt.
    pub attempt: u32,
    /// When it was made.
    pub created: Timestamp,
    /// Its position among all runs.
    pub age: Age,
    /// Grace of its spec.
    pub grace: Duration,
    /// Whether the run has ended.
    pub has_ended: bool,
    /// What cannot be read.
    pub why: String,
}

impl UnreadRow {
    /// Returns an open row for the run, of which other sources know the rest.
    pub fn open(&self, known: NewRun) -> RunRow {
        RunRow::open(NewRun {
            owner: self.owner.clone(),
            attempt: self.attempt,
            created: self.created,
            age: self.age,
            ..known
        })
    }

    pub(crate) fn page_start(&self) -> PageStart {
        PageStart {
            age: self.age,
            run: self.run,
        }
    }
}

impl From<UnreadRow> for StoreError {
    fn from(row: UnreadRow) -> Self {
        Self::Unread(Box::new(row))
    }
}

impl fmt::Display for UnreadRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { run, why, .. } = self;
        write!(f, "row of run {run}: cannot read {why}")
    }
}

/// An ended run that has its output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WithOutput {
    /// Key.
    pub run: RunId,
    /// Owner of the run.
    pub owner: String,
    /// Time of its end.
    pub ended: Timestamp,
    /// Position of its end among those of its node, where a page after it begins.
    pub age: Age,
}

/// Reads a row of either database for this node. Its own ones, whose runs it supervises and decides nothing about, it
/// reads without values of a spec that only a later version knows.
pub(crate) fn listed(
    row: &impl Columns,
    asking: Option<NodeId>,
) -> Result<Result<RunRow, UnreadRow>, StoreError> {
    let record = Record::read(row)?;
    let key = record.key().map_err(StoreError::Corrupt)?;
    let read = record
        .row()
        .and_then(|row| match row.new.spec.unknown_value() {
            Some((_, why)) if asking != Some(row.new.node) => Err(format!("spec: {why}")),
            _ => Ok(row),
        });
    Ok(read.map_err(|why| UnreadRow { why, ..key }))
}
