//! Errors of standard input.

use super::Fault;
use crate::{enums::input_end, reason::Reason};
use kennel_lifecycle::RunId;
use kennel_supervisor::CallError;
use tonic::Status;

const PRECONDITION: &str = "RUN_INPUT";

/// Returns the status of a call about standard input; the metadata has its state, where that is known.
pub(super) fn of(error: &CallError, text: &str) -> Status {
    let fault = |reason, run: RunId| Fault::new(reason, text).run(run);
    let (run, fault) = match error {
        CallError::InputOffset { run, accepted, .. } => {
            return fault(Reason::InputOffsetMismatch, *run)
                .fact("accepted_offset", accepted.to_string())
                .status();
        }
        CallError::InputClosed { run, end, accepted } => {
            let fault = fault(Reason::InputClosed, *run)
                .fact("accepted_offset", accepted.to_string())
                .fact("closed_by", input_end(*end).as_str_name());
            (run, fault)
        }
        CallError::InputUnknown { run, least, most } => {
            let fault = fault(Reason::InputOffsetUnknown, *run)
                .fact("accepted_least", least.to_string())
                .fact("accepted_most", most.to_string());
            (run, fault)
        }
        CallError::InputEnded {
            run,
            state,
            accepted,
        } => {
            let fault = fault(Reason::RunEnded, *run)
                .fact_if_known("accepted_offset", *accepted)
                .fact("state", state.api_name());
            (run, fault)
        }
        CallError::OtherAttempt { run, attempt } => {
            let fault = fault(Reason::AttemptMismatch, *run).fact("attempt", attempt.to_string());
            (run, fault)
        }
        _ => return super::internal(text),
    };
    fault.precondition(PRECONDITION, run.to_string()).status()
}
