//! The screen of a run's terminal.

use super::{Api, Fault, Logs, Verb, Waits};
use crate::{convert::screen, pb};
use kennel_lifecycle::RunId;

impl Verb for pb::ReadScreenRequest {
    const LOGS: Logs = Logs::Nothing;
    const WAITS: Waits = Waits::Caller;
    const TO_ITS_END: bool = false;
    type Answer = pb::ReadScreenResponse;

    of_run_id!();

    async fn serve(at: Api, run: RunId) -> Result<Self::Answer, Fault> {
        let view = at.supervisor.screen(run).await?;
        Ok(pb::ReadScreenResponse {
            screen: Some(screen::screen(view)),
        })
    }
}
