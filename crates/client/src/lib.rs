//! The Rust client: connects over a unix socket, types what failed, and reads events across restarts.
//!
//! Never prints, reads no environment, and repeats nothing by itself but a read of events.

mod attach;
mod events;
mod failure;
mod resumes;

pub use attach::{Attachment, WRITES_MAX};
pub use events::{EventReader, Start, time_of};
pub use failure::Failure;
/// What sets the modes of a terminal (mouse, pasting, keypad, cursor) to what it begins with.
pub use kennel_lifecycle::MODES_AT_FIRST;
pub use kennel_proto::pb::{
    admin_service_client::AdminServiceClient, process_service_client::ProcessServiceClient,
};
/// A point in time, as messages have it.
pub use prost_types::Timestamp as Time;
pub use resumes::{RESUMES_MAX, outlast, over_loss};
/// What a call takes.
pub use tonic::IntoRequest;
pub use tonic_health::pb::health_client::HealthClient;

use http::Uri;
use hyper_util::rt::TokioIo;
use kennel_proto::limits;
use resumes::Resumes;
use std::{fmt, io, path::PathBuf, str::FromStr, time::Duration};
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};

/// Connections that break before the first call, after which a client gives up.
const CONNECTS_MAX: u32 = 5;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A unix socket at this path.
    Unix(PathBuf),
}

/// The text names no server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot use {0:?} as a server's address: it must be unix:PATH")]
pub struct InvalidAddress(String);

impl FromStr for Address {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        match text.strip_prefix("unix:") {
            Some(path) if !path.is_empty() => Ok(Self::Unix(path.into())),
            _ => Err(InvalidAddress(text.to_owned())),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// No connection to a server came about.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nobody listens there.
    #[error("no server answers at {address}")]
    NoServer {
        /// Where.
        address: Address,
        /// What the socket said.
        #[source]
        source: io::Error,
    },
    /// Somebody else listens there: neither this user nor root.
    #[error("the server at {address} runs as user {uid}, which is neither this user nor root")]
    ForeignServer {
        /// Where.
        address: Address,
        /// As whom it runs.
        uid: u32,
    },
    /// It does not speak the protocol.
    #[error("cannot speak to the server at {address}")]
    Transport {
        /// Where.
        address: Address,
        /// What went wrong.
        #[source]
        source: tonic::transport::Error,
    },
}

/// A connection to a server. Cheap to clone; connects again by itself when the server was started anew.
#[derive(Clone, Debug)]
pub struct Connection {
    channel: Channel,
    address: Address,
}

/// Between two looks whether anything listens.
const GONE_LOOK: Duration = Duration::from_millis(50);

/// A request that is to be answered within this time; then it fails with `DEADLINE_EXCEEDED`.
#[must_use]
pub fn within<T>(wait: Duration, message: T) -> impl IntoRequest<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(wait);
    request
}

impl Connection {
    /// The service that a client needs.
    #[must_use]
    pub fn processes(&self) -> ProcessServiceClient<Channel> {
        ProcessServiceClient::new(self.channel.clone())
            .max_decoding_message_size(limits::RESPONSE_BYTES_MAX)
            .max_encoding_message_size(limits::REQUEST_BYTES_MAX)
    }

    /// The service that an operator needs.
    #[must_use]
    pub fn admin(&self) -> AdminServiceClient<Channel> {
        AdminServiceClient::new(self.channel.clone())
            .max_decoding_message_size(limits::RESPONSE_BYTES_MAX)
            .max_encoding_message_size(limits::REQUEST_BYTES_MAX)
    }

    /// Returns when nothing listens at the address. A keeper listens for as long as it lives, whether there is a server or not:
    /// so the service has ended.
    pub async fn gone(&self) {
        let Address::Unix(path) = &self.address;
        loop {
            use io::ErrorKind::{ConnectionRefused, NotFound};
            match UnixStream::connect(path).await {
                Err(error) if matches!(error.kind(), ConnectionRefused | NotFound) => return,
                Ok(_) | Err(_) => tokio::time::sleep(GONE_LOOK).await,
            }
        }
    }

    /// The health of the server.
    #[must_use]
    pub fn health(&self) -> HealthClient<Channel> {
        HealthClient::new(self.channel.clone())
    }
}

/// Connects to a server whose user is this process's own or root. Needs a tokio runtime.
pub async fn connect(address: &Address) -> Result<Connection, ConnectError> {
    let own_uid = own_uid().map_err(|source| ConnectError::NoServer {
        address: address.clone(),
        source,
    })?;
    let dialled = address.clone();
    connect_by(address, move || {
        let address = dialled.clone();
        async move { dial(&address, own_uid).await }
    })
    .await
}

/// Connects over what `dial` gives. A server that dies over the first words of a connection is no error: the socket is its
/// keeper's, and the next server is there soon.
async fn connect_by<F, D>(address: &Address, dial: F) -> Result<Connection, ConnectError>
where
    F: Fn() -> D + Clone + Send + 'static,
    D: Future<Output = Result<UnixStream, ConnectError>> + Send + 'static,
{
    let mut resumes = Resumes::default();
    loop {
        // Once by hand first: the transport's own error does not say why it could not connect.
        drop(dial().await?);
        let again = dial.clone();
        let connector = tower::service_fn(move |_: Uri| {
            let dialled = again();
            async move { dialled.await.map(TokioIo::new) }
        });
        // Over a unix socket there is no host name; without one some servers refuse the request.
        let connected = Endpoint::from_static("http://localhost")
            .connect_with_connector(connector)
            .await;
        match connected {
            Ok(channel) => {
                return Ok(Connection {
                    channel,
                    address: address.clone(),
                });
            }
            Err(source) => {
                if !resumes.pause(CONNECTS_MAX, None).await {
                    let address = address.clone();
                    return Err(ConnectError::Transport { address, source });
                }
            }
        }
    }
}

async fn dial(address: &Address, own_uid: u32) -> Result<UnixStream, ConnectError> {
    let Address::Unix(path) = address;
    let no_server = |source| ConnectError::NoServer {
        address: address.clone(),
        source,
    };
    let stream = UnixStream::connect(path).await.map_err(no_server)?;
    let uid = stream.peer_cred().map_err(no_server)?.uid();
    if uid != own_uid && uid != 0 {
        return Err(ConnectError::ForeignServer {
            address: address.clone(),
            uid,
        });
    }
    Ok(stream)
}

/// This process's effective user, as the other end of a socket sees it.
fn own_uid() -> io::Result<u32> {
    let (one, _other) = UnixStream::pair()?;
    Ok(one.peer_cred()?.uid())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    };
    use tokio::net::UnixListener;

    #[test]
    fn an_address_is_a_scheme_and_a_path() {
        let address: Address = "unix:/run/kennel/kennel.sock".parse().expect("an address");
        assert_eq!(address.to_string(), "unix:/run/kennel/kennel.sock");
        for bad in ["", "unix:", "/run/x", "tcp://127.0.0.1:1"] {
            assert!(bad.parse::<Address>().is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn connection_outlasts_server_that_dies_at_handshake() {
        let address = Address::Unix("/run/x".into());
        let dials = Arc::new(AtomicU32::new(0));
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let alive = Arc::new(Mutex::new(Some(ours)));
        let connected = connect_by(&address, {
            let (dials, alive) = (Arc::clone(&dials), Arc::clone(&alive));
            move || {
                let fourth = dials.fetch_add(1, Ordering::Relaxed) == 3;
                let stream = fourth.then(|| alive.lock().expect("no panic").take());
                // The other end of each other one is gone.
                let dead = || UnixStream::pair().expect("a pair").0;
                std::future::ready(Ok(stream.flatten().unwrap_or_else(dead)))
            }
        });
        connected.await.expect("the second server lives");
        assert_eq!(dials.load(Ordering::Relaxed), 4);
        drop(theirs);
    }

    #[tokio::test]
    async fn absent_server_is_distinguished_from_an_unrelated_one() {
        let dir = tempfile::TempDir::new().expect("a directory");
        let path = dir.path().join("socket");
        let address = Address::Unix(path.clone());
        let error = connect(&address).await.expect_err("nobody listens");
        assert!(matches!(error, ConnectError::NoServer { .. }), "{error:?}");

        let _listener = UnixListener::bind(&path).expect("bound");
        let own = own_uid().expect("a user");
        dial(&address, own).await.expect("this user's server");
        if own != 0 {
            let error = dial(&address, own + 1).await.expect_err("another user's");
            assert!(
                matches!(error, ConnectError::ForeignServer { .. }),
                "{error:?}"
            );
        }
    }
}
