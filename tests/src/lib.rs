//! What the tests of the real binary share: a server on a directory of its own, a client, a census of processes.
//!
//! Nothing here is told by the server alone: the census reads /proc, the rows are read by psql.

pub mod census;
pub mod client;
pub mod collector;
pub mod kennel;
pub mod load;
pub mod node_log;
pub mod overload;
pub mod pages;
pub mod pgbouncer;
pub mod postgres;
pub mod procfs;
pub mod programs;
pub mod project;
pub mod raw;
pub mod shell;
pub mod sqlite;
pub mod strace;
pub mod tmux;
pub mod wait;

pub use census::{Census, Footprint};
pub use client::{Client, Heard, RunExt, SpecExt, argv, complaint, fact, naughty, sh};
pub use kennel::{Cgroup, Kennel, Options, User};
pub use overload::Overload;
pub use postgres::Postgres;
pub use wait::{eventually, eventually_async, must, within};

/// How long anything may take that is not itself under test, on a machine that is busy.
pub const PATIENCE: std::time::Duration = std::time::Duration::from_secs(30);

/// From the first signal to `kennel serve` until its exit, at most: ten seconds, and what a busy machine adds.
pub const SHUTDOWN_LIMIT: std::time::Duration = std::time::Duration::from_secs(12);

/// `len` bytes in which every value occurs, newlines and invalid UTF-8 among them; the same for the same length.
#[must_use]
pub fn pattern(len: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_u32;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state.to_le_bytes()[1]
        })
        .collect()
}

/// A key for a run, made now.
#[must_use]
pub fn new_run_id() -> String {
    ulid::Ulid::generate().to_string()
}
