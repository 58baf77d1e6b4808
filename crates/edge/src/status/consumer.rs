//! Errors of consumers.

use super::{Facts, Fault, internal, quota};
use crate::reason::Reason;
use kennel_lifecycle::RunId;
use kennel_supervisor::CallError;
use tonic::{Code, Status};

/// Returns the status of a call about a consumer; the metadata names it.
pub(super) fn of(error: &CallError, text: String) -> Status {
    let facts = |run: &Option<RunId>, name: &String| {
        let run = run.map(|run| run.to_string()).unwrap_or_default();
        let facts = Facts::default().with("run_id", run);
        facts.with("consumer", name.as_str())
    };
    match error {
        CallError::ConsumerNotFound { run, name } => {
            let (code, reason) = (Code::NotFound, Reason::ConsumerNotFound);
            Fault::new(code, reason, text, facts(run, name)).status()
        }
        CallError::ConsumerTakenOver { run, name } => {
            let (code, reason) = (Code::FailedPrecondition, Reason::ConsumerTakenOver);
            Fault::new(code, reason, text, facts(run, name))
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
