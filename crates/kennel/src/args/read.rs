//! Flags of the commands that show runs, their output and their events.

use crate::values;
use clap::{Args, Subcommand, ValueEnum};
use std::time::Duration;

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// How often to look, such as 2s; at least 500ms
    #[arg(long, value_name = "DURATION", value_parser = values::pace, default_value = "2s")]
    pub(crate) every: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct WhyArgs {
    /// Id of the run
    #[arg(value_name = "RUN")]
    pub(crate) run: String,
    /// Last lines of its output that are shown
    #[arg(long, value_name = "NUMBER", default_value_t = 10, value_parser = clap::value_parser!(u16).range(0..=1000))]
    pub(crate) lines: u16,
}

#[derive(Debug, Args)]
pub(crate) struct AuditArgs {
    /// Id of the run [default: all, and what happened to the service]
    #[arg(value_name = "RUN")]
    pub(crate) run: Option<String>,
    /// Only what is not older, such as 10m
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) since: Option<Duration>,
    /// Go on with what comes
    #[arg(short, long)]
    pub(crate) follow: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PsArgs {
    /// Ended runs too
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Only runs with this label; may be repeated, all must match
    #[arg(short, long = "label", value_name = "K=V", value_parser = values::pair)]
    pub(crate) labels: Vec<(String, String)>,
    /// Only runs in this state; may be repeated
    #[arg(long = "state", value_enum, ignore_case = true, value_name = "STATE")]
    pub(crate) states: Vec<StateArg>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StateArg {
    Starting,
    Running,
    Paused,
    Stopping,
    /// Between two attempts
    Backoff,
    Succeeded,
    Failed,
    Cancelled,
    Lost,
}

#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    #[command(flatten)]
    pub(crate) which: WhichRuns,
    /// Stay and print what comes, until the run has ended
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Only this stream [default: both]
    #[arg(long, value_enum, value_name = "STREAM")]
    pub(crate) stream: Option<StreamArg>,
    /// Begin after the event with this sequence number
    #[arg(long, value_name = "SEQ", default_value_t = 0, conflicts_with_all = ["labels", "all"])]
    pub(crate) from_seq: u64,
    /// Only what was written in this last time, such as 5m
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) since: Option<Duration>,
    /// Of what there is only the last lines, of both streams together
    #[arg(long, value_name = "LINES")]
    pub(crate) tail: Option<u64>,
    /// Without escape sequences and control characters, but TAB, LF and CR: the default on a terminal, where what would act
    /// on it is escaped as well
    #[arg(long, overrides_with = "raw")]
    pub(crate) plain: bool,
    /// Byte for byte: the default where standard output is no terminal
    #[arg(long, overrides_with = "plain")]
    pub(crate) raw: bool,
    #[command(flatten)]
    pub(crate) name: AsConsumer,
}

/// In whose name events are read.
#[derive(Debug, Args)]
pub(crate) struct AsConsumer {
    /// Read in the name of this consumer: go on behind what it has acknowledged, and register it where it is not there yet
    #[arg(long, value_name = "NAME")]
    pub(crate) consumer: Option<String>,
    /// Acknowledge what was printed
    #[arg(long, requires = "consumer")]
    pub(crate) ack: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConsumersCommand {
    /// List them: those of a run, or all of the node
    Ls {
        /// Only those of this run
        #[arg(value_name = "RUN")]
        run: Option<String>,
    },
    /// Show all that is known of one
    Get(ConsumerRef),
    /// Delete one; whoever reads in its name is told
    Rm(ConsumerRef),
}

#[derive(Debug, Args)]
pub(crate) struct ConsumerRef {
    /// Its name
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// The run that it reads [default: many, by a filter]
    #[arg(long, value_name = "RUN")]
    pub(crate) run: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StreamArg {
    /// Standard output
    Stdout,
    /// Standard error
    Stderr,
}

#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    #[command(flatten)]
    pub(crate) which: WhichRuns,
    /// Stay and print what comes, until the run has ended
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Begin after this sequence number
    #[arg(long, value_name = "SEQ", default_value_t = 0, conflicts_with_all = ["labels", "all"])]
    pub(crate) after_seq: u64,
    #[command(flatten)]
    pub(crate) name: AsConsumer,
}

/// One run, or many.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub(crate) struct WhichRuns {
    /// Id of the run
    #[arg(value_name = "RUN", conflicts_with_all = ["labels", "all"])]
    pub(crate) run: Option<String>,
    /// All runs with this label, also those that come while it follows; each line says whose it is. May be repeated: all must
    /// match
    #[arg(short, long = "label", value_name = "K=V", value_parser = values::pair)]
    pub(crate) labels: Vec<(String, String)>,
    /// All runs, in the same way
    #[arg(long, conflicts_with = "labels")]
    pub(crate) all: bool,
}
