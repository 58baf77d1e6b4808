//! The stop of a whole tree, until it is resumed.

use super::{Api, Asked, Fault, Logs, Verb, Waits};
use crate::{convert::run, pb};
use kennel_lifecycle::RunId;

impl Verb for pb::PauseRequest {
    const LOGS: Logs = Logs::Each;
    const WAITS: Waits = Waits::Keeper;
    const TO_ITS_END: bool = true;
    type Answer = pb::PauseResponse;

    of_run_id!();

    fn logged(&self, record: Asked) -> Asked {
        record.of_run(&self.run_id)
    }

    async fn serve(at: Api, run: RunId) -> Result<Self::Answer, Fault> {
        let view = at.supervisor.pause(run).await?;
        Ok(pb::PauseResponse {
            run: Some(run::run(view)),
        })
    }
}
