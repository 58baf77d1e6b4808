//! Errors of upgrades, and the status during one.

use super::{Facts, Fault, RETRY_AT_ONCE, draining};
use crate::reason::Reason;
use kennel_supervisor::UpgradeRefusal;
use tonic::{Code, Status};

/// Returns the status while another server replaces this one.
pub(crate) fn leaving() -> Status {
    Fault::new(
        Code::Unavailable,
        Reason::ServerReplaced,
        "another server takes the place of this one",
        Facts::default(),
    )
    .retry(RETRY_AT_ONCE)
    .status()
}

pub(super) fn refused(refusal: &UpgradeRefusal, text: String) -> Status {
    let (reason, facts) = match refusal {
        UpgradeRefusal::ShuttingDown => return draining(),
        UpgradeRefusal::UnderWay => (Reason::UpgradeUnderWay, Facts::default()),
        UpgradeRefusal::Unfit {
            binary,
            why,
            speaks,
        } => {
            let facts = Facts::default()
                .with("binary", binary.as_str())
                .with("why", why.as_str());
            let facts = match speaks {
                Some(protocol) => facts.with("protocol", protocol.to_string()),
                None => facts,
            };
            (Reason::UpgradeRefused, facts)
        }
    };
    Fault::new(Code::FailedPrecondition, reason, text, facts)
        .precondition("UPGRADE", "server")
        .status()
}
