//! Addresses at which clients connect.

use std::{fmt, net::SocketAddr, path::PathBuf};

/// An address at which clients connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// A unix socket.
    Unix {
        /// Path of its file.
        path: PathBuf,
        /// Permissions of its file, such as 0o600.
        mode: u32,
        /// Group of its file; absent: the service's own.
        gid: Option<u32>,
    },
    /// A TCP port.
    Tcp(SocketAddr),
}

impl ListenAddress {
    /// A unix socket that only the service's own user can connect to.
    pub fn private(path: PathBuf) -> Self {
        let (mode, gid) = (0o600, None);
        Self::Unix { path, mode, gid }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix { path, .. } => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}
