//! Errors of finding the server to call.

use super::SOCKET_PATH_BYTES_MAX;
use std::{io, path::PathBuf};

/// The server to call cannot be determined.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// The text is no address.
    #[error("{0:?} is not an address")]
    NotAnAddress(String),
    /// The path of the socket ends with a slash, or is empty.
    #[error("{0:?} names no socket file")]
    NoFile(String),
    /// The kernel takes no such long path.
    #[error("the path of the socket is longer than {SOCKET_PATH_BYTES_MAX} bytes: {0}")]
    LongPath(String),
    /// There is no working directory.
    #[error("{path} cannot be made an absolute path: {source}", path = .path.display())]
    Relative {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Nothing names a server, and this user has no default.
    #[error("there is no default socket: neither XDG_RUNTIME_DIR nor HOME is set")]
    NoDefault,
    /// Credentials for the network, and a unix socket.
    #[error("a unix socket takes neither certificates nor a token")]
    SocketWithCredentials,
    /// Credentials for the network, and no server.
    #[error("certificates and tokens are for a server on the network, and none is named")]
    CredentialsAlone,
    /// Two variables name a server.
    #[error("KENNEL_SERVER and KENNEL_CONTEXT are both set")]
    TwoVariables,
    /// The variable is not the number of a user.
    #[error("KENNEL_SERVER_USER: {0:?} is not the number of a user")]
    ServerUser(String),
    /// One of certificate and key is missing.
    #[error("a certificate and its key must be given together")]
    HalfCertificate,
    /// The file has no such context.
    #[error("there is no context {0:?}")]
    NoContext(String),
    /// The file cannot be read.
    #[error("cannot read {path}: {source}", path = .path.display())]
    UnreadContexts {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file is malformed.
    #[error("cannot use {path}: {why}", path = .path.display())]
    Contexts {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
}
