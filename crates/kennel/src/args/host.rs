//! Flags of the commands for the host, the node and the shell.

use super::LabelArgs;
use crate::{complete, values};
use clap::Args;
use clap_complete::Shell;
use clap_complete::engine::ArgValueCompleter;
use std::{path::PathBuf, time::Duration};

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Prove on this host that no process escapes: run programs that try to, in a temporary service with your
    /// privileges. Uses no server and leaves nothing
    #[arg(long)]
    pub(crate) prove: bool,
}

#[derive(Debug, Args)]
pub(crate) struct MigrateArgs {
    #[command(flatten)]
    pub(crate) database: DatabaseArgs,
    /// Apply migrations too that servers of earlier levels cannot live with; refused while a node has such a server
    /// [default: a start applies them a day after all nodes have the level]
    #[arg(long)]
    pub(crate) contract: bool,
    /// Print what would be applied, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Exactly one of them names the database.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct DatabaseArgs {
    /// Database: sqlite:PATH or postgres://USER@HOST/DATABASE
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// File that contains the URL, which may have a password
    #[arg(long, value_name = "FILE")]
    pub(crate) store_file: Option<PathBuf>,
    /// Data directory of a service whose database is in it
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Ids of runs, or their beginning or end, to show in place of the server
    #[arg(add = ArgValueCompleter::new(complete::runs), value_name = "RUN")]
    pub(crate) runs: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct DrainArgs {
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
pub(crate) struct WhichNode {
    /// Node of the database, by name or id [default: that of --node, or the server's own]
    #[arg(value_name = "NODE")]
    pub(crate) name: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// Shell to complete in
    #[arg(value_enum, value_name = "SHELL")]
    pub(crate) shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ReapArgs {
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
    #[arg(long, value_enum, value_name = "EVIDENCE")]
    pub(crate) evidence: Vec<EvidenceArg>,
    /// Select this process by its reference in a dry run; may be repeated
    #[arg(long = "process", value_name = "PID:START[:INODE]", value_parser = values::process)]
    pub(crate) processes: Vec<kennel_proto::pb::ProcessRef>,
    /// Grace period between SIGTERM and SIGKILL, at most 60s [default: 5s]
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    pub(crate) grace: Option<Duration>,
}

of_contract! {
    pub(crate) enum EvidenceArg = LeakEvidence {
        /// In a control group of an ended run
        LeakedCgroup,
        /// Below the shim of an ended run
        ShimChild,
        /// In the recorded process group or session of an ended run
        RecordedGroup,
        /// With a run's marker in its environment: no proof, any process can copy it
        Marker,
        /// Detached by --on-leader-exit keep
        Kept,
    }
}
