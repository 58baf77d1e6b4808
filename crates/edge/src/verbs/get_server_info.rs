//! The server, its host and its limits.

use super::{Api, Fault, How, Verb, Waits};
use crate::{convert::info, pb};

impl Verb for pb::GetServerInfoRequest {
    const HOW: How = How::read(Waits::Brief);
    type Answer = pb::GetServerInfoResponse;

    without_fields!();

    async fn serve(at: Api, (): ()) -> Result<Self::Answer, Fault> {
        Ok(pb::GetServerInfoResponse {
            server: Some(info::server(at.supervisor.info().await)),
        })
    }
}
