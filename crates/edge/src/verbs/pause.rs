//! The stop of a whole tree, until it is resumed.

use super::{Api, Fault, How, Verb, Waits};
use crate::{convert::run, pb};
use kennel_lifecycle::RunId;

impl Verb for pb::PauseRequest {
    const HOW: How = How::order(Waits::Keeper);
    type Answer = pb::PauseResponse;

    of_run_id!();

    async fn serve(at: Api, run: RunId) -> Result<Self::Answer, Fault> {
        let view = at.supervisor.pause(run).await?;
        Ok(pb::PauseResponse {
            run: Some(run::run(view)),
        })
    }
}
