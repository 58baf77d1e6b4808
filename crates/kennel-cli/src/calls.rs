//! The commands that are one call and one print.

use crate::{
    args::{EnvArg, RunRef, RunRefs, SecretArg, SelectionArgs, Targets, of_enum},
    each::each,
    failure::Failure,
    link::{Link, new_request_id, print_exact, run_of},
    progress, render, run_env, secrets,
    selection::each_of,
    sentence, spec, values, words,
};
use clap::Args;
use kennel_client::Surroundings;
use kennel_lifecycle::TerminalSize;
use kennel_proto::pb::{self, AbortWait, for_each_run_request::Action};
use std::{path::PathBuf, time::Duration};

#[derive(Debug, Args)]
pub struct ResizeArgs {
    #[command(flatten)]
    pub(crate) run: RunRef,
    /// Rows and columns, such as 40x120
    #[arg(value_name = "ROWSxCOLS", value_parser = values::terminal_size)]
    pub(crate) size: TerminalSize,
    /// Resize the terminal of this attempt only [default: the current one]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) attempt: Option<u32>,
}

#[derive(Debug, Args)]
pub struct RestartRunArgs {
    #[command(flatten)]
    pub(crate) runs: Targets,
    /// Set a variable of an ended run's spec, because values are not stored; NAME takes its value from here. May be
    /// repeated
    #[arg(short, long = "env", value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<EnvArg>,
    /// Give the value of a secret that an ended run's caller had sent, because it is not stored: @FILE or env:VARIABLE from
    /// here, or nothing: the variable NAME from here. May be repeated
    #[arg(long, value_name = "NAME[=SOURCE]")]
    pub(crate) secret: Vec<SecretArg>,
    /// Take all variables of an ended run's spec from here, except those of --env
    #[arg(long)]
    pub(crate) inherit_env: bool,
    /// Read an ended run's standard input from FILE (`-`: from here), because input is not stored
    #[arg(long, value_name = "FILE")]
    pub(crate) input: Option<PathBuf>,
    /// Grace period between SIGTERM and SIGKILL; 0 kills at once [default: the run's own]
    #[arg(short = 't', long, aliases = ["time", "timeout", "grace-period"], value_name = "DURATION", value_parser = values::duration)]
    pub(crate) grace: Option<Duration>,
}

#[derive(Debug, Args)]
pub struct AbortArgs {
    #[command(flatten)]
    pub(crate) runs: Targets,
    /// Grace period between SIGTERM and SIGKILL; 0 kills at once [default: the run's own]
    #[arg(short = 't', long, aliases = ["time", "timeout", "grace-period"], value_name = "DURATION", value_parser = values::duration)]
    pub(crate) grace: Option<Duration>,
    /// What to wait for [default: tree-empty]
    #[arg(long, value_name = "WHAT", value_parser = of_enum("kennel.v1.AbortWait", AbortWait::from_str_name))]
    pub(crate) wait: Option<AbortWait>,
    /// Refuse a later spawn under an id that no run has [default: an unknown id is an error]
    #[arg(long)]
    pub(crate) fence: bool,
}

impl AbortArgs {
    /// The defaults for these runs.
    pub(crate) fn of(runs: Vec<String>) -> Self {
        Self {
            runs: Targets {
                runs,
                selection: SelectionArgs::default(),
            },
            grace: None,
            wait: None,
            fence: false,
        }
    }
}

pub(crate) async fn spawn(link: &Link, request: pb::SpawnRequest) -> Result<(), Failure> {
    let run = run_of(Box::pin(link.call(request)).await?.run)?;
    let shown = link.shown(&run, || format!("{}\n", run.run_id));
    let printed = print_exact(&shown);
    // The id is printed nowhere else.
    printed.map_err(|failure| failure.hint(format!("the run continues: kennel get {}", run.run_id)))
}

pub(crate) async fn get(link: &Link, runs: RunRefs) -> Result<u8, Failure> {
    each(link, &runs, async |run_id| {
        let run = run_of(link.ask(pb::GetRunRequest { run_id }).await?.run)?;
        Ok((link.shown_of(&run, &run, || render::run(&run)), 0))
    })
    .await
}

/// Exit code of a stop that is left for its node.
const QUEUED: u8 = 3;

pub(crate) async fn abort(link: &Link, args: AbortArgs) -> Result<u8, Failure> {
    let grace = spec::span(args.grace, "grace")?;
    let wait = args.wait.unwrap_or(pb::AbortWait::TreeEmpty);
    let if_unknown = if args.fence {
        pb::AbortUnknown::Fence
    } else {
        pb::AbortUnknown::Refuse
    };
    let request = pb::AbortRequest {
        grace,
        wait: wait.into(),
        if_unknown: if_unknown.into(),
        ..pb::AbortRequest::default()
    };
    let action = Action::Abort(pb::AbortRequest {
        request_id: new_request_id(),
        ..request.clone()
    });
    let ended = each_of(link, args.runs, action, async |run_id| {
        let request = pb::AbortRequest {
            run_id,
            request_id: new_request_id(),
            ..request.clone()
        };
        let answer = link.call(request).await.map_err(|failure| {
            let is_queued = failure.is("ABORT_QUEUED");
            if is_queued {
                failure.code(QUEUED)
            } else {
                failure
            }
        });
        stands(link, answer?.run)
    });
    progress::during("waiting for the end", Box::pin(ended)).await
}

/// Returns an answer with the state of a run.
pub(super) fn stands(link: &Link, run: Option<pb::Run>) -> Result<(String, u8), Failure> {
    let run = run_of(run)?;
    Ok((link.shown_of(&run, &run, || standing(&run)), 0))
}

pub(crate) async fn restart(
    link: &Link,
    args: RestartRunArgs,
    here: &Surroundings,
) -> Result<u8, Failure> {
    let env = run_env::values(args.env, here)?;
    let secrets = secrets::values(args.secret, here)?;
    let grace = spec::span(args.grace, "grace")?;
    // Input is read once, for all runs.
    let input = args.input.as_deref().map(spec::input).transpose()?;
    let initial_input = input.map(Into::into);
    let inherited = args.inherit_env.then_some(here);
    let action = Action::Restart(pb::RestartRequest {
        request_id: new_request_id(),
        grace,
        ..pb::RestartRequest::default()
    });
    each_of(link, args.runs, action, async |run_id| {
        let request = pb::RestartRequest {
            run_id,
            new_run_id: ulid::Ulid::generate().to_string(),
            env: env.clone().into_iter().collect(),
            initial_input: initial_input.clone(),
            secrets: (secrets.iter())
                .map(|(name, value)| (name.clone(), value.clone().into()))
                .collect(),
            request_id: new_request_id(),
            grace,
            expected_attempt: None,
        };
        restart_one(link, request, inherited).await
    })
    .await
}

/// Restarts the run of this request; `inherited`: where its variables have their values from.
async fn restart_one(
    link: &Link,
    mut restart: pb::RestartRequest,
    inherited: Option<&Surroundings>,
) -> Result<(String, u8), Failure> {
    let request = pb::GetRunRequest {
        run_id: restart.run_id.clone(),
    };
    let seen = run_of(link.ask(request).await?.run)?;
    if let Some(here) = inherited {
        let spec = seen.spec.clone().unwrap_or_default();
        let mut named = spec.env.unwrap_or_default().vars;
        named.extend(spec.inherited.unwrap_or_default().vars);
        for name in named.keys() {
            if let Some(value) = here.env.get(name) {
                let entry = restart.env.entry(name.clone());
                entry.or_insert_with(|| value.clone());
            }
        }
    }
    // The attempt number lets repeats restart the run only once.
    restart.expected_attempt = seen.current_attempt.map(|attempt| attempt.number);
    stands(link, link.call(restart).await?.run)
}

pub(crate) async fn interrupt(link: &Link, runs: Targets) -> Result<u8, Failure> {
    let action = Action::Interrupt(pb::InterruptRequest {
        request_id: new_request_id(),
        ..pb::InterruptRequest::default()
    });
    each_of(link, runs, action, async |run_id| {
        let request = pb::InterruptRequest {
            run_id,
            request_id: new_request_id(),
        };
        let response = link.ask(request).await?;
        let method = response.method();
        let run = run_of(response.run)?;
        let shown = || standing_with(&run, words::word(method.as_str_name()));
        Ok((link.shown_of(&run, &run, shown), 0))
    })
    .await
}

pub(crate) async fn resize(link: &Link, args: ResizeArgs) -> Result<(), Failure> {
    let request = pb::ResizeTerminalRequest {
        run_id: link.run_id(&args.run.run).await?,
        rows: args.size.rows.into(),
        cols: args.size.cols.into(),
        expected_attempt: args.attempt,
    };
    let run = run_of(link.ask(request).await?.run)?;
    let size = run.terminal_size.as_ref();
    let size = size.map(|size| format!(", terminal {}", sentence::of("terminalSize", size)));
    let shown = || standing_with(&run, &size.unwrap_or_default());
    link.print(&run, shown)
}

pub(crate) async fn pause(link: &Link, runs: Targets) -> Result<u8, Failure> {
    let action = Action::Pause(pb::PauseRequest::default());
    each_of(link, runs, action, async |run_id| {
        stands(link, link.ask(pb::PauseRequest { run_id }).await?.run)
    })
    .await
}

pub(crate) async fn resume(link: &Link, runs: Targets) -> Result<u8, Failure> {
    let action = Action::Resume(pb::ResumeRequest::default());
    each_of(link, runs, action, async |run_id| {
        stands(link, link.ask(pb::ResumeRequest { run_id }).await?.run)
    })
    .await
}

pub(crate) async fn remove(link: &Link, runs: Targets) -> Result<u8, Failure> {
    let action = Action::Remove(pb::RemoveRunRequest {
        request_id: new_request_id(),
        ..pb::RemoveRunRequest::default()
    });
    each_of(link, runs, action, async |run_id| {
        let request = pb::RemoveRunRequest {
            run_id: run_id.clone(),
            request_id: new_request_id(),
        };
        match link.call(request).await {
            // The run was removed meanwhile, or by this request before its answer was lost.
            Err(failure) if !failure.is("RUN_NOT_FOUND") => Err(failure),
            _ => {
                let removed = pb::RemoveRunResponse { run_id };
                Ok((link.shown(&removed, || format!("{}\n", removed.run_id)), 0))
            }
        }
    })
    .await
}

pub(crate) async fn sweep(link: &Link) -> Result<(), Failure> {
    let swept = link.call(pb::SweepRunDirectoriesRequest {}).await?;
    link.print(&swept, || {
        let of = |count: u64, bytes| {
            let noun = if count == 1 {
                "directory"
            } else {
                "directories"
            };
            format!("{count} {noun} of runs, {}B", values::short_bytes(bytes))
        };
        format!(
            "removed {}\nkept {}: no record explains them\n",
            of(swept.removed, swept.removed_bytes),
            of(swept.unknown, swept.unknown_bytes)
        )
    })
}

fn standing_with(run: &pb::Run, more: &str) -> String {
    format!("{}{more}\n", standing(run).trim_end())
}

/// Formats the state of the run on one line; the id first, so that a script can cut it off.
pub(crate) fn standing(run: &pb::Run) -> String {
    let end = run.end_reason.as_ref().map(sentence::end_reason);
    let verdict = run.tree_verdict.as_ref().map(sentence::verdict);
    let mut line = format!("{} {}", run.run_id, words::state(run.state()));
    for more in [end, verdict.map(|v| format!("tree {v}"))]
        .into_iter()
        .flatten()
    {
        line.push_str(", ");
        line.push_str(&more);
    }
    line.push('\n');
    line
}
