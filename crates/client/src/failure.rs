//! Errors of a server.

use crate::authorized::{NotDialled, causes};
use kennel_lifecycle::Violation;
use std::{collections::BTreeMap, fmt, time::Duration};
use tonic::{Code, Status};
use tonic_types::StatusExt;

/// A call that failed, with its reason taken apart.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The status code.
    pub code: Code,
    /// The documented reason, such as `RUN_NOT_FOUND`; absent: the answer did not come from a Kennel server.
    pub reason: Option<String>,
    /// One plain sentence.
    pub message: String,
    /// Metadata of the reason, such as `errno` and `path`.
    pub metadata: BTreeMap<String, String>,
    /// All violations of the request.
    pub violations: Vec<Violation>,
    /// Time after which to retry.
    pub retry_after: Option<Duration>,
    /// Whether the connection broke; the server itself sent no error.
    pub connection_lost: bool,
}

impl Failure {
    /// Whether the server gave this reason.
    pub fn is(&self, reason: &str) -> bool {
        self.reason.as_deref() == Some(reason)
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        let timed_out = has_timed_out(&status);
        let details = status.get_error_details();
        let info = details.error_info();
        let violations = details.bad_request().map(|b| &b.field_violations[..]);
        Self {
            code: if timed_out {
                Code::DeadlineExceeded
            } else {
                status.code()
            },
            reason: info.map(|i| i.reason.clone()),
            message: if timed_out {
                "the server did not answer in time".to_owned()
            } else if let Some(NotDialled(why)) = cause_of(&status) {
                why.clone()
            } else {
                status.message().to_owned()
            },
            metadata: info
                .map(|i| i.metadata.clone().into_iter().collect())
                .unwrap_or_default(),
            violations: violations
                .unwrap_or_default()
                .iter()
                .map(|v| Violation::new(v.field.as_str(), v.description.as_str()))
                .collect(),
            retry_after: details.retry_info().and_then(|r| r.retry_delay),
            // A status from the server has no source; a status of the transport has one.
            connection_lost: !timed_out && std::error::Error::source(&status).is_some(),
        }
    }
}

/// Whether the transport has given up waiting for an answer.
fn has_timed_out(status: &Status) -> bool {
    cause_of::<tonic::TimeoutExpired>(status).is_some()
}

/// Returns the cause of this type.
fn cause_of<E: std::error::Error + 'static>(status: &Status) -> Option<&E> {
    causes(status).find_map(<dyn std::error::Error>::downcast_ref)
}

impl Failure {
    /// Returns the failure for a service that no longer listens.
    pub(crate) fn service_ended() -> Self {
        let mut failure = Self::from(Status::unavailable("the service has ended"));
        failure.connection_lost = true;
        failure
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.message.is_empty() {
            return write!(f, "{}", self.code);
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}
