//! Maps errors to a status code, a documented reason and its details. No other module makes a [`Status`].

mod claim;
mod code;
mod consumer;
mod facets;
mod input;
mod node;
mod terminal;
mod transport;
mod upgrade;

pub(crate) use claim::{name_taken, spec_mismatch};
pub(crate) use code::code_name;
pub(crate) use consumer::other_filter;
use node::node_not_found;
pub(crate) use node::{node_lost, node_of_call, node_unreachable};
pub(crate) use transport::{
    caller_unverified, issuer_unavailable, malformed, panicked, role_missing, too_large,
    unauthenticated, unimplemented,
};
pub(crate) use upgrade::leaving;

use crate::{
    enums::containment,
    reason::{DOMAIN, Reason},
};
use futures_util::TryFutureExt;
use kennel_lifecycle::{Missing, Refusal, RunId, RunState, StartFailure, StartStage, Violation};
use kennel_supervisor::{CallError, Unstopped};
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
    fn fact(mut self, name: &str, value: impl Into<String>) -> Self {
        self.facts.insert(name.to_owned(), cut(value.into()));
        self
    }

    /// Adds metadata where it is known.
    fn fact_if_known(self, name: &str, value: Option<impl ToString>) -> Self {
        match value {
            Some(value) => self.fact(name, value.to_string()),
            None => self,
        }
    }

    fn run(self, run: RunId) -> Self {
        self.fact("run_id", run.to_string())
    }

    fn retry(mut self, after: Duration) -> Self {
        self.details.set_retry_info(Some(after));
        self
    }

    fn precondition(mut self, kind: &str, subject: impl Into<String>) -> Self {
        let subject = cut(subject.into());
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
    let count = violations.len().to_string();
    let mut fault = Fault::new(reason, message).fact("violations", count);
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
            .fact("field", first.field.as_str())
            .fact("capability", first.capability.as_str());
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

/// Returns the status for a secret of the server that cannot be read.
fn secret_unavailable([name, origin, why]: [&String; 3], text: String) -> Status {
    Fault::new(Reason::SecretUnavailable, text)
        .fact("secret", name.as_str())
        .fact("source", origin.as_str())
        .fact("why", why.as_str())
        .precondition("SECRET", name.as_str())
        .status()
}

/// Returns the status for an ended run that cannot be restarted from its record and the request; `missing` lists the
/// missing fields.
pub(crate) fn spec_incomplete(run: RunId, missing: &[String]) -> Status {
    let missing = missing.join(",");
    let message = format!("the run has ended, and this of its spec was not kept: {missing}");
    Fault::new(Reason::SpecIncomplete, message)
        .run(run)
        .fact("missing", missing)
        .precondition("SPEC", run.to_string())
        .status()
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
    fault.fact("at_most", at_most.to_string()).status()
}

/// Returns the status while the server is shutting down.
pub(crate) fn draining() -> Status {
    Fault::new(Reason::NodeDraining, "this server is shutting down")
        .retry(RETRY_NEXT_SERVER)
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

/// Returns the status of a call that failed.
pub(crate) fn of(error: &CallError) -> Status {
    let text = error.to_string();
    let precondition = |reason: Reason, run: RunId, kind: &str| {
        Fault::new(reason, text.as_str())
            .run(run)
            .precondition(kind, run.to_string())
            .status()
    };
    match error {
        CallError::RunNotFound(run) => Fault::new(Reason::RunNotFound, text).run(*run).status(),
        CallError::RunFenced(run) => precondition(Reason::RunFenced, *run, "RUN_FENCE"),
        CallError::NoRunNamed(_)
        | CallError::NameTaken { .. }
        | CallError::SpecMismatch { .. }
        | CallError::RunIdExpired { .. } => claim::of(error, text),
        CallError::StoppedFirst(run) => precondition(Reason::RunStopped, *run, "RUN_STOP"),
        CallError::Refused {
            run,
            refusal,
            state,
        } => refused(*run, *refusal, *state, text),
        CallError::Pinned { run, by, state } => pinned(*run, by, *state, text),
        CallError::AnnotationsChanged { .. }
        | CallError::NoTimeLimit { .. }
        | CallError::ExtensionTooLong { .. } => facets::of(error, text),
        CallError::CapabilityMissing(missing) => capability_missing(missing),
        CallError::InvalidSpec(violation) => invalid(std::slice::from_ref(violation)),
        CallError::SecretUnavailable { name, origin, why } => {
            secret_unavailable([name, origin, why], text)
        }
        CallError::CommandNotFound { command, looked_in } => not_found(command, looked_in),
        CallError::SpawnFailed { run, failure } => spawn_failed(*run, failure),
        CallError::QuotaExceeded { what, limit } => quota(what, *limit),
        CallError::PatternTooDear(run) => pattern_too_dear(*run, text),
        CallError::HostFull(_) => host_full(text),
        CallError::ContainmentUnavailable {
            run,
            wanted,
            reached,
            why,
        } => {
            let word = |by| containment(by).as_str_name();
            Fault::new(Reason::ContainmentUnavailable, text)
                .run(*run)
                .fact("wanted", word(*wanted))
                .fact("reached", word(*reached))
                .fact("why", why.as_deref().unwrap_or_default())
                .precondition("CONTAINMENT", "spec.min_containment")
                .status()
        }
        CallError::StoreUnavailable => Fault::new(Reason::StoreUnavailable, text)
            .retry(RETRY_SOON)
            .status(),
        CallError::NodeDrained => drained(Reason::NodeDraining, text),
        CallError::NodeFenced => drained(Reason::NodeFenced, text),
        CallError::Draining => draining(),
        CallError::NotUpgraded(refusal) => upgrade::refused(refusal, text),
        CallError::NoPty(none) => terminal::no_pty(none, text),
        CallError::ScreenTooLarge { run, size } => terminal::too_large(*run, *size, text),
        CallError::TerminalInput { run } => {
            precondition(Reason::TerminalInput, *run, "RUN_TERMINAL")
        }
        CallError::NoTerminal { run } | CallError::NotOnTerminal { run } => {
            precondition(Reason::NoTerminal, *run, "RUN_TERMINAL")
        }
        CallError::NotPaused { run, moving } => not_paused(*run, moving, text),
        CallError::SignalFailed { run, errno } => {
            let fault = Fault::new(Reason::SignalFailed, text).run(*run);
            match fault.fact("errno", errno.to_string()) {
                fault if is_passing(*errno) => {
                    fault.code(Code::ResourceExhausted).retry(RETRY_SOON)
                }
                fault => fault,
            }
            .status()
        }
        CallError::InputClosed { .. }
        | CallError::InputOffset { .. }
        | CallError::InputUnknown { .. }
        | CallError::InputEnded { .. }
        | CallError::OtherAttempt { .. } => input::of(error, &text),
        CallError::ConsumerNotFound { .. }
        | CallError::ConsumerTakenOver { .. }
        | CallError::TooManyConsumers { .. } => consumer::of(error, text),
        CallError::CursorAhead { .. }
        | CallError::OffsetAhead { .. }
        | CallError::CursorExpired { .. } => no_such_place(error, text),
        CallError::RunElsewhere { run, elsewhere } => node::elsewhere(*run, elsewhere, text),
        CallError::AbortQueued {
            run,
            elsewhere: node,
        }
        | CallError::AbortUndelivered { run, node } => node::queued(*run, node, text),
        CallError::NodeHasLease(node) => node::has_lease(node, text),
        CallError::NodeNotFound { name, why } => node_not_found(name, why),
        CallError::JournalUnreadable { run, why } => unreadable(*run, why, text),
        CallError::Internal(what) => internal(what),
    }
}

/// Returns the status for a node that takes no new runs, where others may.
fn drained(reason: Reason, text: String) -> Status {
    Fault::new(reason, text).retry(RETRY_NEXT_SERVER).status()
}

/// Returns the status for a position with nothing to read.
fn no_such_place(error: &CallError, text: String) -> Status {
    let (reason, run, place) = match *error {
        CallError::CursorAhead { run, asked, head } => {
            let place = [("asked_seq", asked), ("head_seq", head)];
            (Reason::CursorAhead, run, place)
        }
        CallError::OffsetAhead { run, asked, end } => {
            let place = [("asked_offset", asked), ("end_offset", end)];
            (Reason::CursorAhead, run, place)
        }
        CallError::CursorExpired {
            run,
            first_seq,
            last_seq,
        } => {
            let place = [("first_seq", first_seq), ("last_seq", last_seq)];
            (Reason::CursorExpired, run, place)
        }
        _ => return internal(&text),
    };
    let fault = Fault::new(reason, text).run(run);
    let fault = place.into_iter().fold(fault, |fault, (name, number)| {
        fault.fact(name, number.to_string())
    });
    fault.status()
}

fn unreadable(run: RunId, why: &str, text: String) -> Status {
    tracing::error!(run_id = %run, why, "cannot read the journal, answering DATA_LOSS");
    Fault::new(Reason::JournalUnreadable, text)
        .run(run)
        .status()
}

fn refused(run: RunId, refusal: Refusal, state: RunState, text: String) -> Status {
    let reason = match refusal {
        Refusal::Ended => Reason::RunEnded,
        Refusal::AlreadyAdmitted
        | Refusal::NotRunningYet
        | Refusal::NotPaused
        | Refusal::NotRestartable
        | Refusal::Paused
        | Refusal::Stopping => Reason::InvalidState,
    };
    let is_refused = |verb: &str| verb == "Restart" && refusal == Refusal::NotRestartable;
    let allowed = allowed_verbs(state).iter().copied();
    let allowed: Vec<_> = allowed.filter(|verb| !is_refused(verb)).collect();
    Fault::new(reason, text)
        .run(run)
        .fact("state", state.api_name())
        .fact("allowed", allowed.join(","))
        .precondition("RUN_STATE", run.to_string())
        .status()
}

fn pinned(run: RunId, by: &str, state: Option<RunState>, text: String) -> Status {
    Fault::new(Reason::InvalidState, text)
        .run(run)
        .fact("state", state.map_or("", RunState::api_name))
        .fact("allowed", "Abort")
        .fact("pinned_by", by)
        .precondition("RUN_STATE", run.to_string())
        .status()
}

/// Returns the calls that are permitted for a run in this state. For information: the machine alone decides.
fn allowed_verbs(state: RunState) -> &'static [&'static str] {
    match state {
        RunState::Starting | RunState::Stopping => &["Abort"],
        RunState::Backoff => &["Abort", "Restart"],
        RunState::Running => &["Abort", "Interrupt", "Pause", "Restart", "Signal"],
        RunState::Paused => &["Abort", "Restart", "Resume"],
        RunState::Succeeded | RunState::Failed | RunState::Cancelled | RunState::Lost => &[],
    }
}

fn not_found(command: &str, looked_in: &[String]) -> Status {
    let places = looked_in.join(":");
    // PATH may be long: it is in the metadata.
    let message = match looked_in {
        [] => format!("command {command:?} was not found"),
        [path] if command.contains('/') => format!("command {command:?} was not found in {path}"),
        _ => format!("command {command:?} was not found in PATH"),
    };
    Fault::new(Reason::CommandNotFound, message)
        .fact("command", command)
        .fact("looked_in", places)
        .status()
}

fn spawn_failed(run: RunId, failure: &StartFailure) -> Status {
    let name = failure.stage.api_name();
    let message = format!("the command could not be started: {failure}");
    let fault = Fault::new(Reason::SpawnFailed, message)
        .code(start_code(failure))
        .run(run)
        .fact("stage", name)
        .fact_if_known("path", failure.path.as_ref())
        .fact_if_known("errno", failure.errno);
    match fault.code {
        Code::FailedPrecondition => {
            let subject = failure.path.clone().unwrap_or_else(|| run.to_string());
            fault.precondition(name, subject).status()
        }
        Code::ResourceExhausted => fault.retry(RETRY_SOON).status(),
        _ => fault.status(),
    }
}

/// Returns the code for a failed start, by errno(3): change the request, try again, or neither.
fn start_code(failure: &StartFailure) -> Code {
    // Numbers of Linux on all of its 64-bit machines.
    const ENOENT: i32 = 2;
    const E2BIG: i32 = 7;
    const ENOEXEC: i32 = 8;
    const EACCES: i32 = 13;
    const ENOTDIR: i32 = 20;
    const EISDIR: i32 = 21;
    const ENAMETOOLONG: i32 = 36;
    const ELOOP: i32 = 40;
    match failure.errno {
        Some(ENOENT | E2BIG | ENOEXEC | EACCES | ENOTDIR | EISDIR | ENAMETOOLONG | ELOOP) => {
            Code::FailedPrecondition
        }
        Some(errno) if is_passing(errno) => Code::ResourceExhausted,
        // The file system of the command did not answer.
        None if failure.stage == StartStage::Exec => Code::FailedPrecondition,
        // The host does not let the server set them; the other steps of the start are the server's own.
        _ if matches!(
            failure.stage,
            StartStage::Limits
                | StartStage::Namespace
                | StartStage::Privileges
                | StartStage::Secret
        ) =>
        {
            Code::FailedPrecondition
        }
        _ => Code::Internal,
    }
}

/// Whether an error of errno(3) may be gone at the next try: the host is short of something, or a file is written.
fn is_passing(errno: i32) -> bool {
    const EAGAIN: i32 = 11;
    const ENOMEM: i32 = 12;
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    const ETXTBSY: i32 = 26;
    const ENOSPC: i32 = 28;
    const EDQUOT: i32 = 122;
    [EAGAIN, ENOMEM, ENFILE, EMFILE, ETXTBSY, ENOSPC, EDQUOT].contains(&errno)
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
    used_up(what, message, Some(limit), RETRY_SOON)
}

/// Returns the status for an owner at this limit; one is free after this time.
pub(crate) fn too_many_of_owner(what: &str, limit: u64, retry: Duration) -> Status {
    let what = format!("{what} of this owner");
    let message = format!("no room: {what} (limit {limit})");
    used_up(&what, message, Some(limit), retry)
}

/// Returns the status for a limit of the host, whose value is not known here.
fn host_full(message: String) -> Status {
    used_up("room of the host", message, None, RETRY_SOON)
}

/// Returns the status for a pattern that takes too much: a repeat of the call takes it as well.
fn pattern_too_dear(run: RunId, message: String) -> Status {
    let what = "processor time of a pattern";
    let mut fault = Fault::new(Reason::QuotaExceeded, message.as_str())
        .run(run)
        .fact("quota", what);
    fault
        .details
        .set_quota_failure(vec![QuotaViolation::new(what, message)]);
    fault.status()
}

fn used_up(what: &str, message: String, limit: Option<u64>, retry: Duration) -> Status {
    let mut fault = Fault::new(Reason::QuotaExceeded, message.as_str())
        .fact("quota", what)
        .fact_if_known("limit", limit)
        .retry(retry);
    fault
        .details
        .set_quota_failure(vec![QuotaViolation::new(what, message)]);
    fault.status()
}

fn not_paused(run: RunId, moving: &[Unstopped], text: String) -> Status {
    let pids: Vec<String> = moving.iter().map(|one| one.pid.to_string()).collect();
    let known = moving.iter().filter(|one| !one.why.is_empty());
    let why: Vec<String> = known
        .map(|Unstopped { pid, why }| format!("{pid}: {why}"))
        .collect();
    Fault::new(Reason::PausePartial, text)
        .run(run)
        .fact("pids", pids.join(","))
        .fact("why", why.join("; "))
        .precondition("TASKS_STOPPED", run.to_string())
        .status()
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
