//! `kennel wait`: waits for the end of a run, with the exit code of its command, or for another condition.

use super::{
    calls::standing,
    each::each,
    link::{Link, print_exact, run_of},
    words,
};
use crate::{
    args::WaitArgs,
    exit::{OWN_FAILURE, TIMED_OUT, exit_of},
    failure::Failure,
};
use kennel_proto::pb;
use std::time::Duration;
use tokio::time::timeout;

/// Exit code of a wait for a condition that can no longer occur.
const NOT_REACHED: u8 = 3;

pub(crate) async fn wait(
    open: impl AsyncFnOnce() -> Result<Link, Failure>,
    args: WaitArgs,
) -> Result<u8, Failure> {
    let condition = args.condition.unwrap_or(pb::WaitCondition::Ended);
    let for_end = condition == pb::WaitCondition::Ended;
    let code = |failure: Failure| {
        if for_end {
            // All others are codes of commands.
            failure.or_code(OWN_FAILURE)
        } else {
            failure
        }
    };
    let link = open().await.map_err(code)?;
    let patience = args.timeout.unwrap_or(Duration::MAX);
    let answered = each(&link, &args.runs, async |run_id| {
        let waited = timeout(patience, reach(&link, &run_id, condition)).await;
        let Ok(reached) = waited else {
            let missing = words::word(condition.as_str_name());
            let message = format!("run {run_id}: {patience:?} have passed, and {missing}");
            return Err(Failure::new(message).code(TIMED_OUT));
        };
        let run = reached.map_err(code)?;
        let shown = link.shown_of(&run, &run, || standing(&run));
        if !for_end {
            return Ok((shown, 0));
        }
        match exit_of(&run) {
            Ok(exit) => Ok((shown, exit.code())),
            Err(failure) => {
                print_exact(&shown)?;
                Err(failure)
            }
        }
    });
    answered.await.map_err(code)
}

/// Waits for the condition, and returns the run.
async fn reach(
    link: &Link,
    run_id: &str,
    condition: pb::WaitCondition,
) -> Result<pb::Run, Failure> {
    let request = pb::WaitRunRequest {
        run_id: run_id.to_owned(),
        condition: condition.into(),
    };
    let response = link.call(request).await?;
    let run = run_of(response.run)?;
    if response.reached {
        return Ok(run);
    }
    print_exact(&link.shown_of(&run, &run, || standing(&run)))?;
    let state = words::state(run.state());
    let message = format!("run {run_id} is {state}: what was waited for can no longer occur");
    Err(Failure::new(message).code(NOT_REACHED))
}
