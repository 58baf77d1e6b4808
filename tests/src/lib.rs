//! Fixtures of the tests of the real binary: a server on a directory of its own, a client, a census of processes.
//!
//! No check relies on the server alone: the census reads /proc, the rows are read by psql.

mod on_one_server;

pub mod census;
pub mod client;
pub mod collector;
pub mod crowd;
pub mod fleet;
pub mod kennel;
pub mod lent;
pub mod load;
pub mod net;
pub mod node_log;
pub mod overload;
pub mod pgbouncer;
pub mod postgres;
pub mod procfs;
pub mod programs;
pub mod project;
pub mod raw;
pub mod relay;
pub mod runc;
pub mod scratch;
pub mod shell;
pub mod sqlite;
pub mod strace;
pub mod tmux;
pub mod wait;
pub mod wall_clock;
pub mod witness;

pub use census::{Census, Footprint};
pub use client::{Client, Heard, RunExt, SpecExt, argv, complaint, fact, naughty, sh};
pub use kennel::{Cgroup, Kennel, Options, User};
pub use kennel_site::{pages, promises};
pub use overload::Overload;
pub use postgres::Postgres;
pub use wait::{eventually, eventually_async, must, within};

/// Longest time of any step that is not itself under test, on a busy machine.
pub const PATIENCE: std::time::Duration = std::time::Duration::from_secs(30);

/// The longest wait for something that waits for the database.
pub const STORE_PATIENCE: std::time::Duration = std::time::Duration::from_mins(1);

/// Longest time from the first signal to `kennel serve` until its exit: ten seconds, and the delay of a busy machine.
pub const SHUTDOWN_LIMIT: std::time::Duration = std::time::Duration::from_secs(12);

/// Returns `len` bytes in which every value occurs, newlines and invalid UTF-8 among them; the same for the same
/// length.
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

/// Returns a key for a run, made now.
#[must_use]
pub fn new_run_id() -> String {
    ulid::Ulid::generate().to_string()
}

/// Returns a key for a run, as if made at this time.
#[must_use]
pub fn run_id_of(time: std::time::SystemTime) -> String {
    ulid::Ulid::from_datetime(time).to_string()
}
