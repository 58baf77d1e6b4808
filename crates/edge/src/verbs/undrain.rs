//! New runs at this node again.

use super::{Api, Fault, How, Verb, Waits};
use crate::{convert::drain, pb};

impl Verb for pb::UndrainRequest {
    const HOW: How = How::order(Waits::Brief);
    type Answer = pb::UndrainResponse;

    without_fields!();

    async fn serve(at: Api, (): ()) -> Result<Self::Answer, Fault> {
        let status = at.supervisor.undrain().await?;
        Ok(pb::UndrainResponse {
            status: Some(drain::status(status)),
        })
    }
}
