//! The continuation of a paused run.

use super::{Api, Fault, How, Verb, Waits};
use crate::{convert::run, pb};
use kennel_lifecycle::RunId;

impl Verb for pb::ResumeRequest {
    const HOW: How = How::order(Waits::Keeper);
    type Answer = pb::ResumeResponse;

    of_run_id!();

    async fn serve(at: Api, run: RunId) -> Result<Self::Answer, Fault> {
        let view = at.supervisor.resume(run).await?;
        Ok(pb::ResumeResponse {
            run: Some(run::run(view)),
        })
    }
}
