//! Lists of runs: which rows, in which order, and where a page begins.

use crate::{RunRow, StoreError};
use kennel_lifecycle::{NodeId, RunId, RunIdPart, RunKind, RunState, Timestamp, labels::Selector};
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
    /// Runs of this node alone; absent: of all.
    pub node: Option<NodeId>,
    /// Order of the list.
    pub order: ListOrder,
}

impl ListFilter {
    /// Whether no ended row matches: an index has the open ones alone, and they are few.
    pub(crate) fn is_of_open(&self) -> bool {
        !self.states.is_empty() && !self.states.iter().any(|state| state.is_terminal())
    }

    /// Whether rows of the table that do not match may stand between those that do. A part of an id is looked up in the
    /// index of ages, and the children of a run have an index of their own.
    pub(crate) fn is_sparse(&self) -> bool {
        let has_index = self.is_of_open() || self.parent.is_some() || self.id_part.is_some();
        let is_whole = self.states.is_empty()
            && self.kinds.is_empty()
            && self.labels.requirements().is_empty()
            && self.owner.is_none()
            && self.node.is_none();
        !has_index && !is_whole
    }
}

/// Order of listed runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListOrder {
    /// The newest first, then by descending run id.
    #[default]
    NewestFirst,
    /// The oldest first, then by ascending run id.
    OldestFirst,
}

impl ListOrder {
    /// Returns the place behind all rows of this instant. Clients get it in a page token, which thus names no run that
    /// the filter leaves out.
    pub(crate) fn end_of(self, created: Timestamp) -> PageStart {
        let run = match self {
            Self::NewestFirst => 0,
            Self::OldestFirst => u128::MAX,
        };
        let run = RunId::from_u128(run);
        PageStart { created, run }
    }
}

/// Start of a page: after this row, in the order of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageStart {
    /// `created` of the last row of the page before.
    pub created: Timestamp,
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

/// What is known of a row that this version cannot read: a later one has written it, or it is damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadRow {
    /// Its key.
    pub run: RunId,
    /// The node that has written it.
    pub node: NodeId,
    /// Owner of the run.
    pub owner: String,
    /// When it was made.
    pub created: Timestamp,
    /// Grace of its spec.
    pub grace: Duration,
    /// Whether the run has ended.
    pub has_ended: bool,
    /// What cannot be read.
    pub why: String,
}

impl UnreadRow {
    pub(crate) fn page_start(&self) -> PageStart {
        PageStart {
            created: self.created,
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

/// Start of a page of ended runs: after this one, newest end first, then by descending run id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedStart {
    /// Time at which the last run of the page before ended.
    pub ended: Timestamp,
    /// Its key.
    pub run: RunId,
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
}
