//! Faults of a request.

use crate::limits;
use std::time::Duration;

/// One fault of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Path of the field in the contract, such as `spec.argv.args[1]`.
    pub field: String,
    /// One plain sentence without full stop.
    pub description: String,
}

impl Violation {
    /// Makes a violation of the field at this path.
    pub fn new(field: impl Into<String>, description: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            description: description.into(),
        }
    }
}

/// Checks a number of entries, or of another unit; returns whether it fits.
pub(crate) fn count_at_most(
    field: impl Into<String>,
    count: usize,
    most: usize,
    unit: &str,
    found: &mut Vec<Violation>,
) -> bool {
    if count > most {
        let why = format!("must have at most {most} {unit}");
        found.push(Violation::new(field, why));
    }
    count <= most
}

/// Checks a number of bytes.
pub(crate) fn bytes_at_most(
    field: impl Into<String>,
    bytes: usize,
    most: usize,
    found: &mut Vec<Violation>,
) {
    if bytes > most {
        let why = format!("must be at most {most} bytes");
        found.push(Violation::new(field, why));
    }
}

/// Returns why a run cannot have this limit.
pub(crate) fn fault_of_timeout(time: Option<Duration>) -> Option<&'static str> {
    match time {
        Some(Duration::ZERO) => Some("must be more than zero; leave it out for no limit"),
        Some(time) if time > limits::TIMEOUT_MAX => Some("must be at most 10 years (87,600 hours)"),
        _ => None,
    }
}
