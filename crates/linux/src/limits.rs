//! How many descriptors and processes this host gives us.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::io;

/// Descriptors that the keeper holds for one run: shim socket, leader, two outputs, gate.
pub const KEEPER_FDS_PER_RUN: u64 = 5;

/// Descriptors that the keeper needs for itself: epoll, signals, timer, lock, server, listeners, warm shims.
pub const KEEPER_FDS_RESERVED: u64 = 128;

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

/// Most runs that the keeper's descriptors allow, where it lives under the same limit.
#[must_use]
pub fn runs_by_keeper_descriptors(limit: OpenFiles) -> u64 {
    limit.soft.saturating_sub(KEEPER_FDS_RESERVED) / KEEPER_FDS_PER_RUN
}

/// Raises the soft limit to the hard one and gives back what it was.
pub(crate) fn raise_open_files() -> io::Result<OpenFiles> {
    let before = open_files()?;
    setrlimit(Resource::RLIMIT_NOFILE, before.hard, before.hard)?;
    Ok(before)
}
