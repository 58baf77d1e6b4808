//! Errors of consumers.

use super::{Fault, internal, quota};
use crate::reason::Reason;
use kennel_lifecycle::RunId;
use kennel_supervisor::CallError;
use tonic::Status;

/// Returns the status of a call about a consumer; the metadata names it.
pub(super) fn of(error: &CallError, text: String) -> Status {
    let fault = |reason, text, run: &Option<RunId>, name: &str| {
        let run = run.map(|run| run.to_string()).unwrap_or_default();
        let fault = Fault::new(reason, text).fact("run_id", run);
        fault.fact("consumer", name)
    };
    match error {
        CallError::ConsumerNotFound { run, name } => {
            fault(Reason::ConsumerNotFound, text, run, name).status()
        }
        CallError::ConsumerTakenOver { run, name } => {
            fault(Reason::ConsumerTakenOver, text, run, name)
                .precondition("CONSUMER_READER", name.as_str())
                .status()
        }
        CallError::TooManyConsumers { what, limit } => quota(what, *limit),
        _ => internal(&text),
    }
}

/// Returns the status for a consumer that reads many runs by another filter.
pub(crate) fn other_filter() -> Status {
    let why = "is another one than that by which this consumer reads";
    super::invalid(&[kennel_lifecycle::Violation::new("filter", why)])
}
