//! Kernel mechanisms that Kennel uses: pidfds, control groups, /proc, trees, clones behind a gate, splicing, terminals,
//! identities, limits.
//!
//! Mechanisms, no policy: `kennel-lifecycle` decides on their use, and `kennel-keeper` carries it out.

pub mod accept;
pub mod attributes;
pub mod beneath;
pub mod block_device;
pub mod capability;
pub mod census;
pub mod cgroup;
pub mod cgroup_limits;
pub mod clock;
pub mod crash_point;
pub mod disk;
pub mod fdpass;
pub mod identity;
mod kernel_file;
pub mod limits;
pub mod marker;
pub mod memfd;
pub mod memory_events;
pub mod memory_room;
pub mod notify_socket;
pub mod output_pipe;
pub mod own_file;
pub mod own_process;
pub mod own_signals;
pub mod own_state;
pub mod own_streams;
pub mod own_terminal;
pub mod peer;
pub mod pidfd;
pub mod plain_dir;
pub mod private_socket;
pub mod procfs;
pub mod reap;
pub mod resolve;
pub mod signal_set;
pub mod sockets;
pub mod spawn;
pub mod splice;
pub mod stuck;
pub mod targets;
pub mod tasks;
pub mod terminal;
pub mod tree;
pub mod usage;

pub use clock::start_time;
pub use disk::{Room, room_of};
pub use output_pipe::{OutputPipe, PipeState};
pub use own_process::{
    effective_uid, end_main_thread, group_id, harden_process, ignore_stray_signals,
};
pub use private_socket::bind_private;
pub use terminal::terminals_max;
