//! The look for processes that runs have left behind.

use super::{Api, Context, Fault, Logs, Scope, Verb, Waits};
use crate::{convert::audit, pb};
use kennel_lifecycle::Violation;

impl Verb for pb::AuditLeaksRequest {
    const LOGS: Logs = Logs::Nothing;
    const WAITS: Waits = Waits::Keeper;
    const TO_ITS_END: bool = false;
    type Call = ();
    type Answer = pb::AuditLeaksResponse;

    fn parse(self, _: &Context<'_>, _: &mut Vec<Violation>) -> Option<Self::Call> {
        Some(())
    }

    fn scope((): &()) -> Scope {
        Scope::Nothing
    }

    async fn serve(at: Api, (): ()) -> Result<Self::Answer, Fault> {
        let audited = at.supervisor.audit().await?;
        Ok(pb::AuditLeaksResponse {
            audit: Some(audit::audit(audited)),
        })
    }
}
