//! How much of a run's standard input was taken.

use super::{Api, Fault, How, Verb, Waits};
use crate::{convert::input, pb};
use kennel_lifecycle::RunId;

impl Verb for pb::GetInputStatusRequest {
    const HOW: How = How::read(Waits::Keeper);
    type Answer = pb::GetInputStatusResponse;

    of_run_id!();

    async fn serve(at: Api, run: RunId) -> Result<Self::Answer, Fault> {
        let progress = at.supervisor.input_progress(run).await?;
        Ok(pb::GetInputStatusResponse {
            input: Some(input::status(progress)),
        })
    }
}
