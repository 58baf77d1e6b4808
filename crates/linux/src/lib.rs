//! All that touches the kernel: keeper, shim, gate, control groups, identities, splicing.
//!
//! The server uses [`client::KeeperClient`]; the binary starts [`keeper`]. No policy lives here: what is to be
//! done comes from `kennel-lifecycle`, and the only decisions taken are those of its pure ladder.

mod attributes;
pub mod audit;
mod capability;
pub mod census;
mod cgroup;
mod cgroup_limits;
pub mod client;
mod clock;
pub mod crash_point;
mod disk;
mod exit_record;
mod exit_slots;
mod fdpass;
mod held;
mod identity;
mod init_note;
pub mod input_note;
pub mod keeper;
pub mod limits;
mod marker;
mod memfd;
mod memory_events;
mod orphan_note;
mod output_pipe;
pub mod own_file;
mod own_process;
pub mod own_signals;
pub mod own_terminal;
pub mod peer;
mod pidfd;
pub mod preflight;
mod private_file;
mod private_socket;
mod procfs;
mod reap;
pub mod resolve;
pub mod rundir;
pub mod saved_output;
mod server_socket;
mod shim;
mod signal_set;
mod spawn;
pub mod splice;
mod stuck;
mod tasks;
mod terminal;
mod tree;
mod wire;

pub use clock::start_time;
pub use disk::{Room, room_of};
pub use output_pipe::{Look, OutputPipe};
pub use own_process::{effective_uid, end_main_thread, harden_process, ignore_stray_signals};
pub use private_socket::bind_private;
pub use server_socket::server_socket;
pub use terminal::terminals_max;
