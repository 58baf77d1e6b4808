//! Errors of terminals.

use super::{Facts, Fault, RETRY_SOON};
use crate::reason::Reason;
use kennel_lifecycle::{RunId, TerminalSize};
use kennel_supervisor::{NoPty, SCREEN_CELLS_MAX};
use tonic::{Code, Status};
use tonic_types::QuotaViolation;

/// Returns the status for a run that gets no terminal.
pub(super) fn no_pty(none: &NoPty, text: String) -> Status {
    match none {
        NoPty::Exhausted { current, max } => {
            let number = |facts: Facts, name: &str, number: &Option<u64>| match number {
                Some(number) => facts.with(name, number.to_string()),
                None => facts,
            };
            let facts = number(Facts::default(), "current", current);
            let facts = number(facts, "max", max);
            let code = Code::ResourceExhausted;
            let violation = QuotaViolation::new("terminals of the host", text.as_str());
            let mut fault = Fault::new(code, Reason::PtyExhausted, text, facts);
            fault.details.set_quota_failure(vec![violation]);
            fault.retry(RETRY_SOON).status()
        }
        NoPty::Unavailable { why, errno } => {
            let facts = Facts::default().with("why", why.as_str());
            let facts = match errno {
                Some(errno) => facts.with("errno", errno.to_string()),
                None => facts,
            };
            Fault::new(
                Code::FailedPrecondition,
                Reason::PtyUnavailable,
                text,
                facts,
            )
            .precondition("TERMINAL", "spec.terminal")
            .status()
        }
    }
}

/// Returns the status for a terminal that is not drawn.
pub(super) fn too_large(run: RunId, size: TerminalSize, text: String) -> Status {
    let facts = Facts::run(run)
        .with("rows", size.rows.to_string())
        .with("cols", size.cols.to_string())
        .with("cells_max", SCREEN_CELLS_MAX.to_string());
    let code = Code::FailedPrecondition;
    Fault::new(code, Reason::ScreenTooLarge, text, facts)
        .precondition("TERMINAL", run.to_string())
        .status()
}
