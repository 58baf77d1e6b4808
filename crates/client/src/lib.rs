//! The Rust client: connects over a unix socket or TLS, gives errors a type, and reads events across restarts.
//!
//! Prints nothing. [`Surroundings::here`] alone reads the environment, [`Contexts::read`] alone the file of contexts.
//! [`Connection::call`] repeats what the contract permits.

mod address;
mod attach;
mod authorized;
mod connect;
mod contexts;
mod credentials;
mod duplex;
mod events;
mod failure;
mod health;
mod input;
mod repeats;
mod resumes;
mod surroundings;
mod target;
mod tls;

pub use address::{Address, InvalidAddress};
pub use attach::{Attachment, WRITES_MAX};
pub use authorized::{Authorized, has_broken, shown};
pub use connect::{connect, connect_with, error::ConnectError};
pub use contexts::{Context, Contexts, DEFAULT_CONTEXT, read_default};
pub use credentials::{Credentials, CredentialsError, Tls, Token, pem, private_key};
pub use duplex::Duplex;
pub use events::{EventReader, Start, last_lines, time_of};
pub use failure::Failure;
pub use health::check_health;
pub use input::InputWriter;
/// Sequence that undoes what an attached command has set in this terminal.
pub use kennel_lifecycle::{REMEMBER_TERMINAL, put_terminal_back};
pub use kennel_proto::{
    call::{Call, MayRepeat},
    pb::{admin_service_client::AdminServiceClient, process_service_client::ProcessServiceClient},
};
/// A point in time, as in messages.
pub use prost_types::Timestamp as Time;
pub use repeats::Repeats;
pub use resumes::{RESUMES_MAX, repeated};
pub use surroundings::Surroundings;
pub use target::{Given, Target, error::TargetError, socket_path};
/// Argument of a call.
pub use tonic::IntoRequest;
pub use tonic_health::pb::health_client::HealthClient;

use credentials::TokenReader;
use http::HeaderValue;
use kennel_proto::{call, limits};
use std::{io, sync::Arc, time::Duration};
use tokio::net::{TcpStream, UnixStream};
use tonic::transport::Channel;

/// The text has control characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a node's name or id has no control characters")]
pub struct InvalidNode;

/// A connection to a server. Cheap to clone; reconnects by itself when the server was restarted.
#[derive(Clone, Debug)]
pub struct Connection {
    channel: Channel,
    address: Address,
    token: Option<Arc<TokenReader>>,
    /// The target node of calls; absent: the node that answers.
    node: Option<HeaderValue>,
}

/// Time between two checks whether anything listens.
const GONE_LOOK: Duration = Duration::from_millis(50);
/// The same time across a network, where each check costs the server a connection.
const GONE_LOOK_FAR: Duration = Duration::from_millis(500);

/// Makes a request with this deadline; after it the call fails with `DEADLINE_EXCEEDED`.
pub fn within<T>(wait: Duration, message: T) -> impl IntoRequest<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(wait);
    request
}

impl Connection {
    /// Returns the channel, for stubs of other services at the same server.
    pub fn channel(&self) -> Authorized {
        Authorized::new(self.channel.clone(), self.token.clone(), self.node.clone())
    }

    /// Returns the connection with a target node, by name or id, to which its server forwards the calls.
    pub fn to_node(self, node: &str) -> Result<Self, InvalidNode> {
        let node = HeaderValue::from_bytes(node.as_bytes()).map_err(|_| InvalidNode)?;
        Ok(Self {
            node: Some(node),
            ..self
        })
    }

    /// Makes a call, and makes it again where its server was lost, is shut down or cannot answer yet, if the contract
    /// permits that for this request: [`Call::repeats`].
    pub async fn call<C: Call>(&self, request: C) -> Result<C::Answer, Failure> {
        self.call_by(request, tonic::Request::new).await
    }

    /// Makes a call likewise, each time with this deadline: for those that do not wait for anything.
    pub async fn call_within<C: Call>(
        &self,
        wait: Duration,
        request: C,
    ) -> Result<C::Answer, Failure> {
        let within = |request| within(wait, request).into_request();
        self.call_by(request, within).await
    }

    async fn call_by<C: Call>(
        &self,
        request: C,
        made: impl Fn(C) -> tonic::Request<C>,
    ) -> Result<C::Answer, Failure> {
        // Boxed: some requests are large.
        Box::pin(repeated(request.repeats(), || {
            call::unary(self.channel(), made(request.clone()))
        }))
        .await
    }

    /// Returns the stub of the service for clients.
    pub fn processes(&self) -> ProcessServiceClient<Authorized> {
        ProcessServiceClient::new(self.channel())
            .max_decoding_message_size(limits::RESPONSE_BYTES_MAX)
            .max_encoding_message_size(limits::REQUEST_BYTES_MAX)
    }

    /// Returns the stub of the service for operators.
    pub fn admin(&self) -> AdminServiceClient<Authorized> {
        AdminServiceClient::new(self.channel())
            .max_decoding_message_size(limits::RESPONSE_BYTES_MAX)
            .max_encoding_message_size(limits::REQUEST_BYTES_MAX)
    }

    /// Returns when nothing listens at the address. A keeper listens for as long as it lives, with or without a server:
    /// so the service has ended.
    pub async fn gone(&self) {
        use io::ErrorKind::{ConnectionRefused, NotFound};
        loop {
            let (looked, pause) = match &self.address {
                Address::Unix(path) => (UnixStream::connect(path).await.map(drop), GONE_LOOK),
                Address::Tcp { host, port } => {
                    let looked = TcpStream::connect((host.as_str(), *port)).await;
                    (looked.map(drop), GONE_LOOK_FAR)
                }
            };
            match looked {
                Err(error) if matches!(error.kind(), ConnectionRefused | NotFound) => return,
                Ok(()) | Err(_) => tokio::time::sleep(pause).await,
            }
        }
    }

    /// Returns the stub of the server's health service.
    pub fn health(&self) -> HealthClient<Authorized> {
        HealthClient::new(self.channel())
    }
}
