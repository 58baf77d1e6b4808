//! Flags of the commands for the host, the node and the shell.

use super::LabelArgs;
use crate::{complete, values};
use clap::{Args, ValueEnum};
use clap_complete::Shell;
use clap_complete::engine::ArgValueCompleter;
use std::time::Duration;

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Let programs that try to outlive their run do so in a service of its own, with your privileges, and see whether
    /// any does that the service calls ended. Asks no server, and leaves nothing
    #[arg(long)]
    pub(crate) prove: bool,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Ids of runs, or how they begin or end: show these [default: the server]
    #[arg(add = ArgValueCompleter::new(complete::runs), value_name = "RUN")]
    pub(crate) runs: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct DrainArgs {
    /// End all runs at once, each within its own grace
    #[arg(long, conflicts_with_all = ["deadline", "undo"])]
    pub(crate) abort: bool,
    /// Let the runs finish for so long, then end what is left [default: for ever]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, conflicts_with = "undo")]
    pub(crate) deadline: Option<Duration>,
    /// Stay until no run is left
    #[arg(long, conflicts_with = "undo")]
    pub(crate) wait: bool,
    /// Take new runs again
    #[arg(long)]
    pub(crate) undo: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// For which shell
    #[arg(value_enum, value_name = "SHELL")]
    pub(crate) shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ReapArgs {
    /// Signal: SIGTERM, the grace, SIGKILL [default: a dry run]
    #[arg(long)]
    pub(crate) yes: bool,
    /// Only what belongs to this run; may be repeated
    #[arg(long = "run", value_name = "RUN", add = ArgValueCompleter::new(complete::runs))]
    pub(crate) runs: Vec<String>,
    #[command(flatten)]
    pub(crate) labels: LabelArgs,
    /// Only processes that have lived for so long, such as 10m
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) older: Option<Duration>,
    /// Only on this evidence; may be repeated [default: whatever proves]
    #[arg(long, value_enum, value_name = "EVIDENCE")]
    pub(crate) evidence: Vec<EvidenceArg>,
    /// Exactly this process, as a dry run has named it; may be repeated
    #[arg(long = "process", value_name = "PID:START[:INODE]", value_parser = values::process)]
    pub(crate) processes: Vec<kennel_proto::pb::ProcessRef>,
    /// Time between SIGTERM and SIGKILL, at most 60s [default: 5s]
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) grace: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EvidenceArg {
    /// In a control group of a run that is over
    LeakedCgroup,
    /// Below the shim of a run that is over
    ShimChild,
    /// In the recorded process group or session of a run that is over
    RecordedGroup,
    /// With a run's marker in its environment: no proof, anybody can copy it
    Marker,
    /// Left running by a run that was to leave it running
    Kept,
}
