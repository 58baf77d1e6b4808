//! Flags of the commands that show runs, their output and their events.

use super::{FilterArgs, LabelArgs, RunRefs, flags::of_enum};
use crate::{
    complete,
    values::{self, Tail},
};
use clap::{Args, Subcommand, ValueEnum};
use clap_complete::engine::ArgValueCompleter;
use kennel_proto::pb::OutputStream;
use std::{
    path::PathBuf,
    time::{Duration, SystemTime},
};

#[derive(Debug, Args)]
pub struct TopArgs {
    /// Print one sample as a table and exit
    #[arg(short = 'b', long, visible_alias = "no-stream", alias = "batch")]
    pub(crate) once: bool,
    /// With --once: number of samples
    #[arg(
        short = 'n',
        long,
        alias = "count",
        value_name = "NUMBER",
        requires = "once",
        default_value_t = 1
    )]
    pub(crate) iterations: u32,
    /// Interval between samples, such as 2s; at least 500ms
    #[arg(short = 'd', long, aliases = ["interval", "delay"], value_name = "DURATION", value_parser = values::pace, default_value = "2s")]
    pub(crate) every: Duration,
}

#[derive(Debug, Args)]
pub struct WhyArgs {
    #[command(flatten)]
    pub(crate) runs: RunRefs,
    /// Number of last output lines to show
    #[arg(long, value_name = "NUMBER", default_value_t = 10, value_parser = clap::value_parser!(u16).range(0..=1000))]
    pub(crate) lines: u16,
}

/// Flags of `audit`.
#[derive(Debug, Args)]
pub struct AuditArgs {
    /// Id of a run [default: all runs and the service]
    #[arg(add = ArgValueCompleter::new(complete::runs), value_name = "RUN")]
    pub(crate) run: Option<String>,
    /// Print only newer records: how long ago, such as 10m, or a time
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = values::moment)]
    pub(crate) since: Option<SystemTime>,
    /// Print only older records: how long ago, or a time
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = values::moment, conflicts_with = "follow")]
    pub(crate) until: Option<SystemTime>,
    /// Follow new records
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Check the chain of the files in this data directory, or of a file of --export, without a server, and print the newest
    /// record's SEQ:HASH
    #[arg(long, value_name = "PATH", conflicts_with_all = ["run", "since", "until", "follow"])]
    pub verify: Option<PathBuf>,
    /// Print the records of this data directory as they are there, lines of JSON with their chain, without a server
    #[arg(long, value_name = "DATA_DIR", conflicts_with_all = ["run", "since", "until", "follow", "verify"])]
    pub export: Option<PathBuf>,
    /// With --export: only records behind this one
    #[arg(
        long,
        value_name = "SEQ",
        requires = "export",
        default_value_t = 0,
        hide_default_value = true
    )]
    pub after: u64,
    /// With --verify: a SEQ:HASH printed earlier, which must still be part of the chain
    #[arg(long, value_name = "SEQ:HASH", requires = "verify")]
    pub head: Option<String>,
}

impl AuditArgs {
    /// Whether it reads files instead of calling a server.
    pub fn is_offline(&self) -> bool {
        self.verify.is_some() || self.export.is_some()
    }
}

#[derive(Debug, Args)]
pub struct InboxArgs {
    #[command(flatten)]
    pub(crate) labels: LabelArgs,
    #[command(flatten)]
    pub(crate) filters: FilterArgs,
    /// Look each second, and print what has changed, until interrupted
    #[arg(short, long)]
    pub(crate) watch: bool,
}

#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
#[derive(Debug, Args)]
pub struct PsArgs {
    /// List ended runs too
    #[arg(short, long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) labels: LabelArgs,
    /// Select runs in this state; may be repeated or separated by commas
    #[arg(
        long = "state",
        alias = "status",
        value_parser = values::states(),
        ignore_case = true,
        value_delimiter = ',',
        value_name = "STATE"
    )]
    pub(crate) states: Vec<values::States>,
    #[command(flatten)]
    pub(crate) filters: FilterArgs,
    /// Print only ids
    #[arg(short, long, conflicts_with = "output")]
    pub(crate) quiet: bool,
    /// Print whole ids, labels and commands, where a terminal has no room for them too
    #[arg(long)]
    pub(crate) no_trunc: bool,
    /// Print at most this number of runs, the newest ones
    #[arg(
        short = 'n',
        long = "limit",
        visible_alias = "last",
        value_name = "NUMBER",
        value_parser = values::count
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
    #[command(flatten)]
    pub(crate) parents: ParentsArgs,
}

/// Parents of runs.
#[derive(Debug, Args)]
pub(crate) struct ParentsArgs {
    /// List the children of this run only
    #[arg(long, value_name = "RUN", add = ArgValueCompleter::new(complete::runs))]
    pub(crate) parent: Option<String>,
    /// Print each run below its parent, with two spaces more; one whose parent is not in the list stands at the left
    #[arg(long)]
    pub(crate) tree: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum SortArg {
    /// Newest first
    #[default]
    #[value(aliases = ["created", "started", "time", ".metadata.creationtimestamp"])]
    Age,
    #[value(alias = "id")]
    Run,
    State,
    Kind,
    Pid,
    Command,
}

#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
#[derive(Debug, Args)]
pub struct LogsArgs {
    #[command(flatten)]
    pub(crate) which: WhichRuns,
    /// Follow new output or events until the run ends
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Print only this stream [default: both]
    #[arg(long, value_name = "STREAM", value_parser = of_enum("kennel.v1.OutputStream", OutputStream::from_str_name))]
    pub(crate) stream: Option<OutputStream>,
    /// Begin after the event with this sequence number
    #[arg(long, value_name = "SEQ", default_value_t = 0, conflicts_with_all = ["labels", "all"])]
    pub(crate) from_seq: u64,
    /// Print only output written since: how long ago, such as 5m, or a time, such as 2026-01-31T08:00:00Z
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = values::moment)]
    pub(crate) since: Option<SystemTime>,
    /// Print only output written before: how long ago, or a time
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = values::moment, conflicts_with = "follow")]
    pub(crate) until: Option<SystemTime>,
    /// Print only the last lines, of both streams together, or all
    #[arg(short = 'n', long, visible_alias = "lines", value_name = "LINES", allow_hyphen_values = true, value_parser = values::tail)]
    pub(crate) tail: Option<Tail>,
    /// Print the time of each line before it
    #[arg(short, long)]
    pub(crate) timestamps: bool,
    /// Remove escape sequences and control characters except TAB, LF and CR: the default on a terminal
    #[arg(long, overrides_with = "raw")]
    pub(crate) plain: bool,
    /// Print byte for byte: the default if standard output is no terminal
    #[arg(long, overrides_with = "plain")]
    pub(crate) raw: bool,
    #[command(flatten)]
    pub(crate) name: AsConsumer,
}

/// The consumer that reads the events.
#[derive(Clone, Debug, Args)]
pub(crate) struct AsConsumer {
    /// Read as this consumer: continue after its last acknowledgement, and register it if it is new
    #[arg(long, value_name = "NAME")]
    pub(crate) consumer: Option<String>,
    /// Acknowledge what is printed
    #[arg(long, requires = "consumer")]
    pub(crate) ack: bool,
}

#[derive(Debug, Subcommand)]
pub enum ConsumersCommand {
    /// List consumers of a run, or of the node
    #[command(alias = "list")]
    Ls {
        /// Run to list the consumers of
        #[arg(add = ArgValueCompleter::new(complete::runs), value_name = "RUN")]
        run: Option<String>,
    },
    /// Show one consumer
    #[command(alias = "inspect")]
    Get(ConsumerRef),
    /// Delete a consumer; its reader gets an error
    #[command(alias = "delete")]
    Rm(ConsumerRef),
}

#[derive(Debug, Args)]
pub struct ConsumerRef {
    /// Name of the consumer
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Run that it reads [default: many, by a filter]
    #[arg(long, value_name = "RUN", add = ArgValueCompleter::new(complete::runs))]
    pub(crate) run: Option<String>,
    /// Owner that registered it [default: the caller's]
    #[arg(long)]
    pub(crate) owner: Option<String>,
}

#[derive(Debug, Args)]
pub struct EventsArgs {
    #[command(flatten)]
    pub(crate) which: WhichRuns,
    /// Follow new output or events until the run ends
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Begin after this sequence number
    #[arg(long, value_name = "SEQ", default_value_t = 0, conflicts_with_all = ["labels", "all"])]
    pub(crate) after_seq: u64,
    /// Print only events since: how long ago, such as 5m, or a time, such as 2026-01-31T08:00:00Z
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = values::moment)]
    pub(crate) since: Option<SystemTime>,
    /// Print only the last events of each run, or all
    #[arg(short = 'n', long, visible_alias = "lines", value_name = "EVENTS", allow_hyphen_values = true, value_parser = values::tail, conflicts_with_all = ["labels", "all", "consumer"])]
    pub(crate) tail: Option<Tail>,
    #[command(flatten)]
    pub(crate) name: AsConsumer,
}

/// One run, several, or many.
#[derive(Debug, Args)]
pub(crate) struct WhichRuns {
    /// Ids of runs, or their beginning or end; with several, each line names its run
    #[arg(add = ArgValueCompleter::new(complete::runs), value_name = "RUN", conflicts_with_all = ["labels", "all"], required_unless_present_any = ["labels", "all"])]
    pub(crate) runs: Vec<String>,
    #[command(flatten)]
    pub(crate) labels: LabelArgs,
    /// Read all runs, with --follow also new ones; each line names its run
    #[arg(long, conflicts_with = "labels")]
    pub(crate) all: bool,
}
