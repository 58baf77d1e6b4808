//! What can be typed: commands, flags, and the text of `--help`.

#![expect(
    clippy::doc_markdown,
    reason = "these comments are printed as help, where backticks would show"
)]

mod control;
mod elsewhere;
mod form;
mod help;
mod host;
mod read;
mod run;
mod serve;
mod target;

pub(crate) use control::{
    AbortArgs, AbortWaitArg, AttachArgs, ConditionArg, KillArgs, ResizeArgs, RestartRunArgs,
    SignalArgs, SignalTargetArg, WaitArgs, WriteArgs,
};
pub(crate) use elsewhere::explain;
pub(crate) use form::Format;
pub(crate) use host::{CompletionsArgs, DoctorArgs, DrainArgs, EvidenceArg, ReapArgs, StatusArgs};
pub(crate) use read::{
    AsConsumer, AuditArgs, ConsumerRef, ConsumersCommand, EventsArgs, LogsArgs, PsArgs, SortArg,
    StateArg, StreamArg, TopArgs, WhichRuns, WhyArgs,
};
pub(crate) use run::{
    ContainmentArg, DiskFullArg, EnvArg, EnvModeArg, KindArg, LeaderExitArg, LimitArgs,
    OnMaxPauseArg, OutputFullArg, PidNamespaceArg, RecoveryArg, RestartArg, RestartArgs, RunArgs,
    SpecArgs, TerminalArgs,
};
pub(crate) use serve::{CgroupUse, ConfigCommand, ServeArgs};
pub(crate) use target::{LabelArgs, RunRef, RunRefs};

use crate::settings;
use clap::{Args, CommandFactory as _, Parser, Subcommand};
use help::{
    ATTACH_HELP, COMPLETIONS_HELP, DOCTOR_CODES, DRAIN_CODES, EXIT_CODES, REAP_CODES, RUN_CODES,
    SERVE_CODES, UPGRADE_CODES, WAIT_CODES, WRITE_HELP,
};

/// Owns processes and never loses one.
#[derive(Debug, Parser)]
#[command(name = "kennel", version, long_version = crate::version::LONG, after_help = EXIT_CODES, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) client: ClientArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command that asks a server takes.
#[derive(Debug, Args)]
pub(crate) struct ClientArgs {
    /// Server to ask [env: KENNEL_SERVER] [default: the socket of `kennel serve`]
    #[arg(long, global = true, value_name = "unix:PATH")]
    pub(crate) server: Option<String>,
    /// Form of what is printed: text, wide, name, json, yaml, jsonpath='{.state}', or a template such as '{{.state}}'
    #[arg(
        short,
        long,
        global = true,
        visible_alias = "format",
        value_name = "FORM"
    )]
    pub(crate) output: Option<Format>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start the server and stay with it
    #[command(after_help = SERVE_CODES)]
    Serve(ServeArgs),
    /// The part of the service that the keeper starts
    #[command(hide = true)]
    Server(ServeArgs),
    /// Check or show the settings of `serve`: flags, variables, configuration file and defaults
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Run a command and stay with it: its output is ours, its exit code too
    #[command(after_help = RUN_CODES)]
    Run(Box<RunArgs>),
    /// Start a command, print the run's id and leave
    #[command(visible_alias = "add")]
    Spawn(Box<SpecArgs>),
    /// List runs, newest first
    #[command(visible_aliases = ["ls", "list"])]
    Ps(PsArgs),
    /// Watch the runs and what they use, live on this terminal; `?` shows the keys
    #[command(alias = "stats")]
    Top(TopArgs),
    /// Show all that is known of runs
    #[command(visible_aliases = ["inspect", "describe", "show"])]
    Get(RunRefs),
    /// End runs: SIGTERM to the whole tree, the grace, SIGKILL
    #[command(visible_alias = "stop")]
    Abort(AbortArgs),
    /// End runs as `abort` does, or send them a signal: kill -s USR1 RUN, kill -9 RUN
    Kill(KillArgs),
    /// Send SIGINT to the command's process group, once; on a terminal type the key for that, also where the command reads its
    /// keys itself
    Interrupt(RunRefs),
    /// Send one signal to processes of a run, and say what came of it for each
    Signal(SignalArgs),
    /// Show the processes of a run: who holds them, what they take, where they listen
    Tree(RunRefs),
    /// Say why a run has ended, or stands as it does: who asked, what was done, what is known and what is not
    Why(WhyArgs),
    /// Stop every process of a run until `resume`
    #[command(alias = "suspend")]
    Pause(RunRefs),
    /// Continue paused runs
    #[command(aliases = ["unpause", "continue"])]
    Resume(RunRefs),
    /// Write to the standard input of a run that was started with --stdin, or type on the terminal of one with --tty
    #[command(after_help = WRITE_HELP)]
    Write(WriteArgs),
    /// Make this terminal that of a run; ctrl-p ctrl-q leaves it
    #[command(after_help = ATTACH_HELP)]
    Attach(AttachArgs),
    /// Print what the terminal of a run shows
    Screen(RunRef),
    /// Make the terminal of a run another size
    Resize(ResizeArgs),
    /// Begin another attempt of a run that is started again: stops the present one, or waits no longer; of a run that has
    /// ended, make a new one
    Restart(RestartRunArgs),
    /// Wait for a condition of a run
    #[command(after_help = WAIT_CODES)]
    Wait(WaitArgs),
    /// Print what a run has written: byte for byte, or as plain text
    #[command(visible_alias = "tail", alias = "log")]
    Logs(LogsArgs),
    /// Print a run's events, one per line
    #[command(alias = "watch")]
    Events(EventsArgs),
    /// Readers of events that have a name, up to where each has acknowledged
    #[command(subcommand)]
    Consumers(ConsumersCommand),
    /// Print what makes a shell complete the words of kennel
    #[command(after_help = COMPLETIONS_HELP)]
    Completions(CompletionsArgs),
    /// Show what the server is, and whether it serves; with runs, show where they stand
    #[command(alias = "info")]
    Status(StatusArgs),
    /// Print the version, the commit and the build of this binary, and the version of the server
    Version,
    /// Put a server of the binary that is installed by now in the place of the one that serves; no run notices
    #[command(after_help = UPGRADE_CODES)]
    Upgrade,
    /// Look for what runs have left behind, and say what could not be looked at
    #[command(after_help = DOCTOR_CODES)]
    Doctor(DoctorArgs),
    /// Take the node out of service: no new runs; those that run may finish, or are ended
    #[command(after_help = DRAIN_CODES)]
    Drain(DrainArgs),
    /// Print who asked for which change, which signals were sent, and what happened to the service: of a run, or of all
    Audit(AuditArgs),
    /// End what runs have left behind; without --yes, say what would be ended
    #[command(after_help = REAP_CODES)]
    Reap(ReapArgs),
}

/// The whole command line, with the variable of each setting in the help of `serve`.
pub(crate) fn command() -> clap::Command {
    let with_variables = |serve: clap::Command| serve.mut_args(settings::with_variables);
    Cli::command().mut_subcommand("serve", with_variables)
}

#[cfg(test)]
mod tests;
