//! Flags of the commands for the host, the node and the shell.

use super::{LabelArgs, flags::of_enum};
use crate::{complete, values};
use clap::Args;
use clap_complete::Shell;
use clap_complete::engine::ArgValueCompleter;
use kennel_proto::pb::LeakEvidence;
use std::time::Duration;

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Prove on this host that no process escapes: run programs that try to, in a temporary service with your
    /// privileges. Uses no server and leaves nothing
    #[arg(long)]
    pub prove: bool,
}

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Ids of runs, or their beginning or end, to show in place of the server
    #[arg(add = ArgValueCompleter::new(complete::runs), value_name = "RUN")]
    pub(crate) runs: Vec<String>,
}

#[derive(Debug, Args)]
pub struct DrainArgs {
    /// End all runs now, each with its own grace period
    #[arg(long, conflicts_with_all = ["deadline", "undo"])]
    pub(crate) abort: bool,
    /// End runs that are left after this time [default: never]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, conflicts_with = "undo")]
    pub(crate) deadline: Option<Duration>,
    /// Wait until no run is left
    #[arg(long, conflicts_with = "undo")]
    pub(crate) wait: bool,
    /// Accept new runs again, as `undrain` does
    #[arg(long)]
    pub(crate) undo: bool,
    #[command(flatten)]
    pub(crate) which: WhichNode,
}

#[derive(Debug, Args)]
pub struct WhichNode {
    /// Node of the database, by name or id [default: that of --node, or the server's own]
    #[arg(value_name = "NODE")]
    pub(crate) name: Option<String>,
}

#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// Shell to complete in
    #[arg(value_enum, value_name = "SHELL")]
    pub(crate) shell: Shell,
}

#[derive(Debug, Args)]
pub struct ReapArgs {
    /// End the processes: SIGTERM, after the grace period SIGKILL [default: a dry run]
    #[arg(long)]
    pub(crate) yes: bool,
    /// Select processes of this run; may be repeated
    #[arg(long = "run", value_name = "RUN", add = ArgValueCompleter::new(complete::runs))]
    pub(crate) runs: Vec<String>,
    #[command(flatten)]
    pub(crate) labels: LabelArgs,
    /// Select processes older than this, such as 10m
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) older: Option<Duration>,
    /// Select processes found by this evidence; may be repeated [default: all that proves]
    #[arg(long, value_name = "EVIDENCE", value_parser = of_enum("kennel.v1.LeakEvidence", LeakEvidence::from_str_name))]
    pub(crate) evidence: Vec<LeakEvidence>,
    /// Select this process by its reference in a dry run; may be repeated
    #[arg(long = "process", value_name = "PID:START[:INODE]", value_parser = values::process)]
    pub(crate) processes: Vec<kennel_proto::pb::ProcessRef>,
    /// Grace period between SIGTERM and SIGKILL, at most 60s [default: 5s]
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) grace: Option<Duration>,
}
