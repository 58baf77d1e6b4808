//! The look for processes that runs have left behind.

use super::{Api, Fault, Logs, Verb, Waits};
use crate::{convert::audit, pb};

impl Verb for pb::AuditLeaksRequest {
    const LOGS: Logs = Logs::Nothing;
    const WAITS: Waits = Waits::Keeper;
    const TO_ITS_END: bool = false;
    type Answer = pb::AuditLeaksResponse;

    without_fields!();

    async fn serve(at: Api, (): ()) -> Result<Self::Answer, Fault> {
        let audited = at.supervisor.audit().await?;
        Ok(pb::AuditLeaksResponse {
            audit: Some(audit::audit(audited)),
        })
    }
}
