//! Errors of annotations.

use super::{Facts, Fault, internal};
use crate::reason::Reason;
use kennel_supervisor::CallError;
use tonic::{Code, Status};

/// Returns the status for annotations with another version than the caller expects.
pub(super) fn changed(error: &CallError, text: String) -> Status {
    let CallError::AnnotationsChanged {
        run,
        expected,
        present,
    } = error
    else {
        return internal(&text);
    };
    let facts = Facts::run(*run)
        .with("expected_version", expected.to_string())
        .with("present_version", present.to_string());
    Fault::new(Code::Aborted, Reason::AnnotationsChanged, text, facts).status()
}
