//! Maps errors to a status code, a documented reason and its details. No other module makes a [`Status`].

mod code;
mod node;
mod of;
mod transport;

pub(crate) use code::code_name;
pub(crate) use node::{node_lost, node_of_call, node_unreachable};
pub(crate) use of::of;
pub(crate) use transport::{
    caller_unverified, issuer_unavailable, malformed, panicked, role_missing, too_large,
    unauthenticated, unimplemented,
};

use crate::reason::{DOMAIN, Reason};
use futures_util::TryFutureExt;
use kennel_lifecycle::{Missing, RunId, Violation};
use kennel_supervisor::{CallError, RunView};
use std::{collections::HashMap, future::Future, time::Duration};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, FieldViolation, PreconditionViolation, QuotaViolation, StatusExt};

/// Bytes of violations that are listed. Details travel in a header, and common clients take 8 KiB of headers: a larger
/// one would break the call instead of explaining it.
const VIOLATIONS_BYTES_MAX: usize = 3072;
/// Longest message, metadata value or field: they repeat the caller's text.
const TEXT_BYTES_MAX: usize = 512;
/// Retry delay where the store is unavailable or a cap is reached.
const RETRY_SOON: Duration = Duration::from_secs(1);
/// Retry delay where a server is shutting down: the next one needs a moment.
const RETRY_NEXT_SERVER: Duration = Duration::from_secs(2);

/// Retry delay where the keys of an issuer are missing: they are fetched again after 15 s.
const RETRY_ISSUER: Duration = Duration::from_secs(2);

/// Retry delay where a server is being replaced: a new connection waits until the next one serves.
const RETRY_AT_ONCE: Duration = Duration::from_millis(20);

/// An error before its conversion to a status.
struct Fault {
    code: Code,
    message: String,
    reason: Reason,
    facts: HashMap<String, String>,
    details: ErrorDetails,
}

impl Fault {
    fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            code: reason.code(),
            message: cut(message.into()),
            reason,
            facts: HashMap::new(),
            details: ErrorDetails::new(),
        }
    }

    fn code(self, code: Code) -> Self {
        Self { code, ..self }
    }

    /// Adds metadata.
    fn fact(mut self, name: &str, value: &(impl ToString + ?Sized)) -> Self {
        self.facts.insert(name.to_owned(), cut(value.to_string()));
        self
    }

    /// Adds metadata where it is known.
    fn fact_if_known(self, name: &str, value: Option<impl ToString>) -> Self {
        match value {
            Some(value) => self.fact(name, &value),
            None => self,
        }
    }

    fn run(self, run: RunId) -> Self {
        self.fact("run_id", &run)
    }

    fn retry(mut self, after: Duration) -> Self {
        self.details.set_retry_info(Some(after));
        self
    }

    fn precondition(mut self, kind: &str, subject: &(impl ToString + ?Sized)) -> Self {
        let subject = cut(subject.to_string());
        let violation = PreconditionViolation::new(kind, subject, self.message.as_str());
        self.details.set_precondition_failure(vec![violation]);
        self
    }

    fn status(mut self) -> Status {
        self.details
            .set_error_info(self.reason.as_str(), DOMAIN, self.facts);
        Status::with_error_details(self.code, self.message, self.details)
    }
}

/// Refuses a request with violations.
pub(crate) fn no_violations(found: &[Violation]) -> Result<(), Status> {
    if found.is_empty() {
        return Ok(());
    }
    Err(invalid(found))
}

/// Returns the status for all violations of a request, as far as they fit; the metadata has the number of all. Must not
/// be empty.
pub(crate) fn invalid(violations: &[Violation]) -> Status {
    let only_the_run_id = violations.iter().all(|v| v.field == "run_id");
    let reason = if only_the_run_id {
        Reason::InvalidRunId
    } else {
        Reason::InvalidField
    };
    let message = match violations {
        [only] => format!("{}: {}", only.field, only.description),
        many => {
            let fields: Vec<&str> = many.iter().map(|v| v.field.as_str()).collect();
            let (count, fields) = (many.len(), fields.join(", "));
            format!("{count} fields of the request are wrong: {fields}")
        }
    };
    let mut fault = Fault::new(reason, message).fact("violations", &violations.len());
    let mut bytes = 0;
    let reported = violations.iter().map_while(|v| {
        let (field, description) = (cut(v.field.clone()), cut(v.description.clone()));
        bytes += field.len() + description.len() + 8;
        (bytes <= VIOLATIONS_BYTES_MAX).then(|| FieldViolation::new(field, description))
    });
    fault.details.set_bad_request(reported.collect::<Vec<_>>());
    fault.status()
}

/// Returns the status for a spec that requests what this server cannot do. Must not be empty; the metadata has the
/// first.
pub(crate) fn capability_missing(missing: &[Missing]) -> Status {
    let named: Vec<String> = missing
        .iter()
        .map(|m| format!("{} ({})", m.capability, m.field))
        .collect();
    let message = format!("this server cannot do this here: {}", named.join(", "));
    let mut fault = Fault::new(Reason::CapabilityMissing, message);
    if let Some(first) = missing.first() {
        fault = fault
            .fact("field", &first.field)
            .fact("capability", &first.capability);
    }
    let violations = missing.iter().map(|m| {
        let description = format!("{} is missing here", m.capability);
        PreconditionViolation::new("CAPABILITY", cut(m.field.clone()), cut(description))
    });
    fault
        .details
        .set_precondition_failure(violations.collect::<Vec<_>>());
    fault.status()
}

/// Returns the status for an ended run that cannot be restarted from its record and the request; `missing` lists the
/// missing fields.
pub(crate) fn spec_incomplete(run: RunId, missing: &[String]) -> Status {
    let missing = missing.join(",");
    let message = format!("the run has ended, and this of its spec was not kept: {missing}");
    Fault::new(Reason::SpecIncomplete, message)
        .run(run)
        .fact("missing", &missing)
        .precondition("SPEC", &run)
        .status()
}

/// Refuses a spawn whose name an open run has; absent: one that the caller may not see.
pub(crate) fn name_taken(text: String, name: &str, holder: Option<&RunView>) -> Status {
    let mut fault = Fault::new(Reason::NameTaken, text).fact("name", name);
    if let Some(holder) = holder {
        fault = fault
            .run(holder.run)
            .fact("state", holder.state.name())
            .fact("node", &holder.node);
    }
    fault.status()
}

/// Refuses a spawn whose id or key a run of another spec has; these fields differ, where it is the caller's.
pub(crate) fn spec_mismatch(text: String, run: RunId, fields: &[String]) -> Status {
    if fields.is_empty() {
        return Fault::new(Reason::SpecMismatch, text).run(run).status();
    }
    let fault = Fault::new(
        Reason::SpecMismatch,
        format!("{text}: {}", fields.join(", ")),
    );
    fault.run(run).fact("fields", &fields.join(" ")).status()
}

/// Returns the status for a consumer that reads many runs by another filter.
pub(crate) fn other_filter() -> Status {
    let why = "is another one than that by which this consumer reads";
    invalid(&[Violation::new("filter", why)])
}

/// Returns the status for the caller's expired deadline.
pub(crate) fn deadline_exceeded() -> Status {
    let message = "the caller's time ran out; what was begun continues";
    Fault::new(Reason::DeadlineExceeded, message).status()
}

/// Returns the status for a caller that may not use this server.
pub(crate) fn permission_denied(message: &str) -> Status {
    Fault::new(Reason::PermissionDenied, message).status()
}

/// Returns the status for a caller at this limit.
pub(crate) fn too_many(what: &str, limit: usize) -> Status {
    quota(what, u64::try_from(limit).unwrap_or(u64::MAX))
}

/// Refuses to act on more runs than the caller allows.
pub(crate) fn too_many_matches(at_most: usize) -> Status {
    let text = format!("more than {at_most} runs match; nothing was done");
    let fault = Fault::new(Reason::TooManyMatches, text);
    fault.fact("at_most", &at_most).status()
}

/// Returns the status while the server is shutting down.
pub(crate) fn draining() -> Status {
    Fault::new(Reason::NodeDraining, "this server is shutting down")
        .retry(RETRY_NEXT_SERVER)
        .status()
}

/// Returns the status while another server replaces this one.
pub(crate) fn leaving() -> Status {
    let message = "another server takes the place of this one";
    Fault::new(Reason::ServerReplaced, message)
        .retry(RETRY_AT_ONCE)
        .status()
}

/// Returns the status while the keeper does not answer: it is stopped, or the host does not schedule it.
pub(crate) fn keeper_unresponsive() -> Status {
    let message = "the keeper of this node does not answer";
    Fault::new(Reason::KeeperUnresponsive, message)
        .retry(RETRY_NEXT_SERVER)
        .status()
}

/// Returns the status for a bug of Kennel: the log has the details.
pub(crate) fn internal(what: &str) -> Status {
    tracing::error!(what, "internal fault, answering INTERNAL");
    Fault::new(Reason::Internal, format!("internal fault: {what}")).status()
}

/// Returns the answer of a call, or the status of its error.
pub(crate) fn answer_of<T>(
    call: impl Future<Output = Result<T, CallError>>,
) -> impl Future<Output = Result<T, Status>> {
    call.map_err(|error| of(&error))
}

/// Whether this status is for that quota.
pub(crate) fn is_quota(status: &Status, what: &str) -> bool {
    let details = status.get_error_details();
    let quota = details
        .error_info()
        .and_then(|info| info.metadata.get("quota"));
    quota.is_some_and(|quota| quota == what)
}

/// Returns the status for a quota, in words and in metadata.
fn quota(what: &str, limit: u64) -> Status {
    let message = format!("no room: {what} (limit {limit})");
    let fault = used_up(what, message, Some(limit));
    fault.retry(RETRY_SOON).status()
}

/// Returns the status for an owner at this limit; one is free after this time.
pub(crate) fn too_many_of_owner(what: &str, limit: u64, retry: Duration) -> Status {
    let what = format!("{what} of this owner");
    let message = format!("no room: {what} (limit {limit})");
    let fault = used_up(&what, message, Some(limit));
    fault.retry(retry).status()
}

fn used_up(what: &str, message: String, limit: Option<u64>) -> Fault {
    let mut fault = Fault::new(Reason::QuotaExceeded, message.as_str())
        .fact("quota", what)
        .fact_if_known("limit", limit);
    fault
        .details
        .set_quota_failure(vec![QuotaViolation::new(what, message)]);
    fault
}

/// Returns the beginning of a long text.
fn cut(mut text: String) -> String {
    const MARK: &str = "...";
    if text.len() > TEXT_BYTES_MAX {
        text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX - MARK.len()));
        text.push_str(MARK);
    }
    text
}

/// Returns the fields of the violations in a status, in their order.
#[cfg(test)]
pub(crate) fn violated(status: &Status) -> Vec<String> {
    let request = status.get_details_bad_request().expect("BadRequest");
    let violations = request.field_violations.into_iter();
    violations.map(|violation| violation.field).collect()
}

#[cfg(test)]
mod client_tests;
#[cfg(test)]
mod tests;
