//! New runs at this node again.

use super::{Api, Fault, Logs, Verb, Waits};
use crate::{convert::drain, pb};

impl Verb for pb::UndrainRequest {
    const LOGS: Logs = Logs::Each;
    const WAITS: Waits = Waits::Brief;
    const TO_ITS_END: bool = true;
    type Answer = pb::UndrainResponse;

    without_fields!();

    async fn serve(at: Api, (): ()) -> Result<Self::Answer, Fault> {
        let status = at.supervisor.undrain().await?;
        Ok(pb::UndrainResponse {
            status: Some(drain::status(status)),
        })
    }
}
