//! The commands that call a server. They use the Rust client alone, print, and never touch store or processes.

/// Makes a call repeatedly, as the named function of the client decides: each time from clones of stub and request.
macro_rules! repeated {
    ($repeat:path, $stub:ident.$call:ident(soon($request:ident))) => {
        $repeat(|| {
            let (mut stub, request) = ($stub.clone(), $request.clone());
            async move { stub.$call(soon(request)).await }
        })
    };
    ($repeat:path, $stub:ident.$call:ident($request:ident)) => {
        $repeat(|| {
            let (mut stub, request) = ($stub.clone(), $request.clone());
            async move { stub.$call(request).await }
        })
    };
}

mod annotate;
mod attach;
mod audit;
mod calls;
pub(crate) mod certs;
mod command;
mod consumers;
mod context;
mod doctor;
mod drain;
mod each;
mod event_line;
mod extend;
mod follow;
mod limits;
mod link;
mod list;
mod logs;
mod members;
mod nodes;
mod progress;
mod ready;
mod refusal;
mod render;
mod run;
mod run_env;
mod run_input;
mod run_signals;
mod screen;
mod secrets;
mod settings;
mod sink;
mod spec;
mod status;
mod table;
mod top;
mod upgrade;
mod usage;
mod view;
mod wait;
mod wait_output;
mod why;
pub(crate) mod words;
mod write;

use crate::{
    args::{
        AuditArgs, ClientArgs, Command, ContextCommand, Format, NodeCommand, RunArgs, SpecArgs,
    },
    complete,
    config::Surroundings,
    failure::Failure,
};
use kennel_client::Connection;
use std::process::ExitCode;

pub(crate) use calls::spawned;
pub(crate) use command::or_dash as command_of;
pub(crate) use link::{Link, print, print_exact, refused, run_of};
pub(crate) use list::all as list_all;
pub(crate) use progress::during;
pub(crate) use run::{Exit, OWN_FAILURE};
pub(crate) use settings::config;

/// Executes one command; `command` is not one that serves.
pub(crate) fn main(client: &ClientArgs, command: Command, here: &Surroundings) -> ExitCode {
    match command {
        // It exits as its command did: its own failures have a separate code.
        Command::Run(args) => carry_out(true, perform_run(client, *args, here)),
        command => carry_out(false, perform(client, command, here)),
    }
}

/// Drives the work of a command to its end, and returns the exit code of this process.
pub(crate) fn carry_out<E: Into<Exit>>(
    is_run: bool,
    work: impl Future<Output = Result<E, Failure>>,
) -> ExitCode {
    // A second thread, so that signals are forwarded while a write to a slow reader blocks the first.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    let result = match runtime {
        Ok(runtime) => {
            let result = runtime.block_on(work);
            runtime.shutdown_background();
            result
        }
        Err(cause) => Err(Failure::new(format!("cannot start: {cause}"))),
    };
    match result {
        Ok(exit) => exit.into().repeat(),
        Err(failure) if is_run => failure.or_code(OWN_FAILURE).report(),
        Err(failure) => failure.report(),
    }
}

/// Runs a command at a server that ends with this process.
pub(crate) async fn run_through(
    connection: Connection,
    spec: SpecArgs,
    here: &Surroundings,
) -> Result<u8, Failure> {
    let request = spec::of_run(spec, here)?;
    let link = Link::own(connection, Format::default());
    Box::pin(run::run(&link, request)).await.map(Exit::code)
}

async fn perform_run(
    client: &ClientArgs,
    args: RunArgs,
    here: &Surroundings,
) -> Result<Exit, Failure> {
    let format = client.output.clone().unwrap_or_default();
    let own = |failure: Failure| failure.code(OWN_FAILURE);
    // Errors of a spec are reported with or without a server.
    if args.detach {
        let request = spec::of_spawn(args.spec, here)?;
        let link = Link::open(client, format, here).await.map_err(own)?;
        let request = link.with_parent(request).await?;
        Box::pin(calls::spawn(&link, request)).await?;
        return Ok(Exit::Code(0));
    }
    let request = spec::of_run(args.spec, here)?;
    let opened = Link::open_if_there(client, format.clone(), here).await;
    match opened.map_err(own)? {
        Some(link) => {
            let request = link.with_parent(request).await.map_err(own)?;
            Box::pin(run::run(&link, request)).await
        }
        None => Box::pin(run::run_alone(request, format)).await,
    }
}

async fn perform(
    client: &ClientArgs,
    command: Command,
    here: &Surroundings,
) -> Result<u8, Failure> {
    let format = client.output.clone().unwrap_or_default();
    let open = || Link::open(client, format.clone(), here);
    let done = |()| 0;
    // Their text has one purpose, for which another form is of no use.
    let is_plain = matches!(
        &command,
        Command::Certs(_) | Command::Completions(_) | Command::Context(ContextCommand::Show { .. })
    ) || matches!(&command, Command::Kill(args) if args.list)
        || matches!(&command, Command::Audit(args) if args.verify.is_some() || args.export.is_some());
    if is_plain && !format.is_text() {
        let failure = Failure::new("this command has no form for programs");
        return Err(failure.hint("leave --output out").code(crate::USAGE));
    }
    match command {
        Command::Spawn(args) => {
            let request = spec::of_spawn(*args, here)?;
            let link = open().await?;
            let request = link.with_parent(request).await?;
            Box::pin(calls::spawn(&link, request)).await.map(done)
        }
        Command::Ps(args) => {
            let (link, node) = Link::open_any(client, format.clone(), here).await?;
            list::ps(&link, args, node).await.map(done)
        }
        Command::Get(runs) => calls::get(&open().await?, runs).await,
        Command::Abort(args) => calls::abort(&open().await?, args).await,
        Command::Kill(args) if args.list => members::list_signals().map(done),
        Command::Kill(args) => members::kill(&open().await?, args).await,
        Command::Interrupt(runs) => calls::interrupt(&open().await?, runs).await,
        Command::Signal(args) => members::signal(&open().await?, args).await,
        Command::Tree(runs) => members::tree(&open().await?, runs).await,
        Command::Top(args) => top::top(&open().await?, args).await.map(done),
        Command::Why(args) => why::why(&open().await?, args).await,
        Command::Pause(runs) => calls::pause(&open().await?, runs).await,
        Command::Resume(runs) => calls::resume(&open().await?, runs).await,
        Command::Attach(args) => attach::attach(&open().await?, args).await,
        Command::Screen(run) => screen::screen(&open().await?, run).await.map(done),
        Command::Resize(args) => calls::resize(&open().await?, args).await.map(done),
        Command::Restart(args) => calls::restart(&open().await?, args, here).await,
        Command::Write(args) => write::write(&open().await?, args).await.map(done),
        Command::Wait(args) => wait::wait(open, args).await,
        Command::WaitOutput(args) => wait_output::wait_output(&open().await?, args).await,
        Command::Extend(args) => extend::extend(&open().await?, args).await.map(done),
        Command::Annotate(args) => annotate::annotate(&open().await?, args).await.map(done),
        Command::Logs(args) => logs::logs(&open().await?, args).await.map(done),
        Command::Events(args) => follow::events(&open().await?, args).await.map(done),
        Command::Consumers(command) => {
            let link = open().await?;
            consumers::consumers(&link, command).await.map(done)
        }
        Command::Status(args) => status::status(&open().await?, args).await,
        Command::Version => calls::version(open().await, &format).await.map(done),
        Command::Upgrade => upgrade::upgrade(&open().await?).await.map(done),
        Command::Nodes | Command::Node(NodeCommand::Ls) => {
            nodes::nodes(&open().await?).await.map(done)
        }
        Command::Node(NodeCommand::Forget { name, remove }) => {
            nodes::forget(&open().await?, name, remove).await.map(done)
        }
        Command::Drain(args) => {
            let link = open().await?.at_node(args.which.name.as_deref())?;
            drain::drain(&link, args).await.map(done)
        }
        Command::Undrain(which) => {
            let link = open().await?.at_node(which.name.as_deref())?;
            drain::undrain(&link).await.map(done)
        }
        Command::Context(command) => context::context(client, command, here).map(done),
        Command::Certs(command) => certs::certs(command).map(done),
        Command::Completions(args) => completions(args.shell).map(done),
        Command::Doctor(_) => match open().await {
            Ok(link) => doctor::doctor(&link).await,
            Err(no_server) => Err(doctor::doctor_alone(no_server, &format)),
        },
        Command::Audit(AuditArgs {
            verify: Some(data_dir),
            head,
            ..
        }) => audit::verify(&data_dir, head.as_ref()).map(done),
        Command::Audit(AuditArgs {
            export: Some(data_dir),
            after,
            ..
        }) => audit::export(&data_dir, after).map(done),
        Command::Audit(args) => audit::audit(&open().await?, args).await.map(done),
        Command::Reap(args) => doctor::reap(&open().await?, args).await,
        Command::Run(_)
        | Command::Serve(_)
        | Command::Server(_)
        | Command::Config(_)
        | Command::Migrate(_) => {
            unreachable!("main carries out what asks no server, and `run`")
        }
    }
}

fn completions(shell: clap_complete::Shell) -> Result<(), Failure> {
    let script = complete::script(&shell.to_string());
    let script = script.ok_or_else(|| Failure::new(format!("there is no script for {shell}")))?;
    link::print_exact(&script)
}
