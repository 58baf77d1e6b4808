//! What can be typed: commands, flags, and the text of `--help`.

#![expect(
    clippy::doc_markdown,
    reason = "these comments are printed as help, where backticks would show"
)]

mod control;
mod help;
mod host;
mod read;
mod run;
mod serve;

pub(crate) use control::{
    AbortArgs, AbortWaitArg, AttachArgs, ConditionArg, ResizeArgs, RestartRunArgs, SignalArgs,
    SignalTargetArg, WaitArgs, WriteArgs,
};
pub(crate) use host::{CompletionsArgs, DoctorArgs, DrainArgs, EvidenceArg, ReapArgs};
pub(crate) use read::{
    AsConsumer, AuditArgs, ConsumerRef, ConsumersCommand, EventsArgs, LogsArgs, PsArgs, StateArg,
    StreamArg, TopArgs, WhichRuns, WhyArgs,
};
pub(crate) use run::{
    ContainmentArg, DiskFullArg, EnvArg, EnvModeArg, KindArg, LeaderExitArg, LimitArgs,
    OnMaxPauseArg, OutputFullArg, PidNamespaceArg, RecoveryArg, RestartArg, RestartArgs, SpecArgs,
    TerminalArgs,
};
pub(crate) use serve::{CgroupUse, ServeArgs};

use clap::{Args, Parser, Subcommand, ValueEnum};
use help::{
    ATTACH_HELP, COMPLETIONS_HELP, DOCTOR_CODES, DRAIN_CODES, EXIT_CODES, REAP_CODES, RUN_CODES,
    SERVE_CODES, UPGRADE_CODES, WAIT_CODES, WRITE_HELP,
};

/// Owns processes and never loses one.
#[derive(Debug, Parser)]
#[command(name = "kennel", version, after_help = EXIT_CODES, max_term_width = 100)]
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
    /// Form of what is printed
    #[arg(short, long, global = true, value_enum, value_name = "FORM")]
    pub(crate) output: Option<Format>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    #[default]
    Text,
    /// proto3 JSON, one document per line
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start the server and stay with it
    #[command(after_help = SERVE_CODES)]
    Serve(ServeArgs),
    /// The part of the service that the keeper starts
    #[command(hide = true)]
    Server(ServeArgs),
    /// Run a command and stay with it: its output is ours, its exit code too
    #[command(after_help = RUN_CODES)]
    Run(SpecArgs),
    /// Start a command, print the run's id and leave
    Spawn(SpecArgs),
    /// List runs, newest first
    Ps(PsArgs),
    /// Watch the runs and what they use, live on this terminal; `?` shows the keys
    Top(TopArgs),
    /// Show all that is known of a run
    Get(RunRef),
    /// End a run: SIGTERM to its whole tree, the grace, SIGKILL
    Abort(AbortArgs),
    /// Send SIGINT to the command's process group, once; on a terminal type the key for that, also where the command reads its
    /// keys itself
    Interrupt(RunRef),
    /// Send one signal to processes of a run, and say what came of it for each
    Signal(SignalArgs),
    /// Show the processes of a run: who holds them, what they take, where they listen
    Tree(RunRef),
    /// Say why a run has ended, or stands as it does: who asked, what was done, what is known and what is not
    Why(WhyArgs),
    /// Stop every process of a run until `resume`
    Pause(RunRef),
    /// Continue a paused run
    Resume(RunRef),
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
    Logs(LogsArgs),
    /// Print a run's events, one per line
    Events(EventsArgs),
    /// Readers of events that have a name, up to where each has acknowledged
    #[command(subcommand)]
    Consumers(ConsumersCommand),
    /// Print what makes a shell complete the words of kennel
    #[command(after_help = COMPLETIONS_HELP)]
    Completions(CompletionsArgs),
    /// Show what the server is, and whether it serves
    Status,
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

#[derive(Debug, Args)]
pub(crate) struct RunRef {
    /// Id of the run
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
}

#[cfg(test)]
mod tests;
