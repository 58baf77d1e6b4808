//! `kennel wait`: waits for the end of a run, with the exit code of its command, or for another condition.

use crate::{
    args::RunRefs,
    calls::standing,
    each::each,
    exit::{OWN_FAILURE, TIMED_OUT, exit_of},
    failure::Failure,
    link::{Link, print_exact, run_of},
    values, words,
};
use clap::{
    Args,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
};
use kennel_proto::pb::{self, WaitCondition};
use std::time::Duration;
use tokio::time::timeout;

#[derive(Debug, Args)]
pub struct WaitArgs {
    #[command(flatten)]
    pub(crate) runs: RunRefs,
    /// What to wait for [default: ended]
    #[arg(long = "for", ignore_case = true, value_name = "CONDITION", value_parser = condition())]
    pub(crate) condition: Option<WaitCondition>,
    /// Give up after this time with exit code 124; the runs continue
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) timeout: Option<Duration>,
}

/// Reads a condition; kubectl has other words for some.
fn condition() -> impl TypedValueParser<Value = WaitCondition> {
    let plain = [
        "started",
        "paused",
        "leader-exited",
        "streams-closed",
        "tree-empty",
    ];
    let ended = ["condition=complete", "condition=ended", "exit", "delete"];
    let others = [
        PossibleValue::new("ended").aliases(ended),
        PossibleValue::new("ready").alias("condition=ready"),
    ];
    let all = plain.map(PossibleValue::new).into_iter().chain(others);
    PossibleValuesParser::new(all).map(move |typed| {
        let name = match typed.to_lowercase().as_str() {
            "condition=ready" => "ready".to_owned(),
            other if ended.contains(&other) => "ended".to_owned(),
            other => other.replace('-', "_"),
        };
        let name = format!("WAIT_CONDITION_{}", name.to_uppercase());
        WaitCondition::from_str_name(&name).unwrap_or_default()
    })
}

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
            // All other codes are those of commands.
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
