//! The server, its host and its limits.

use super::{Api, Fault, Logs, Verb, Waits};
use crate::{convert::info, pb};

impl Verb for pb::GetServerInfoRequest {
    const LOGS: Logs = Logs::Nothing;
    const WAITS: Waits = Waits::Brief;
    const TO_ITS_END: bool = false;
    type Answer = pb::GetServerInfoResponse;

    without_fields!();

    async fn serve(at: Api, (): ()) -> Result<Self::Answer, Fault> {
        Ok(pb::GetServerInfoResponse {
            server: Some(info::server(at.supervisor.info().await)),
        })
    }
}
