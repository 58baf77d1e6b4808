//! The command line: commands, flags, and the text of `--help`.

#![expect(
    clippy::doc_markdown,
    reason = "these comments are printed as help, where backticks would show"
)]

mod control;
mod elsewhere;
mod flags;
mod form;
mod host;
mod network;
mod output;
mod read;
mod run;
mod secrets;
mod target;

pub use elsewhere::HABITS;
pub(crate) use elsewhere::explain;
pub use form::Format;
pub use read::AuditArgs;

pub(crate) use control::{
    AbortArgs, AnswerArgs, AttachArgs, ExtendArgs, KillArgs, ResizeArgs, RestartRunArgs,
    SignalArgs, WaitArgs, WriteArgs,
};
pub(crate) use flags::in_place_of_fields;
pub(crate) use host::{CompletionsArgs, DoctorArgs, DrainArgs, ReapArgs, StatusArgs, WhichNode};
pub(crate) use network::{
    CertsCommand, ContextCommand, MakeArgs, NewContext, RemoteArgs, RoleArg, RoleArgs,
};
pub(crate) use output::{AnnotateArgs, WaitOutputArgs};
pub(crate) use read::{
    AsConsumer, ConsumerRef, ConsumersCommand, EventsArgs, InboxArgs, LogsArgs, PsArgs, SortArg,
    TopArgs, WhichRuns, WhyArgs,
};
pub(crate) use run::{EnvArg, EnvModeArg, OnConflictArg, RunArgs, SpecArgs};
pub(crate) use secrets::{SecretArg, SecretArgs, SecretFrom};
pub(crate) use target::{FilterArgs, LabelArgs, RunRef, RunRefs, SelectionArgs, Targets};

use clap::{Args, Parser, Subcommand};
use kennel_client::{Context, Given};
use std::fmt::Write as _;

/// Owns processes and never loses one.
#[derive(Debug, Parser)]
#[command(name = "kennel", version, max_term_width = 100)]
pub struct Cli<C: Subcommand> {
    /// Flags of every command that calls a server.
    #[command(flatten)]
    pub client: ClientArgs,
    /// The command.
    #[command(subcommand)]
    pub command: C,
}

/// Flags of every command that calls a server.
#[derive(Debug, Args)]
pub struct ClientArgs {
    /// Server to use [env: KENNEL_SERVER] [default: the socket of `kennel serve`]
    #[arg(long, global = true, value_name = "unix:PATH|tcp://HOST:PORT")]
    pub(crate) server: Option<String>,
    /// UID that the server of a unix socket may run as, beside this user and root [env: KENNEL_SERVER_USER]
    #[arg(long, global = true, value_name = "UID")]
    pub(crate) server_user: Option<u32>,
    /// Node that the call is for, by name or id; the server forwards the call to it [env: KENNEL_NODE] [default: the
    /// server's own]
    #[arg(long, global = true, value_name = "NODE")]
    pub(crate) node: Option<String>,
    #[command(flatten)]
    pub(crate) remote: RemoteArgs,
    /// Output format: text, wide, name, json, yaml, jsonpath='{.state}', or a template such as '{{.state}}'
    #[arg(
        short,
        long,
        global = true,
        visible_alias = "format",
        value_name = "FORM"
    )]
    pub output: Option<Format>,
}

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

#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// List the nodes of the database, as `kennel nodes` does
    #[command(alias = "list")]
    Ls,
    /// Close the open runs of a node as lost; refused while the node has a lease
    Forget {
        /// Name or id of the node
        #[arg(value_name = "NODE")]
        name: String,
        /// Remove the node too; records of its runs stay
        #[arg(long)]
        remove: bool,
    },
}

impl ClientArgs {
    /// Whether any of them was given.
    pub fn any(&self) -> bool {
        self.output.is_some() || self.given() != Given::default()
    }

    /// Returns the server and the credentials that were given.
    pub(crate) fn given(&self) -> Given {
        let remote = self.remote.clone();
        Given {
            context: remote.context,
            server_user: self.server_user,
            node: self.node.clone(),
            values: Context {
                server: self.server.clone().unwrap_or_default(),
                ca: remote.tls_ca,
                certificate: remote.tls_cert,
                key: remote.tls_key,
                server_name: remote.tls_server_name,
                token_file: remote.token_file,
            },
        }
    }
}

/// Texts after the help of commands.
const HELP: &str = include_str!("help.txt");

/// Adds to a command, and to those below it, what `help.txt` has in the section of its name: exit codes, details,
/// examples.
pub fn with_texts(command: clap::Command, name: &str) -> clap::Command {
    let command = command.after_help(section(&format!("kennel{name}")));
    command.mut_subcommands(|below| {
        let name = format!("{name} {}", below.get_name());
        with_texts(below, &name)
    })
}

/// Lists the commands in groups in the help of the whole.
pub fn in_groups(whole: clap::Command) -> clap::Command {
    let mut text = String::new();
    let groups = section("groups").lines();
    for (group, names) in groups.filter_map(|line| line.split_once(": ")) {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{group}:");
        for known in names
            .split(' ')
            .filter_map(|name| whole.find_subcommand(name))
        {
            let (name, about) = (known.get_name(), known.get_about().cloned());
            let aliases: Vec<&str> = known.get_visible_aliases().collect();
            let aliases = match &aliases[..] {
                [] => String::new(),
                aliases => format!(" [aliases: {}]", aliases.join(", ")),
            };
            let _ = writeln!(text, "  {name:12} {}{aliases}", about.unwrap_or_default());
        }
        text.push('\n');
    }
    let template = "{about}\n\n{usage-heading} {usage}\n\n";
    whole.help_template(format!(
        "{template}{text}Options:\n{{options}}{{after-help}}"
    ))
}

fn section(name: &str) -> &'static str {
    let (_, rest) = HELP
        .split_once(&format!("\n[{name}]\n"))
        .unwrap_or_default();
    rest.split("\n[").next().unwrap_or_default().trim()
}

#[cfg(test)]
mod tests;
