//! Errors of annotations and of extensions of time.

use super::{Facts, Fault, internal};
use crate::reason::Reason;
use kennel_lifecycle::Deadline;
use kennel_supervisor::CallError;
use tonic::{Code, Status};

/// Returns the status for a facet that cannot be changed so.
pub(super) fn of(error: &CallError, text: String) -> Status {
    let (code, reason, facts) = match error {
        CallError::AnnotationsChanged {
            run,
            expected,
            present,
        } => {
            let facts = Facts::run(*run)
                .with("expected_version", expected.to_string())
                .with("present_version", present.to_string());
            (Code::Aborted, Reason::AnnotationsChanged, facts)
        }
        CallError::NoTimeLimit { run, limit } => {
            let facts = Facts::run(*run).with("limit", limit.map_or("", Deadline::name));
            (Code::FailedPrecondition, Reason::NoTimeLimit, facts)
        }
        CallError::ExtensionTooLong {
            run,
            limit,
            possible,
        } => {
            let facts = Facts::run(*run)
                .with("limit", limit.name())
                .with("possible_seconds", possible.as_secs().to_string());
            (Code::OutOfRange, Reason::ExtensionTooLong, facts)
        }
        _ => return internal(&text),
    };
    Fault::new(code, reason, text, facts).status()
}
