//! Flags of the server.

use super::Format;
use crate::{
    retention::RetentionArgs,
    telemetry::{LogFormat, TelemetryArgs},
    values,
};
use clap::{Args, ValueEnum};
use std::{path::PathBuf, time::Duration};

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Socket to listen on [env: KENNEL_LISTEN] [default: /run/kennel/kennel.sock for root, else
    /// $XDG_RUNTIME_DIR/kennel/kennel.sock]
    #[arg(long, value_name = "unix:PATH")]
    pub(crate) listen: Option<String>,
    /// Database, as sqlite:PATH or postgres://... [env: KENNEL_STORE] [default: kennel.db in the data directory]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// File that holds the database's URL [env: KENNEL_STORE_FILE]
    #[arg(long, value_name = "FILE", conflicts_with = "store")]
    pub(crate) store_file: Option<PathBuf>,
    /// Where journals are kept [env: KENNEL_DATA_DIR] [default: /var/lib/kennel for root, else
    /// $XDG_STATE_HOME/kennel]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Whether runs get control groups: where it is possible, or never
    #[arg(long, value_enum, value_name = "WHEN", default_value_t)]
    pub(crate) cgroup: CgroupUse,
    /// How long runs go on while the server is lost and none takes its place, the keeper's own pauses not counted; then
    /// each is ended by its own plan
    #[arg(long, value_name = "DURATION", value_parser = values::duration, default_value = "30s")]
    pub(crate) orphan_ttl: Duration,
    #[command(flatten)]
    pub(crate) retention: RetentionArgs,
    #[command(flatten)]
    pub(crate) telemetry: TelemetryArgs,
    /// Form of the log on standard error; KENNEL_LOG filters it, as in KENNEL_LOG=debug
    #[arg(long, value_enum, value_name = "FORM", default_value_t)]
    pub(crate) log_format: LogFormat,
    #[command(flatten)]
    pub(crate) of_clients: OfClients,
}

/// Flags of every command that asks a server. `serve` takes them in their place, refuses them, and keeps them out of
/// its help.
#[derive(Debug, Args)]
pub(crate) struct OfClients {
    #[arg(long, hide = true)]
    server: Option<String>,
    #[arg(short, long, hide = true)]
    output: Option<Format>,
}

impl OfClients {
    /// Whether one of them was given.
    pub(crate) fn any(&self) -> bool {
        self.server.is_some() || self.output.is_some()
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum CgroupUse {
    /// Where a control group can be made; in a delegated group Kennel moves to a leaf, so that runs can have limits
    #[default]
    Auto,
    /// As auto, and Kennel stays in the control group that it was started in: no memory, pids and cpu limits of runs
    Stay,
    /// Never
    Off,
}
