//! The keeper: `kennel serve` itself. Single-threaded; starts before any runtime or thread.
//!
//! Owns every run's shim, gate, signals, stop ladder and control group, the listening sockets and the lock of the data
//! directory. Never reads output, never decides: the server says what is to be done.

mod data_dir;

pub use data_dir::node_id;

use std::{ffi::OsString, io, path::PathBuf};

/// What the keeper is told by the command line.
#[derive(Clone, Debug)]
pub struct KeeperConfig {
    /// Holds the lock, the node's name and the runs' directories; made 0700 if it is missing.
    pub data_dir: PathBuf,
    /// Unix sockets to listen on. A directory that is missing is made 0700; the socket gets 0600; a stale socket file
    /// is replaced only when nobody listens on it.
    pub listen: Vec<PathBuf>,
    /// Arguments (after the program's name) with which this binary is executed again as the server.
    pub server_argv: Vec<OsString>,
    /// Whether runs get control groups.
    pub cgroup: CgroupChoice,
}

/// Whether runs get control groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CgroupChoice {
    /// Where cgroup v2 is writable and the start-up probe passes.
    #[default]
    Auto,
    /// Never.
    Off,
}

/// Why the keeper did not start.
#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    /// Another keeper holds the data directory.
    #[error("{} is in use by process {}", dir.display(), holder.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string()))]
    LockBusy {
        /// The data directory.
        dir: PathBuf,
        /// The holder, as it wrote itself into the lock file.
        holder: Option<i32>,
    },
    /// The data directory cannot be used.
    #[error("cannot use {} as data directory", path.display())]
    DataDir {
        /// What was tried.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A listening socket cannot be made.
    #[error("cannot listen on {}", path.display())]
    Listen {
        /// The socket.
        path: PathBuf,
        /// Why not; `AddrInUse` where somebody listens there.
        #[source]
        source: io::Error,
    },
    /// The server process cannot be started.
    #[error("cannot start the server process")]
    Server(#[source] io::Error),
    /// A call that every Linux host should allow has failed.
    #[error("cannot {step}")]
    Host {
        /// What was tried.
        step: &'static str,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

impl KeeperError {
    /// The code to exit with: 2 where the caller can put it right, 1 else.
    #[must_use]
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::LockBusy { .. } | Self::DataDir { .. } | Self::Listen { .. } => 2,
            Self::Server(_) | Self::Host { .. } => 1,
        }
    }
}

/// Runs the keeper until the server has ended and every run with it, and gives the code to exit with: 0; 1 where
/// something was still alive at the deadline of the shutdown; 70 after the loss of the server. Call it before any
/// runtime or thread: it forks.
#[expect(clippy::todo, reason = "signature first")]
pub fn run(config: KeeperConfig) -> Result<i32, KeeperError> {
    data_dir::create(&config.data_dir)?;
    let _lock = data_dir::lock(&config.data_dir)?;
    data_dir::new_epoch().map_err(KeeperError::Server)?;
    todo!()
}
