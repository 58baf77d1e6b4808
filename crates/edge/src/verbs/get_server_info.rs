//! The server, its host and its limits.

use super::{Api, Context, Fault, Logs, Scope, Verb, Waits};
use crate::{convert::info, pb};
use kennel_lifecycle::Violation;

impl Verb for pb::GetServerInfoRequest {
    const LOGS: Logs = Logs::Nothing;
    const WAITS: Waits = Waits::Brief;
    const TO_ITS_END: bool = false;
    type Call = ();
    type Answer = pb::GetServerInfoResponse;

    fn parse(self, _: &Context<'_>, _: &mut Vec<Violation>) -> Option<Self::Call> {
        Some(())
    }

    fn scope((): &()) -> Scope {
        Scope::Nothing
    }

    async fn serve(at: Api, (): ()) -> Result<Self::Answer, Fault> {
        Ok(pb::GetServerInfoResponse {
            server: Some(info::server(at.supervisor.info().await)),
        })
    }
}
