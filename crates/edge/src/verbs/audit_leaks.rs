//! The look for processes that runs have left behind.

use super::{Api, Fault, How, Verb, Waits};
use crate::{convert::audit, pb};

impl Verb for pb::AuditLeaksRequest {
    const HOW: How = How::read(Waits::Keeper);
    type Answer = pb::AuditLeaksResponse;

    without_fields!();

    async fn serve(at: Api, (): ()) -> Result<Self::Answer, Fault> {
        let audited = at.supervisor.audit().await?;
        Ok(pb::AuditLeaksResponse {
            audit: Some(audit::audit(audited)),
        })
    }
}
