//! The command line that calls a server: commands, flags, printing. It uses the contract and the Rust client alone;
//! commands that need a server's code are the binary's, which hands its part over as a [`Binary`].

// `println!` and `eprintln!` panic where nothing reads.
#![warn(clippy::print_stdout, clippy::print_stderr)]
#![expect(
    clippy::must_use_candidate,
    clippy::return_self_not_must_use,
    reason = "only the binary calls this"
)]
#![expect(
    clippy::doc_markdown,
    reason = "comments of flags are printed as help, where backticks would show"
)]

mod annotate;
mod args;
mod attach;
mod audit;
mod calls;
mod certs;
mod command;
mod commands;
mod complete;
mod consumers;
mod context;
mod detach_keys;
mod doctor;
mod drain;
mod each;
mod ends;
mod event_line;
mod exit;
mod extend;
pub mod failure;
mod follow;
mod inbox;
mod limits;
mod line;
mod link;
mod list;
mod logs;
mod members;
mod nodes;
mod progress;
mod refusal;
mod render;
mod run;
mod run_env;
mod run_input;
mod run_signals;
mod screen;
mod secrets;
mod selection;
pub mod sentence;
mod sink;
mod spec;
mod status;
mod table;
mod template;
pub mod terminal_text;
mod top;
mod upgrade;
pub mod values;
mod version;
mod view;
mod wait;
mod wait_output;
mod which;
mod why;
pub mod words;
mod write;

pub use args::{Cli, ClientArgs, Format, HABITS, in_groups, with_texts};
pub use audit::AuditArgs;
pub use commands::Command;
pub use complete::answer_shell;
pub use ends::Ends;
pub use exit::{Exit, OWN_FAILURE};
pub use failure::Failure;
pub use line::{command_of, expanded, not_understood};
pub use link::{Link, print, print_exact, refused, run_of};
pub use progress::during;
pub use run::run;

use args::RunArgs;
use clap::Parser as _;
use context::ContextCommand;
use kennel_client::{Connection, Surroundings};
use kennel_proto::pb;
use nodes::NodeCommand;
use std::{ffi::OsString, process::ExitCode};

/// Exit code of an invalid command line.
pub const USAGE: u8 = 2;

/// The binary around this command line: its build, and what needs a server's code.
pub trait Binary {
    /// The commit that it was built from.
    const COMMIT: &'static str;
    /// Its build: profile, target and compiler.
    const BUILD: &'static str;

    /// Runs a command without a server: with one of its own, for this one run.
    fn run_without_server(
        request: pb::SpawnRequest,
        format: Format,
    ) -> impl Future<Output = Result<Exit, Failure>>;

    /// Describes the processes that may have been left behind, as far as they are found without a server.
    fn leftovers() -> String;
}

/// Executes one command.
pub fn main<B: Binary>(client: &ClientArgs, command: Command, here: &Surroundings) -> ExitCode {
    let format = client.output.clone().unwrap_or_default();
    match command {
        // `run` exits as its command did: its own failures have a separate code.
        Command::Run(args) => carry_out(true, &format, perform_run::<B>(client, *args, here)),
        command => carry_out(false, &format, perform::<B>(client, command, here)),
    }
}

/// Drives the work of a command to its end, and returns the exit code of this process.
pub fn carry_out<E: Into<Exit>>(
    is_run: bool,
    format: &Format,
    work: impl Future<Output = Result<E, Failure>>,
) -> ExitCode {
    // With a second thread, signals are forwarded while a write to a slow reader blocks the first.
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
        Err(failure) if is_run => failure.or_code(OWN_FAILURE).report_in(format),
        Err(failure) => failure.report_in(format),
    }
}

/// Runs a command, as `kennel run` does, at a server that ends with this process.
pub async fn run_command(
    connection: Connection,
    command: &[OsString],
    here: &Surroundings,
) -> Result<u8, Failure> {
    let words = ["kennel", "run", "--"].map(OsString::from).into_iter();
    let typed = Cli::try_parse_from(words.chain(command.iter().cloned()));
    let Ok(Command::Run(args)) = typed.map(|typed| typed.command) else {
        return Err(Failure::new("the command cannot be used").code(USAGE));
    };
    let request = spec::of_run(args.spec, here)?;
    let link = Link::own(connection, Format::default());
    Box::pin(run(&link, request)).await.map(Exit::code)
}

async fn perform_run<B: Binary>(
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
        None => Box::pin(B::run_without_server(request, format)).await,
    }
}

async fn perform<B: Binary>(
    client: &ClientArgs,
    command: Command,
    here: &Surroundings,
) -> Result<u8, Failure> {
    let format = client.output.clone().unwrap_or_default();
    let open = || Link::open(client, format.clone(), here);
    let done = |()| 0;
    // Output of these commands has one purpose, for which another format is useless.
    let is_plain = matches!(
        &command,
        Command::Certs(_) | Command::Completions(_) | Command::Context(ContextCommand::Show { .. })
    ) || matches!(&command, Command::Kill(args) if args.list);
    if is_plain {
        Failure::unless_text(&format)?;
    }
    match command {
        Command::Spawn(args) => {
            let request = spec::of_spawn(*args, here)?;
            let link = open().await?;
            let request = link.with_parent(request).await?;
            Box::pin(calls::spawn(&link, request)).await.map(done)
        }
        Command::Which(args) => {
            let request = spec::of_run(*args, here)?;
            which::which(&open().await?, request).await.map(done)
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
        Command::Rm(runs) => calls::remove(&open().await?, runs).await,
        Command::Sweep => calls::sweep(&open().await?).await.map(done),
        Command::Inbox(args) => inbox::inbox(&open().await?, args).await.map(done),
        Command::Answer(args) => inbox::answer(&open().await?, args).await.map(done),
        Command::Attach(args) => attach::attach(&open().await?, args).await,
        Command::Screen(run) => screen::screen(&open().await?, run).await.map(done),
        Command::Resize(args) => calls::resize(&open().await?, args).await.map(done),
        Command::Restart(args) => calls::restart(&open().await?, args, here).await,
        Command::Write(args) => write::write(&open().await?, args).await.map(done),
        Command::Wait(args) => wait::wait(open, args).await,
        Command::WaitOutput(args) => wait_output::wait_output(&open().await?, args).await,
        Command::Extend(args) => extend::extend(&open().await?, args).await.map(done),
        Command::Annotate(args) => annotate::annotate(&open().await?, args).await,
        Command::Logs(args) => logs::logs(&open().await?, args).await.map(done),
        Command::Events(args) => follow::events(&open().await?, args).await.map(done),
        Command::Consumers(command) => {
            let link = open().await?;
            consumers::consumers(&link, command).await.map(done)
        }
        Command::Status(args) => status::status(&open().await?, args).await,
        Command::Version => version::version::<B>(open().await, &format).await.map(done),
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
            Err(no_server) => {
                if format.is_text() {
                    // Standard output may be closed; the failure is reported in any case.
                    let _ = print(&B::leftovers());
                }
                Err(no_server)
            }
        },
        Command::Audit(args) => audit::audit(&open().await?, args).await.map(done),
        Command::Reap(args) => doctor::reap(&open().await?, args).await,
        Command::Run(_) => unreachable!("main carries out `run`"),
    }
}

fn completions(shell: clap_complete::Shell) -> Result<(), Failure> {
    let script = complete::script(&shell.to_string());
    let script = script.ok_or_else(|| Failure::new(format!("there is no script for {shell}")))?;
    link::print_exact(&script)
}
