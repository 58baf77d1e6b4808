//! All that touches the kernel: keeper, shim, gate, control groups, identities, splicing.
//!
//! The server uses [`client::KeeperClient`]; the binary starts [`keeper`]. No policy lives here: what is to be
//! done comes from `kennel-lifecycle`, and the only decisions taken are those of its pure ladder.

mod cgroup;
pub mod client;
pub mod keeper;
pub mod limits;
mod output_pipe;
mod own_process;
pub mod peer;
mod procfs;
pub mod resolve;
pub mod rundir;
mod server_socket;
pub mod splice;

pub use output_pipe::OutputPipe;
pub use own_process::{effective_uid, harden_process};
pub use server_socket::server_socket;
