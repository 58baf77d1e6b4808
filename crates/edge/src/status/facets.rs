//! Errors of annotations and of extensions of time.

use super::{Fault, internal};
use crate::reason::Reason;
use kennel_lifecycle::Deadline;
use kennel_supervisor::CallError;
use tonic::Status;

/// Returns the status for a facet that cannot be changed so.
pub(super) fn of(error: &CallError, text: String) -> Status {
    let fault = match error {
        CallError::AnnotationsChanged {
            run,
            expected,
            present,
        } => Fault::new(Reason::AnnotationsChanged, text)
            .run(*run)
            .fact("expected_version", expected.to_string())
            .fact("present_version", present.to_string()),
        CallError::NoTimeLimit { run, limit } => Fault::new(Reason::NoTimeLimit, text)
            .run(*run)
            .fact("limit", limit.map_or("", Deadline::name)),
        CallError::ExtensionTooLong {
            run,
            limit,
            possible,
        } => Fault::new(Reason::ExtensionTooLong, text)
            .run(*run)
            .fact("limit", limit.name())
            .fact("possible_seconds", possible.as_secs().to_string()),
        _ => return internal(&text),
    };
    fault.status()
}
