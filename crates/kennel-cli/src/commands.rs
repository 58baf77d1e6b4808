//! The commands that call a server: each with the flags of its own file.

use crate::{
    annotate::AnnotateArgs,
    args::{RunArgs, RunRef, RunRefs, SpecArgs, Targets},
    attach::AttachArgs,
    audit::AuditArgs,
    calls::{AbortArgs, ResizeArgs, RestartRunArgs},
    certs::CertsCommand,
    complete::CompletionsArgs,
    consumers::ConsumersCommand,
    context::ContextCommand,
    doctor::{DoctorArgs, ReapArgs},
    drain::{DrainArgs, WhichNode},
    extend::ExtendArgs,
    follow::EventsArgs,
    inbox::{AnswerArgs, InboxArgs},
    list::PsArgs,
    logs::LogsArgs,
    members::{KillArgs, SignalArgs},
    nodes::NodeCommand,
    status::StatusArgs,
    top::TopArgs,
    wait::WaitArgs,
    wait_output::WaitOutputArgs,
    why::WhyArgs,
    write::WriteArgs,
};
use clap::Subcommand;

#[derive(Debug, Subcommand)]
/// Commands that call a server.
pub enum Command {
    /// Run a command and pass on its output and its exit code
    Run(Box<RunArgs>),
    /// Start a command in the background and print the run's id
    #[command(visible_alias = "add")]
    Spawn(Box<SpecArgs>),
    /// Print the file that a command is, as `run` with these flags would execute it
    Which(Box<SpecArgs>),
    /// List runs, newest first
    #[command(visible_aliases = ["ls", "list"])]
    Ps(PsArgs),
    /// Watch the runs and their use of resources; `?` shows the keys
    #[command(alias = "stats")]
    Top(TopArgs),
    /// Show all details of runs
    #[command(visible_aliases = ["inspect", "describe", "show"])]
    Get(RunRefs),
    /// End runs: SIGTERM to all processes, after the grace period SIGKILL
    #[command(visible_alias = "stop")]
    Abort(AbortArgs),
    /// End runs as `abort` does, or send them a signal: kill -s USR1 RUN, kill -9 RUN
    Kill(KillArgs),
    /// Send SIGINT to the command's process group once; type Ctrl-C if the run has a terminal
    Interrupt(Targets),
    /// Send a signal to processes of runs and print the result for each
    Signal(SignalArgs),
    /// Show the processes of runs: their use of resources and their listening sockets
    Tree(RunRefs),
    /// Explain why a run ended, or why it is in its current state
    Why(WhyArgs),
    /// Pause all processes of runs until `resume`
    #[command(aliases = ["suspend", "freeze"])]
    Pause(Targets),
    /// Continue paused runs
    #[command(aliases = ["unpause", "continue", "thaw"])]
    Resume(Targets),
    /// Remove ended runs: their record and their output
    #[command(aliases = ["remove", "delete", "del"])]
    Rm(Targets),
    /// Remove directories of runs that a crash or a disk error has left, and count those that no record explains
    Sweep,
    /// Write to the standard input of a run started with --stdin, or to the terminal of one started with --tty
    Write(WriteArgs),
    /// List the runs that wait for input and what they ask, the oldest question first
    Inbox(InboxArgs),
    /// Answer the question of a run, if it still waits
    #[command(alias = "reply")]
    Answer(AnswerArgs),
    /// Attach this terminal to the terminal of a run; ctrl-p ctrl-q detaches
    Attach(AttachArgs),
    /// Print the screen of the terminal of a run
    Screen(RunRef),
    /// Resize the terminal of a run
    Resize(ResizeArgs),
    /// Restart runs: start the next attempt now; if a run has ended, start a new run from its spec
    Restart(RestartRunArgs),
    /// Wait for runs to end, or for another condition
    Wait(WaitArgs),
    /// Wait until a run writes a line that matches, and print it
    WaitOutput(WaitOutputArgs),
    /// Set or remove annotations of a run and print all of them
    Annotate(AnnotateArgs),
    /// Extend limits of time of a run: each ends this long from now, or later
    Extend(ExtendArgs),
    /// Print the output of runs
    #[command(visible_alias = "tail", alias = "log")]
    Logs(LogsArgs),
    /// Print the events of runs, one per line
    #[command(alias = "watch")]
    Events(EventsArgs),
    /// List, show or delete named readers of events and their positions
    #[command(subcommand)]
    Consumers(ConsumersCommand),
    /// List, show and choose servers by name
    #[command(subcommand)]
    Context(ContextCommand),
    /// Make certificates and tokens for servers and clients on the network
    #[command(subcommand)]
    Certs(CertsCommand),
    /// Print the completion script of a shell
    #[command(alias = "completion")]
    Completions(CompletionsArgs),
    /// Show the state of the server, or of runs
    #[command(alias = "info")]
    Status(StatusArgs),
    /// Print version, commit and build of this binary, and the version of the server
    Version,
    /// Replace the running server with the installed binary; runs are not interrupted
    Upgrade,
    /// Search for processes that runs left behind, and list what could not be checked
    Doctor(DoctorArgs),
    /// List the nodes of the database
    Nodes,
    /// List nodes, or forget one that does not come back
    #[command(subcommand)]
    Node(NodeCommand),
    /// Drain the node: refuse new runs and let the present ones finish, or end them
    Drain(DrainArgs),
    /// Accept new runs on the node again; runs that a drain has begun to end continue to their end
    Undrain(WhichNode),
    /// Print the audit log: requests, signals and events of the service
    Audit(AuditArgs),
    /// End processes that runs left behind; without --yes, list them only
    Reap(ReapArgs),
}
