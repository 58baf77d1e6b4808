//! New runs at this node again.

use super::{Api, Context, Fault, Logs, Scope, Verb, Waits};
use crate::{convert::drain, pb};
use kennel_lifecycle::Violation;

impl Verb for pb::UndrainRequest {
    const LOGS: Logs = Logs::Each;
    const WAITS: Waits = Waits::Brief;
    const TO_ITS_END: bool = true;
    type Call = ();
    type Answer = pb::UndrainResponse;

    fn parse(self, _: &Context<'_>, _: &mut Vec<Violation>) -> Option<Self::Call> {
        Some(())
    }

    fn scope((): &()) -> Scope {
        Scope::Nothing
    }

    async fn serve(at: Api, (): ()) -> Result<Self::Answer, Fault> {
        let status = at.supervisor.undrain().await?;
        Ok(pb::UndrainResponse {
            status: Some(drain::status(status)),
        })
    }
}
