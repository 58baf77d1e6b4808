//! The processes that own runs, keeper and shim, and their messages with each other and the server.
//!
//! The server uses [`client::KeeperClient`]; the binary starts [`keeper`]. No policy is here: what is to be done comes
//! from `kennel-lifecycle`, and the only decisions taken are those of its pure ladder.

pub mod audit;
pub mod client;
pub mod detached;
mod exit_record;
mod exit_slots;
mod held;
mod init_note;
pub mod input_note;
pub mod keeper;
pub mod notify_place;
mod object;
mod orphan_note;
pub mod preflight;
mod private_file;
pub mod rundir;
pub mod saved_output;
mod server_socket;
mod shim;
mod skipped;
#[cfg(test)]
mod sleeper;
pub mod spare_dirs;
pub mod unreadable;
mod values;
mod wire;

pub use server_socket::server_socket;
pub use shim::zygote;
