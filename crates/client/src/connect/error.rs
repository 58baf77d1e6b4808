//! Errors of connecting to a server.

use crate::{address::Address, connect::or_none, credentials::CredentialsError};
use std::io;

/// No connection to a server was established.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No process listens there, or it cannot be reached.
    #[error("no server answers at {address}")]
    NoServer {
        /// Address of the server.
        address: Address,
        /// Error of the socket.
        #[source]
        source: io::Error,
    },
    /// A process of another user listens there: neither this user nor root.
    #[error("the server at {address} runs as user {uid}, which is neither this user nor root")]
    ForeignServer {
        /// Address of the server.
        address: Address,
        /// User id of the sender.
        uid: u32,
    },
    /// The server does not speak the protocol.
    #[error("cannot speak to the server at {address}")]
    Transport {
        /// Address of the server.
        address: Address,
        /// The cause.
        #[source]
        source: tonic::transport::Error,
    },
    /// The connection broke before the first call, or the server does not speak TLS 1.3 and HTTP/2.
    #[error("cannot open a secure connection to {address}")]
    Insecure {
        /// Address of the server.
        address: Address,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The client's own files cannot be used.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// No known authority has issued the server's certificate.
    #[error(
        "the certificate of the server at {address} is not trusted: no authority in {authorities} has issued it"
    )]
    UntrustedServer {
        /// Address of the server.
        address: Address,
        /// Source of the authorities.
        authorities: String,
    },
    /// The server's certificate is for other names.
    #[error("the certificate of the server at {address} is for {}, not for {name}", or_none(.presented))]
    WrongServerName {
        /// Address of the server.
        address: Address,
        /// The required name.
        name: String,
        /// The names in the certificate.
        presented: Vec<String>,
    },
    /// The server's certificate cannot be used for another reason.
    #[error("the certificate of the server at {address} is refused: {reason}")]
    ServerCertificate {
        /// Address of the server.
        address: Address,
        /// The reason, such as `it has expired`.
        reason: String,
    },
    /// The server has refused the client's certificate.
    #[error("the server at {address} refused the certificate of this client: {reason}")]
    ClientCertificate {
        /// Address of the server.
        address: Address,
        /// The reason, such as `it is revoked`.
        reason: &'static str,
    },
    /// The server demands a certificate of the client, and there is none.
    #[error("the server at {address} demands a certificate of the client")]
    NoClientCertificate {
        /// Address of the server.
        address: Address,
    },
    /// The server has refused the token.
    #[error("the server at {address} refused the token: {reason}")]
    Token {
        /// Address of the server.
        address: Address,
        /// Its answer.
        reason: String,
    },
    /// The server demands a certificate or a token, and there is neither.
    #[error("the server at {address} demands a certificate or a token: {reason}")]
    NoCredentials {
        /// Address of the server.
        address: Address,
        /// Its answer.
        reason: String,
    },
}

impl ConnectError {
    /// Whether a server was there, and is perhaps being replaced.
    pub(super) fn is_broken(&self) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
        match self {
            Self::Transport { .. } => true,
            Self::Insecure { source, .. } => matches!(
                source.kind(),
                BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof
            ),
            _ => false,
        }
    }
}
