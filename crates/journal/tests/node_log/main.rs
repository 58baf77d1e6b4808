//! The node log from outside: real files.

#![expect(clippy::unwrap_used, reason = "a failure of the test itself")]

mod common;
mod cuts;
mod flips;
mod full;
mod random;
mod servers;
mod syncs;
mod trims;
