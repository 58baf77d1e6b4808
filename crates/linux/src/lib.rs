//! All that touches the kernel: keeper, shim, gate, control groups, identities, splicing.
//!
//! The server uses [`client::KeeperClient`]; the binary starts [`keeper`]. No policy lives here: what is to be
//! done comes from `kennel-lifecycle`, and the only decisions taken are those of its pure ladder.

pub mod client;
mod own_process;

pub use own_process::{effective_uid, harden_process};
