//! Errors of upgrades, and the status during one.

use super::{Fault, RETRY_AT_ONCE, draining};
use crate::reason::Reason;
use kennel_supervisor::UpgradeRefusal;
use tonic::Status;

/// Returns the status while another server replaces this one.
pub(crate) fn leaving() -> Status {
    let message = "another server takes the place of this one";
    Fault::new(Reason::ServerReplaced, message)
        .retry(RETRY_AT_ONCE)
        .status()
}

pub(super) fn refused(refusal: &UpgradeRefusal, text: String) -> Status {
    let fault = match refusal {
        UpgradeRefusal::ShuttingDown => return draining(),
        UpgradeRefusal::UnderWay => Fault::new(Reason::UpgradeUnderWay, text),
        UpgradeRefusal::Unfit {
            binary,
            why,
            speaks,
        } => Fault::new(Reason::UpgradeRefused, text)
            .fact("binary", binary.as_str())
            .fact("why", why.as_str())
            .fact_if_known("protocol", *speaks),
    };
    fault.precondition("UPGRADE", "server").status()
}
