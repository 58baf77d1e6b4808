//! Flags of the commands that show runs, their output and their events.

use super::{LabelArgs, RunRefs};
use crate::{
    complete,
    values::{self, Filter, Tail},
};
use clap::{Args, Subcommand, ValueEnum};
use clap_complete::engine::ArgValueCompleter;
use std::time::{Duration, SystemTime};

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Print one look as a table and leave
    #[arg(short = 'b', long, visible_alias = "no-stream", alias = "batch")]
    pub(crate) once: bool,
    /// With --once: print so many looks
    #[arg(
        short = 'n',
        long,
        alias = "count",
        value_name = "NUMBER",
        requires = "once",
        default_value_t = 1
    )]
    pub(crate) iterations: u32,
    /// How often to look, such as 2s; at least 500ms
    #[arg(long, alias = "interval", value_name = "DURATION", value_parser = values::pace, default_value = "2s")]
    pub(crate) every: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct WhyArgs {
    #[command(flatten)]
    pub(crate) runs: RunRefs,
    /// Last lines of its output that are shown
    #[arg(long, value_name = "NUMBER", default_value_t = 10, value_parser = clap::value_parser!(u16).range(0..=1000))]
    pub(crate) lines: u16,
}

#[derive(Debug, Args)]
pub(crate) struct AuditArgs {
    /// Id of the run [default: all, and what happened to the service]
    #[arg(add = ArgValueCompleter::new(complete::runs), value_name = "RUN")]
    pub(crate) run: Option<String>,
    /// Print only what happened since: how long ago, such as 10m, or a time
    #[arg(long, value_name = "TIME", value_parser = values::moment)]
    pub(crate) since: Option<SystemTime>,
    /// Print only what happened before: how long ago, or a time
    #[arg(long, value_name = "TIME", value_parser = values::moment, conflicts_with = "follow")]
    pub(crate) until: Option<SystemTime>,
    /// Follow new records
    #[arg(short, long)]
    pub(crate) follow: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PsArgs {
    /// Ended runs too
    #[arg(short, long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) labels: LabelArgs,
    /// Only runs in this state; may be repeated, or name several with commas between
    #[arg(
        long = "state",
        alias = "status",
        value_enum,
        ignore_case = true,
        value_delimiter = ',',
        value_name = "STATE"
    )]
    pub(crate) states: Vec<StateArg>,
    /// Select runs as docker does: label=KEY=VALUE, label=KEY, status=STATE; may be repeated
    #[arg(short, long = "filter", value_name = "FILTER", value_parser = values::filter)]
    pub(crate) filters: Vec<Filter>,
    /// Print ids alone
    #[arg(short, long, conflicts_with = "output")]
    pub(crate) quiet: bool,
    /// Print at most so many runs, the newest
    #[arg(
        short = 'n',
        long = "limit",
        visible_alias = "last",
        value_name = "NUMBER"
    )]
    pub(crate) limit: Option<usize>,
    /// Sort by this column
    #[arg(
        long,
        alias = "sort-by",
        value_enum,
        ignore_case = true,
        value_name = "COLUMN",
        default_value_t
    )]
    pub(crate) sort: SortArg,
    /// Reverse the order
    #[arg(short, long)]
    pub(crate) reverse: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum SortArg {
    /// Newest first
    #[default]
    #[value(aliases = ["created", "time", ".metadata.creationtimestamp"])]
    Age,
    #[value(alias = "id")]
    Run,
    State,
    Kind,
    Pid,
    Command,
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

#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
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
    /// Print only what was written since: how long ago, such as 5m, or a time, such as 2026-01-31T08:00:00Z
    #[arg(long, value_name = "TIME", value_parser = values::moment)]
    pub(crate) since: Option<SystemTime>,
    /// Print only what was written before: how long ago, or a time
    #[arg(long, value_name = "TIME", value_parser = values::moment, conflicts_with = "follow")]
    pub(crate) until: Option<SystemTime>,
    /// Of what there is print only the last lines, of both streams together
    #[arg(short = 'n', long, visible_alias = "lines", value_name = "LINES", value_parser = values::tail)]
    pub(crate) tail: Option<Tail>,
    /// Print before each line when it was written
    #[arg(short, long)]
    pub(crate) timestamps: bool,
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
#[derive(Clone, Debug, Args)]
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
    #[command(alias = "list")]
    Ls {
        /// Only those of this run
        #[arg(add = ArgValueCompleter::new(complete::runs), value_name = "RUN")]
        run: Option<String>,
    },
    /// Show all that is known of one
    #[command(alias = "inspect")]
    Get(ConsumerRef),
    /// Delete one; whoever reads in its name is told
    #[command(alias = "delete")]
    Rm(ConsumerRef),
}

#[derive(Debug, Args)]
pub(crate) struct ConsumerRef {
    /// Its name
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// The run that it reads [default: many, by a filter]
    #[arg(long, value_name = "RUN", add = ArgValueCompleter::new(complete::runs))]
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

/// One run, several, or many.
#[derive(Debug, Args)]
pub(crate) struct WhichRuns {
    /// Ids of the runs, or how they begin or end; where there are several, each line says whose it is
    #[arg(add = ArgValueCompleter::new(complete::runs), value_name = "RUN", conflicts_with_all = ["labels", "all"], required_unless_present_any = ["labels", "all"])]
    pub(crate) runs: Vec<String>,
    #[command(flatten)]
    pub(crate) labels: LabelArgs,
    /// All runs, also those that come while it follows; each line says whose it is
    #[arg(long, conflicts_with = "labels")]
    pub(crate) all: bool,
}
