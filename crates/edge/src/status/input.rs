//! Errors of standard input.

use super::{Facts, Fault};
use crate::{enums::input_end, reason::Reason};
use kennel_lifecycle::RunId;
use kennel_supervisor::CallError;
use tonic::{Code, Status};

const PRECONDITION: &str = "RUN_INPUT";

/// Returns the status of a call about standard input; the metadata has its state, where that is known.
pub(super) fn of(error: &CallError, text: String) -> Status {
    let accepted =
        |run: RunId, bytes: u64| Facts::run(run).with("accepted_offset", bytes.to_string());
    let (run, reason, facts) = match error {
        CallError::InputOffset {
            run, accepted: at, ..
        } => {
            let facts = accepted(*run, *at);
            return Fault::new(Code::OutOfRange, Reason::InputOffsetMismatch, text, facts).status();
        }
        CallError::InputClosed {
            run,
            end,
            accepted: at,
        } => {
            let facts = accepted(*run, *at).with("closed_by", input_end(*end).as_str_name());
            (run, Reason::InputClosed, facts)
        }
        CallError::InputUnknown { run, least, most } => {
            let facts = Facts::run(*run)
                .with("accepted_least", least.to_string())
                .with("accepted_most", most.to_string());
            (run, Reason::InputOffsetUnknown, facts)
        }
        CallError::InputEnded {
            run,
            state,
            accepted: at,
        } => {
            let facts = at.map_or_else(|| Facts::run(*run), |at| accepted(*run, at));
            (run, Reason::RunEnded, facts.with("state", state.api_name()))
        }
        CallError::OtherAttempt { run, attempt } => {
            let facts = Facts::run(*run).with("attempt", attempt.to_string());
            (run, Reason::AttemptMismatch, facts)
        }
        _ => return super::internal(&text),
    };
    Fault::new(Code::FailedPrecondition, reason, text, facts)
        .precondition(PRECONDITION, run.to_string())
        .status()
}
