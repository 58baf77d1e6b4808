//! Limits of this host on Kennel's descriptors and processes.

use nix::sys::resource::{Resource, getrlimit};
use std::io;

/// Descriptors that the keeper holds for one run: shim socket, leader, two outputs, gate. One with an open input has one
/// more, one on a terminal four more.
pub const KEEPER_FDS_PER_RUN: u64 = 5;

/// Descriptors that the keeper needs for itself: epoll, signals, timer, lock, server, listeners, warm shims.
pub const KEEPER_FDS_RESERVED: u64 = 128;

/// Descriptors that the server holds for one run: two outputs, index and three streams of its journal.
pub const SERVER_FDS_PER_RUN: u64 = 6;

/// Descriptors that the server needs for itself: runtime, store, keeper, connections, readers of journals, spawns in
/// progress.
pub const SERVER_FDS_RESERVED: u64 = 512;

/// Returns how many descriptors this process may have open (the server inherits the keeper's raised limit).
pub fn open_files() -> io::Result<u64> {
    Ok(getrlimit(Resource::RLIMIT_NOFILE)?.0)
}

/// Returns how many descriptors this process has open; absent where the kernel does not report it (before Linux 6.2).
pub fn open_now() -> Option<u64> {
    let count = std::fs::metadata("/proc/self/fd").ok()?.len();
    (count > 0).then_some(count)
}

/// Returns for how many runs keeper and server can both hold descriptors: each has this limit for itself. Where the
/// limit is small, runs get half of it.
pub fn runs_by_descriptors(limit: u64) -> u64 {
    let runs = |reserved: u64, per_run: u64| (limit - reserved.min(limit / 2)) / per_run;
    let keeper = runs(KEEPER_FDS_RESERVED, KEEPER_FDS_PER_RUN);
    let server = runs(SERVER_FDS_RESERVED, SERVER_FDS_PER_RUN);
    keeper.min(server)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_limit_is_computed_from_descriptor_limit() {
        let runs = runs_by_descriptors;
        assert_eq!(runs(20_000), (20_000 - 512) / 6);
        assert_eq!(runs(1024), 512 / 6);
        assert_eq!(runs(256), 128 / 6);
        assert_eq!(runs(0), 0);
        assert_eq!(runs(u64::MAX), (u64::MAX - 512) / 6);
    }
}
