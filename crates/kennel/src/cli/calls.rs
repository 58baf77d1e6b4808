//! The commands that are one call and one print.

use super::{
    link::{Link, print, print_exact, refused, run_of, soon},
    render, run_env, spec, words,
};
use crate::{
    args::{AbortArgs, AbortWaitArg, Format, PsArgs, ResizeArgs, RestartRunArgs, RunRef, StateArg},
    config::Surroundings,
    failure::Failure,
};
use kennel_client as client;
use kennel_client::Connection;
use kennel_proto::{json, pb};
use std::time::SystemTime;

/// Most that a server gives at once.
const PAGE_SIZE: i32 = 1000;

pub(crate) async fn spawn(link: &Link, request: pb::SpawnRequest) -> Result<(), Failure> {
    let response = spawned(&link.connection, &request).await.map_err(refused)?;
    let run = run_of(response.run)?;
    let printed = link.print(|| json::to_string(&run), || format!("{}\n", run.run_id));
    // The id is known nowhere else.
    printed.map_err(|failure| failure.hint(format!("the run goes on: kennel get {}", run.run_id)))
}

/// Under its run's id it is one spawn, whichever server answers.
pub(crate) async fn spawned(
    connection: &Connection,
    request: &pb::SpawnRequest,
) -> Result<pb::SpawnResponse, client::Failure> {
    let processes = connection.processes();
    client::over_loss(|| {
        let (mut processes, request) = (processes.clone(), request.clone());
        async move { processes.spawn(request).await }
    })
    .await
}

pub(crate) async fn ps(link: &Link, args: PsArgs) -> Result<(), Failure> {
    let states: &[pb::RunState] = if args.all || !args.states.is_empty() {
        &[]
    } else {
        &[
            pb::RunState::Starting,
            pb::RunState::Running,
            pb::RunState::Paused,
            pb::RunState::Stopping,
            pb::RunState::Backoff,
        ]
    };
    let asked = args.states.iter().map(|s| state(*s));
    let filter = pb::RunFilter {
        states: states
            .iter()
            .copied()
            .chain(asked)
            .map(Into::into)
            .collect(),
        kinds: Vec::new(),
        labels: args.labels.into_iter().collect(),
    };
    let mut runs = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = pb::ListRunsRequest {
            filter: Some(filter.clone()),
            page_size: PAGE_SIZE,
            page_token,
        };
        let page = link.connection.processes().list_runs(soon(request)).await;
        let page = page.map_err(refused)?.into_inner();
        runs.extend(page.runs);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    match link.format {
        Format::Json => {
            let lines = runs.iter().map(|run| json::to_string(run) + "\n");
            print_exact(&lines.collect::<String>())
        }
        Format::Text => print(&render::table(&runs, SystemTime::now())),
    }
}

fn state(state: StateArg) -> pb::RunState {
    match state {
        StateArg::Starting => pb::RunState::Starting,
        StateArg::Running => pb::RunState::Running,
        StateArg::Paused => pb::RunState::Paused,
        StateArg::Stopping => pb::RunState::Stopping,
        StateArg::Backoff => pb::RunState::Backoff,
        StateArg::Succeeded => pb::RunState::Succeeded,
        StateArg::Failed => pb::RunState::Failed,
        StateArg::Cancelled => pb::RunState::Cancelled,
        StateArg::Lost => pb::RunState::Lost,
    }
}

pub(crate) async fn get(link: &Link, args: RunRef) -> Result<(), Failure> {
    let request = pb::GetRunRequest { run_id: args.run };
    let response = link.connection.processes().get_run(soon(request)).await;
    let response = response.map_err(refused)?.into_inner();
    let run = run_of(response.run)?;
    link.print(|| json::to_string(&run), || render::run(&run))
}

pub(crate) async fn abort(link: &Link, args: AbortArgs) -> Result<(), Failure> {
    let grace = match args.grace {
        Some(grace) => Some(
            grace
                .try_into()
                .map_err(|_| Failure::new("the grace is too long"))?,
        ),
        None => None,
    };
    let wait = match args.wait {
        AbortWaitArg::None => pb::AbortWait::None,
        AbortWaitArg::LeaderExited => pb::AbortWait::LeaderExited,
        AbortWaitArg::TreeEmpty => pb::AbortWait::TreeEmpty,
    };
    let request = pb::AbortRequest {
        run_id: args.run,
        request_id: new_request_id(),
        grace,
        wait: wait.into(),
        if_unknown: if args.fence {
            pb::AbortUnknown::Fence
        } else {
            pb::AbortUnknown::Refuse
        }
        .into(),
    };
    let processes = link.connection.processes();
    // The stop goes on without a server, and under its request id it is the same one for the next.
    let answered = client::outlast(|| {
        let (mut processes, request) = (processes.clone(), request.clone());
        async move { processes.abort(request).await }
    });
    let response = answered.await.map_err(refused)?;
    let run = run_of(response.run)?;
    link.print(|| json::to_string(&run), || standing(&run))
}

pub(crate) async fn restart(
    link: &Link,
    args: RestartRunArgs,
    here: &Surroundings,
) -> Result<(), Failure> {
    let mut env = run_env::values(args.env, here)?;
    let too_long = |_| Failure::new("the grace is too long");
    let request = pb::GetRunRequest {
        run_id: args.run.clone(),
    };
    let mut processes = link.connection.processes();
    let seen = processes.get_run(soon(request)).await.map_err(refused)?;
    let seen = run_of(seen.into_inner().run)?;
    if args.inherit_env {
        let named = seen.spec.as_ref().and_then(|spec| spec.env.as_ref());
        for name in named.iter().flat_map(|env| env.vars.keys()) {
            if let Some(value) = here.env.get(name) {
                env.entry(name.clone()).or_insert_with(|| value.clone());
            }
        }
    }
    let initial_input = (args.input.as_deref())
        .map(spec::input)
        .transpose()?
        .map(Into::into);
    let request = pb::RestartRequest {
        run_id: args.run,
        new_run_id: ulid::Ulid::generate().to_string(),
        env: env.into_iter().collect(),
        initial_input,
        request_id: new_request_id(),
        grace: args
            .grace
            .map(TryInto::try_into)
            .transpose()
            .map_err(too_long)?,
        // So that it is one restart, whichever server answers.
        expected_attempt: seen.current_attempt.map(|attempt| attempt.number),
    };
    let answered = client::outlast(|| {
        let (mut processes, request) = (processes.clone(), request.clone());
        async move { processes.restart(request).await }
    });
    let response = answered.await.map_err(refused)?;
    let run = run_of(response.run)?;
    link.print(|| json::to_string(&run), || standing(&run))
}

pub(crate) async fn interrupt(link: &Link, args: RunRef) -> Result<(), Failure> {
    let request = pb::InterruptRequest {
        run_id: args.run,
        request_id: new_request_id(),
    };
    let processes = link.connection.processes();
    let answered = client::over_loss(|| {
        let (mut processes, request) = (processes.clone(), request.clone());
        async move { processes.interrupt(soon(request)).await }
    });
    let response = answered.await.map_err(refused)?;
    let method = response.method();
    let run = run_of(response.run)?;
    let shown = || {
        format!(
            "{}{}",
            standing(&run).trim_end(),
            words::interrupted(method)
        )
    };
    link.print(|| json::to_string(&run), || shown() + "\n")
}

pub(crate) async fn resize(link: &Link, args: ResizeArgs) -> Result<(), Failure> {
    let request = pb::ResizeTerminalRequest {
        run_id: args.run,
        rows: args.size.rows.into(),
        cols: args.size.cols.into(),
        expected_attempt: args.attempt,
    };
    let processes = link.connection.processes();
    let answered = client::over_loss(|| {
        let (mut processes, request) = (processes.clone(), request.clone());
        async move { processes.resize_terminal(soon(request)).await }
    });
    let response = answered.await.map_err(refused)?;
    let run = run_of(response.run)?;
    let size = run.terminal_size.map(words::terminal_size);
    let size = size.map(|size| format!(", terminal {size}"));
    let shown = || {
        format!(
            "{}{}\n",
            standing(&run).trim_end(),
            size.clone().unwrap_or_default()
        )
    };
    link.print(|| json::to_string(&run), shown)
}

pub(crate) async fn pause(link: &Link, args: RunRef) -> Result<(), Failure> {
    let request = pb::PauseRequest { run_id: args.run };
    let response = link.connection.processes().pause(soon(request)).await;
    let response = response.map_err(refused)?.into_inner();
    let run = run_of(response.run)?;
    link.print(|| json::to_string(&run), || standing(&run))
}

pub(crate) async fn resume(link: &Link, args: RunRef) -> Result<(), Failure> {
    let request = pb::ResumeRequest { run_id: args.run };
    let response = link.connection.processes().resume(soon(request)).await;
    let response = response.map_err(refused)?.into_inner();
    let run = run_of(response.run)?;
    link.print(|| json::to_string(&run), || standing(&run))
}

pub(crate) async fn status(link: &Link) -> Result<(), Failure> {
    let request = pb::GetServerInfoRequest {};
    let response = link.connection.admin().get_server_info(soon(request)).await;
    let response = response.map_err(refused)?.into_inner();
    let Some(server) = response.server else {
        return Err(Failure::new("the server's answer says nothing about it"));
    };
    link.print(
        || json::to_string(&server),
        || render::server(&server, &link.address),
    )
}

/// Where the run stands, on one line; the id first, so that a script can cut it off.
pub(crate) fn standing(run: &pb::Run) -> String {
    let end = run.end_reason.as_ref().map(words::end_reason);
    let verdict = run.tree_verdict.as_ref().map(words::verdict);
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

/// So that a call that is repeated below us acts once.
pub(crate) fn new_request_id() -> String {
    ulid::Ulid::generate().to_string()
}
