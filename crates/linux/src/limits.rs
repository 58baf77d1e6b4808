//! How many descriptors and processes this host gives us.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::io;

/// Descriptors that the keeper holds for one run: shim socket, leader, two outputs, gate.
pub const KEEPER_FDS_PER_RUN: u64 = 5;

/// Descriptors that the keeper needs for itself: epoll, signals, timer, lock, server, listeners, warm shims.
pub const KEEPER_FDS_RESERVED: u64 = 128;

/// Descriptors that the server holds for one run: two outputs, index and three streams of its journal.
pub const SERVER_FDS_PER_RUN: u64 = 6;

/// Descriptors that the server needs for itself: runtime, store, keeper, some clients and readers of ended runs.
pub const SERVER_FDS_RESERVED: u64 = 256;

/// `RLIMIT_NOFILE` of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFiles {
    /// In force.
    pub soft: u64,
    /// The most that the soft limit can be raised to.
    pub hard: u64,
}

/// Descriptors that this process may have open (the server inherits the keeper's raised limit).
pub fn open_files() -> io::Result<OpenFiles> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(OpenFiles { soft, hard })
}

/// Most runs that the descriptors of keeper and server allow, where both live under the same limit.
#[must_use]
pub fn runs_by_descriptors(limit: OpenFiles) -> u64 {
    let keeper = limit.soft.saturating_sub(KEEPER_FDS_RESERVED) / KEEPER_FDS_PER_RUN;
    let server = limit.soft.saturating_sub(SERVER_FDS_RESERVED) / SERVER_FDS_PER_RUN;
    keeper.min(server)
}

/// Raises the soft limit to the hard one and gives back what it was.
pub(crate) fn raise_open_files() -> io::Result<OpenFiles> {
    let before = open_files()?;
    setrlimit(Resource::RLIMIT_NOFILE, before.hard, before.hard)?;
    Ok(before)
}
