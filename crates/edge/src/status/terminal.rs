//! Errors of terminals.

use super::{Fault, RETRY_SOON};
use crate::reason::Reason;
use kennel_lifecycle::{RunId, TerminalSize};
use kennel_supervisor::{NoPty, SCREEN_CELLS_MAX};
use tonic::Status;
use tonic_types::QuotaViolation;

/// Returns the status for a run that gets no terminal.
pub(super) fn no_pty(none: &NoPty, text: String) -> Status {
    match none {
        NoPty::Exhausted { current, max } => {
            let violation = QuotaViolation::new("terminals of the host", text.as_str());
            let mut fault = Fault::new(Reason::PtyExhausted, text)
                .fact_if_known("current", *current)
                .fact_if_known("max", *max);
            fault.details.set_quota_failure(vec![violation]);
            fault.retry(RETRY_SOON).status()
        }
        NoPty::Unavailable { why, errno } => Fault::new(Reason::PtyUnavailable, text)
            .fact("why", why.as_str())
            .fact_if_known("errno", *errno)
            .precondition("TERMINAL", "spec.terminal")
            .status(),
    }
}

/// Returns the status for a terminal that is not drawn.
pub(super) fn too_large(run: RunId, size: TerminalSize, text: String) -> Status {
    Fault::new(Reason::ScreenTooLarge, text)
        .run(run)
        .fact("rows", size.rows.to_string())
        .fact("cols", size.cols.to_string())
        .fact("cells_max", SCREEN_CELLS_MAX.to_string())
        .precondition("TERMINAL", run.to_string())
        .status()
}
