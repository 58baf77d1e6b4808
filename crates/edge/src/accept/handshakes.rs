//! Accepts at a TCP port and does the TLS handshakes, on a thread of its own: neither a flood of connections nor the
//! cryptography of their handshakes delays a call. Many handshakes are in progress at a time, each for a bounded time.
//! Beyond the bound a new one displaces the oldest of the address with the most, so that half-open ones lock no other
//! client out.

use super::{Admitted, Tls, Welcome, refusals::Refusal};
use crate::{
    accept::crowd::{Crowd, Member},
    access::ClientCertificate,
    auth::Peer,
    limits::{ACCEPT_REST, FIRST_BYTE_MAX, HANDSHAKE_MAX, HANDSHAKES_MAX},
};
use std::{
    io,
    net::{IpAddr, TcpListener as StdTcpListener},
    thread::{self, JoinHandle},
};
use tokio::{
    net::{TcpListener, TcpStream},
    runtime,
    sync::mpsc,
    task::JoinSet,
    time::timeout,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::either::Either;

/// Accepts at one port. Its thread ends with this value.
pub(super) struct TcpAcceptor {
    admitted: mpsc::Receiver<Admitted>,
    thread: Option<JoinHandle<()>>,
}

impl TcpAcceptor {
    /// Starts the thread, of a listener that does not block.
    pub(super) fn start(listener: StdTcpListener, welcome: Welcome) -> io::Result<Self> {
        let (to, admitted) = mpsc::channel(HANDSHAKES_MAX);
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let thread = thread::Builder::new().name("handshakes".into());
        let thread = thread.spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = Handshakes::new(welcome).serve(listener, &to) => {}
                    () = to.closed() => {}
                }
            });
        })?;
        Ok(Self {
            admitted,
            thread: Some(thread),
        })
    }

    /// Returns the next client that has finished its handshake; `None`: it is stopped, and there is none left.
    /// Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<Admitted> {
        self.admitted.recv().await
    }

    /// Leaves further connections in the queue of the socket.
    pub(super) fn stop(&mut self) {
        self.admitted.close();
    }
}

impl Drop for TcpAcceptor {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Result of a handshake; `None`: it was displaced.
type Shaken = (Member, IpAddr, Option<io::Result<Tls>>);

/// The handshakes in progress at one port.
struct Handshakes {
    welcome: Welcome,
    running: JoinSet<Shaken>,
    in_progress: Crowd<HANDSHAKES_MAX>,
}

impl Handshakes {
    fn new(welcome: Welcome) -> Self {
        Self {
            welcome,
            running: JoinSet::new(),
            in_progress: Crowd::default(),
        }
    }

    /// Sends the clients that have finished their handshakes; returns only where it cannot listen.
    async fn serve(mut self, listener: StdTcpListener, to: &mpsc::Sender<Admitted>) {
        let listener = match TcpListener::from_std(listener) {
            Ok(listener) => listener,
            Err(error) => return tracing::error!(%error, "cannot accept at a TCP port"),
        };
        // Without the issuers' keys a good token would be refused, so clients wait in the accept queue.
        self.welcome.credentials.begun().await;
        loop {
            match self.next(&listener).await {
                Ok((tls, mut peer)) => {
                    let silent = self.welcome.ending.silent.token();
                    let Some(place) = self.welcome.place(&mut peer) else {
                        continue;
                    };
                    let io = Either::Right(tls);
                    let admitted = Admitted {
                        io,
                        peer,
                        place,
                        silent,
                    };
                    let _ = to.send(admitted).await;
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection, retrying");
                    tokio::time::sleep(ACCEPT_REST).await;
                }
            }
        }
    }

    /// Returns the next client that has finished its handshake. Cancel-safe.
    async fn next(&mut self, listener: &TcpListener) -> io::Result<(Tls, Peer)> {
        loop {
            let shaken = tokio::select! {
                accepted = listener.accept() => {
                    let (socket, from) = accepted?;
                    self.begin(socket, from.ip());
                    continue;
                }
                Some(shaken) = self.running.join_next() => shaken,
            };
            let Ok((member, address, shaken)) = shaken else {
                continue;
            };
            self.in_progress.remove(&member);
            match shaken {
                Some(Ok(tls)) => {
                    let (_, session) = tls.get_ref();
                    let certificate = session
                        .peer_certificates()
                        .and_then(ClientCertificate::read);
                    return Ok((tls, Peer::of_network(address, certificate)));
                }
                Some(Err(error)) => {
                    tracing::debug!(%error, %address, "TLS handshake failed");
                    let peer = Peer::of_network(address, None);
                    self.welcome.refusals.note_handshake(&error, &peer);
                }
                None => {}
            }
        }
    }

    fn begin(&mut self, socket: TcpStream, address: IpAddr) {
        let (member, greedy) = self.in_progress.add(address);
        if let Some(greedy) = greedy {
            let peer = Peer::of_network(greedy, None);
            self.welcome.refusals.note(Refusal::Displaced, &peer);
        }
        let tls = self.welcome.credentials.access().tls();
        let shake = async move {
            let tls = tls.ok_or_else(|| io::Error::other("there is no certificate any more"))?;
            socket.set_nodelay(true)?;
            let shaken = async {
                // A silent client costs no more than its socket. A new socket counts as readable until the first read,
                // so a byte is peeked.
                timeout(FIRST_BYTE_MAX, socket.peek(&mut [0])).await??;
                TlsAcceptor::from(tls).accept(socket).await
            };
            Ok(Box::new(timeout(HANDSHAKE_MAX, shaken).await??))
        };
        self.running.spawn(async move {
            let shaken = member.displaced.run_until_cancelled(shake).await;
            (member, address, shaken)
        });
    }
}

#[cfg(test)]
mod tests;
