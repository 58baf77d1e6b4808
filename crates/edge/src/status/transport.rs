//! Errors before a handler has the request, or of the handler itself.

use super::{Fault, RETRY_ISSUER};
use crate::{pb::Role, reason::Reason};
use kennel_proto::access;
use tonic::Status;

/// Returns the status for a request that is no message of the contract.
pub(crate) fn malformed(why: &str) -> Status {
    let message = format!("cannot decode the request: {why}");
    Fault::new(Reason::MalformedRequest, message).status()
}

/// Returns the status for a request that is too large.
pub(crate) fn too_large(limit: usize) -> Status {
    let message = format!("the request is larger than {limit} bytes");
    Fault::new(Reason::RequestTooLarge, message)
        .fact("limit", &limit)
        .status()
}

/// Returns the status for a missing method, or an unsupported encoding.
pub(crate) fn unimplemented(why: &str) -> Status {
    let message = match why {
        "" => "this server has no such method",
        why => why,
    };
    Fault::new(Reason::Unimplemented, message).status()
}

/// Returns the status for a handler that has panicked: the log has the message.
pub(crate) fn panicked(method: &str) -> Status {
    let message = format!("internal fault: the handler of {method} has panicked");
    Fault::new(Reason::Internal, message)
        .fact("method", method)
        .status()
}

/// Returns the status for a token whose issuer's keys are not here: it may be good.
pub(crate) fn issuer_unavailable(why: &str) -> Status {
    Fault::new(Reason::IssuerUnavailable, why)
        .retry(RETRY_ISSUER)
        .status()
}

/// Returns the status for a caller whose process cannot be identified: it has `ended`, or is `unreadable`.
pub(crate) fn caller_unverified(what: &str, message: &str) -> Status {
    Fault::new(Reason::CallerUnverified, message)
        .fact("process", what)
        .status()
}

/// Returns the status for a caller that has not authenticated.
pub(crate) fn unauthenticated(message: &str) -> Status {
    Fault::new(Reason::Unauthenticated, message).status()
}

/// Returns the status for a caller whose role may not make this call.
pub(crate) fn role_missing(has: Role, needs: Role) -> Status {
    let (has, needs) = (access::name(has), access::name(needs));
    let message = format!("this call needs the role {needs}, the caller is {has}");
    Fault::new(Reason::PermissionDenied, message)
        .fact("role", &has)
        .fact("needs", &needs)
        .status()
}
