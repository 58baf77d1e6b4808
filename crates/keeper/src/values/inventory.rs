//! Processes and sockets of the keeper itself.

use kennel_lifecycle::RunId;
use serde::{Deserialize, Serialize};

/// Processes and sockets that only the keeper knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeeperInventory {
    /// Pid of the server.
    pub server: i32,
    /// Shims without work.
    pub spare_shims: Vec<i32>,
    /// Shims with their runs.
    pub shims: Vec<(i32, RunId)>,
    /// Listening sockets, and the state of their paths.
    pub sockets: Vec<(String, SocketSeen)>,
    /// Number of descriptors that the keeper has open; absent: the kernel does not report it (before Linux 6.2).
    pub fds: Option<u64>,
}

/// State of the path of a listening socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SocketSeen {
    /// The socket is there.
    InPlace,
    /// Nothing is there: no new client can connect.
    Missing,
    /// Another file is there.
    Replaced,
}
