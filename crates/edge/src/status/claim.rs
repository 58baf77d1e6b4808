//! Errors of what names a run: its id, its key, its name.

use super::{Fault, Reason, internal};
use kennel_lifecycle::RunId;
use kennel_supervisor::{CallError, RunView};
use tonic::Status;

/// Returns the status of a call that failed for the id, the key or the name of a run.
pub(super) fn of(error: &CallError, text: String) -> Status {
    match error {
        CallError::NoRunNamed(name) => Fault::new(Reason::RunNotFound, text)
            .fact("name", name)
            .status(),
        CallError::NameTaken { name, holder } => name_taken(text, name, Some(holder)),
        CallError::SpecMismatch { run, .. } => spec_mismatch(text, *run, &[]),
        CallError::RunIdExpired { run, time, now } => Fault::new(Reason::RunIdExpired, text)
            .run(*run)
            .fact("id_time", time.as_str())
            .fact("server_time", now.as_str())
            .precondition("RUN_ID_TIME", run.to_string())
            .status(),
        _ => internal(&text),
    }
}

/// Refuses a spawn whose name an open run has; absent: one that the caller may not see.
pub(crate) fn name_taken(text: String, name: &str, holder: Option<&RunView>) -> Status {
    let fault = Fault::new(Reason::NameTaken, text).fact("name", name);
    let Some(holder) = holder else {
        return fault.status();
    };
    let fault = fault.run(holder.run).fact("state", holder.state.name());
    fault.fact("node", holder.node.to_string()).status()
}

/// Refuses a spawn whose id or key a run of another spec has; these fields differ, where it is the caller's.
pub(crate) fn spec_mismatch(text: String, run: RunId, fields: &[String]) -> Status {
    let fault = Fault::new(Reason::SpecMismatch, text);
    let fields = (!fields.is_empty()).then(|| fields.join(" "));
    fault.run(run).fact_if_known("fields", fields).status()
}
