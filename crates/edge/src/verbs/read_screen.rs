//! The screen of a run's terminal.

use super::{Api, Fault, How, Verb, Waits};
use crate::{convert::screen, pb};
use kennel_lifecycle::RunId;

impl Verb for pb::ReadScreenRequest {
    const HOW: How = How::read(Waits::Caller);
    type Answer = pb::ReadScreenResponse;

    of_run_id!();

    async fn serve(at: Api, run: RunId) -> Result<Self::Answer, Fault> {
        let view = at.supervisor.screen(run).await?;
        Ok(pb::ReadScreenResponse {
            screen: Some(screen::screen(view)),
        })
    }
}
