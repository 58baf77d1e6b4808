//! Errors before a handler has the request, or of the handler itself.

use super::{Facts, Fault, RETRY_ISSUER};
use crate::{pb::Role, reason::Reason};
use kennel_proto::access;
use tonic::{Code, Status};

/// Returns the status for a request that is no message of the contract.
pub(crate) fn malformed(why: &str) -> Status {
    Fault::new(
        Code::InvalidArgument,
        Reason::MalformedRequest,
        format!("cannot decode the request: {why}"),
        Facts::default(),
    )
    .status()
}

/// Returns the status for a request that is too large.
pub(crate) fn too_large(limit: usize) -> Status {
    Fault::new(
        Code::ResourceExhausted,
        Reason::RequestTooLarge,
        format!("the request is larger than {limit} bytes"),
        Facts::default().with("limit", limit.to_string()),
    )
    .status()
}

/// Returns the status for a missing method, or an unsupported encoding.
pub(crate) fn unimplemented(why: &str) -> Status {
    let message = match why {
        "" => "this server has no such method",
        why => why,
    };
    let facts = Facts::default();
    Fault::new(Code::Unimplemented, Reason::Unimplemented, message, facts).status()
}

/// Returns the status for a handler that has panicked: the log has the message.
pub(crate) fn panicked(method: &str) -> Status {
    Fault::new(
        Code::Internal,
        Reason::Internal,
        format!("internal fault: the handler of {method} has panicked"),
        Facts::default().with("method", method),
    )
    .status()
}

/// Returns the status for a token whose issuer's keys are not here: it may be good.
pub(crate) fn issuer_unavailable(why: &str) -> Status {
    let (code, reason) = (Code::Unavailable, Reason::IssuerUnavailable);
    Fault::new(code, reason, why, Facts::default())
        .retry(RETRY_ISSUER)
        .status()
}

/// Returns the status for a caller whose process cannot be identified: it has `ended`, or is `unreadable`.
pub(crate) fn caller_unverified(what: &str, message: &str) -> Status {
    Fault::new(
        Code::PermissionDenied,
        Reason::CallerUnverified,
        message,
        Facts::default().with("process", what),
    )
    .status()
}

/// Returns the status for a caller that has not authenticated.
pub(crate) fn unauthenticated(message: &str) -> Status {
    Fault::new(
        Code::Unauthenticated,
        Reason::Unauthenticated,
        message,
        Facts::default(),
    )
    .status()
}

/// Returns the status for a caller whose role may not make this call.
pub(crate) fn role_missing(has: Role, needs: Role) -> Status {
    let name = access::name;
    Fault::new(
        Code::PermissionDenied,
        Reason::PermissionDenied,
        format!(
            "this call needs the role {}, the caller is {}",
            name(needs),
            name(has)
        ),
        Facts::default()
            .with("role", name(has))
            .with("needs", name(needs)),
    )
    .status()
}
