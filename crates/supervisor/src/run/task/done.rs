//! Results of the work that the task of a run has started.

use crate::base::calls::{CallError, ExtendCall, ResizeCall};
use kennel_keeper::client::{ClientError, ExtendResult, Prepared, Resized, SignalResult};
use kennel_lifecycle::{Deadline, Report, Timestamp};
use kennel_store::{Age, RunRow, StoreError, UnreadRow};
use tokio::sync::oneshot;

/// The result of work that the task has started.
#[derive(Debug)]
pub(crate) enum Done {
    Prepared(Box<Result<Prepared, ClientError>>),
    Report(Report),
    /// The run has a row, with this age.
    Aged(Age, Report),
    Taken(Box<RunRow>),
    /// The row of a run that was adopted without it.
    Met(Box<RunRow>),
    /// As `Met`, of a row that this version cannot read.
    Unread(Box<UnreadRow>),
    /// No source knows this run, or its key has another run's row.
    Strange,
    LeftOver(Box<Result<Option<RunRow>, StoreError>>),
    StopDurable(Timestamp),
    /// The row is another server's: the stop is not on it, and no caller gets the answer that it is.
    StopRefused,
    /// Facets up to this revision are durable; absent: they are not this server's to write.
    Facets(Option<u64>),
    /// A probe of this attempt's readiness has succeeded.
    Probed {
        attempt: u32,
        by: &'static str,
    },
    /// Probes of this attempt's liveness have failed too often in a row.
    NotLive {
        attempt: u32,
        failures: u32,
        error: String,
    },
    /// A warning of this attempt, which has it once.
    Warning {
        attempt: u32,
        message: String,
    },
    /// The input of this attempt has come so far.
    InputStands {
        attempt: u32,
        accepted: u64,
    },
    Froze(SignalResult),
    Resized(Box<ResizeDone>),
    /// The keeper has extended limits of time, or refused to.
    Extended(Box<ExtendDone>),
    /// The resources of a run without a trace were removed.
    Removed,
    /// The row had an end before, which stands.
    Closed(Box<RunRow>),
    /// The outcome is not this server's to write.
    Disowned,
    Written,
}

/// The keeper's part of an extension, done or refused.
#[derive(Debug)]
pub(crate) struct ExtendDone {
    pub(super) call: Box<ExtendCall>,
    pub(super) limits: Vec<Deadline>,
    pub(super) attempt: u32,
    pub(super) result: Result<ExtendResult, CallError>,
    pub(super) reply: ExtendReply,
}

/// Result of a change of size.
#[derive(Debug)]
pub(crate) struct ResizeDone {
    pub(super) call: ResizeCall,
    pub(super) attempt: u32,
    pub(super) result: Result<Resized, ClientError>,
    pub(super) reply: ResizeReply,
}

/// Channel of the answer to an extension.
pub(super) type ExtendReply = oneshot::Sender<Result<(), CallError>>;

/// Channel of the answer to a change of size.
pub(super) type ResizeReply = oneshot::Sender<Result<(), CallError>>;
