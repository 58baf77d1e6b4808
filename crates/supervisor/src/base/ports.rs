//! What the supervisor uses of its surroundings, as traits: tests implement them with a fake kernel.

use async_trait::async_trait;
pub use kennel_keeper::client::Kernel;
use kennel_keeper::client::{KeeperEvent, KeeperEvents};
use kennel_lifecycle::RunId;
use std::{io, net::SocketAddr, num::NonZeroU64};
use tokio::net::TcpStream;

/// Client of the servers of runs, by HTTP and grpc.health.v1; implemented outside this crate.
#[async_trait]
pub trait HealthCheck: Send + Sync + std::fmt::Debug {
    /// Asks the server at this address for the health of a service; empty: of the whole server.
    ///
    /// # Errors
    ///
    /// The text says why the server does not report SERVING.
    async fn check(&self, address: SocketAddr, service: &str) -> Result<(), String>;

    /// Sends GET over this connection and reads the answer.
    ///
    /// # Errors
    ///
    /// The text says why the answer is not 2xx.
    async fn get(&self, stream: TcpStream, path: &str) -> Result<(), String>;
}

/// Makes tokens; implemented outside this crate, where they are checked too.
pub trait TokenMaker: Send + Sync + std::fmt::Debug {
    /// The token with which processes of this attempt of a run may call.
    fn token(&self, run: RunId, attempt: u32) -> String;
}

/// Quotas of owners, as they are at present; implemented outside this crate.
pub trait OwnerQuotas: Send + Sync + std::fmt::Debug {
    /// Bytes a second at which the output of all runs of this owner together is read; absent: as fast as it comes.
    fn output_bytes_per_second(&self, owner: &str) -> Option<NonZeroU64>;

    /// Bytes of the rows of this owner from which on no record is made; absent: any number.
    fn record_bytes(&self, owner: &str) -> Option<NonZeroU64>;
}

/// Seals what is kept of a run for its next attempt; implemented outside this crate, where the key is.
pub trait Sealer: Send + Sync + std::fmt::Debug {
    /// Returns the sealed form of these bytes, which opens for this run alone.
    ///
    /// # Errors
    ///
    /// There is no randomness to seal with.
    fn seal(&self, run: RunId, plain: &[u8]) -> io::Result<Vec<u8>>;

    /// Opens it in its own memory, and returns the bytes there.
    ///
    /// # Errors
    ///
    /// It was not sealed with this key for this run, or has been changed.
    fn open<'a>(&self, run: RunId, sealed: &'a mut [u8]) -> io::Result<&'a [u8]>;
}

/// Receiver of the keeper's events.
#[async_trait]
pub trait KernelEvents: Send {
    /// Returns the next event; after [`KeeperEvent::Gone`] only that. Cancel-safe.
    async fn recv(&mut self) -> KeeperEvent;
}

#[async_trait]
impl KernelEvents for KeeperEvents {
    async fn recv(&mut self) -> KeeperEvent {
        Self::recv(self).await
    }
}
