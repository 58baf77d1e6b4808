//! `kennel wait`: for the end of a run with the exit code of its command, or for another condition.

use super::{
    calls::standing,
    link::{Link, refused, run_of},
    run, words,
};
use crate::{
    args::{ConditionArg, WaitArgs},
    failure::Failure,
};
use kennel_client as client;
use kennel_proto::{json, pb};

/// Exit code of a wait for what can no longer occur.
const NOT_REACHED: u8 = 3;

pub(crate) async fn wait(
    open: impl AsyncFnOnce() -> Result<Link, Failure>,
    args: WaitArgs,
) -> Result<u8, Failure> {
    let for_end = args.condition == ConditionArg::Ended;
    let code = |failure: Failure| {
        if for_end {
            // All others are codes of commands.
            failure.or_code(run::OWN_FAILURE)
        } else {
            failure
        }
    };
    let link = open().await.map_err(code)?;
    let run = reach(&link, args).await.map_err(code)?;
    if for_end {
        return run::exit_of(&run);
    }
    Ok(0)
}

/// The run, for which the condition holds.
async fn reach(link: &Link, args: WaitArgs) -> Result<pb::Run, Failure> {
    let condition = match args.condition {
        ConditionArg::Started => pb::WaitCondition::Started,
        ConditionArg::Paused => pb::WaitCondition::Paused,
        ConditionArg::LeaderExited => pb::WaitCondition::LeaderExited,
        ConditionArg::StreamsClosed => pb::WaitCondition::StreamsClosed,
        ConditionArg::TreeEmpty => pb::WaitCondition::TreeEmpty,
        ConditionArg::Ended => pb::WaitCondition::Ended,
    };
    let request = pb::WaitRunRequest {
        run_id: args.run,
        condition: condition.into(),
    };
    let processes = link.connection.processes();
    let answered = client::outlast(|| {
        let (mut processes, request) = (processes.clone(), request.clone());
        async move { processes.wait_run(request).await }
    });
    let response = answered.await.map_err(refused)?;
    let run = run_of(response.run)?;
    link.print(|| json::to_string(&run), || standing(&run))?;
    if response.reached {
        Ok(run)
    } else {
        Err(Failure::new(format!(
            "run {} is {}: what was waited for can no longer occur",
            run.run_id,
            words::state(run.state())
        ))
        .code(NOT_REACHED))
    }
}
