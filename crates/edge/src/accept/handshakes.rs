//! TLS handshakes of one port: many at a time, each for a bounded time. Beyond the bound a new handshake replaces the
//! oldest, so that half-open ones lock no other client out.

use super::{
    Io,
    refusals::{Refusal, Refusals},
};
use crate::{
    access::{Access, ClientCertificate},
    auth::Peer,
    limits::{HANDSHAKE_MAX, HANDSHAKES_MAX},
};
use std::{collections::VecDeque, io, net::IpAddr, sync::Arc};
use tokio::{
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

type Shaken = Result<(Box<TlsStream<TcpStream>>, IpAddr), (io::Error, IpAddr)>;

pub(super) struct Handshakes {
    access: Arc<Access>,
    refusals: Arc<Refusals>,
    running: JoinSet<Shaken>,
    /// Handshakes in progress, the oldest first.
    handles: VecDeque<AbortHandle>,
}

impl Handshakes {
    pub(super) fn new(access: &Arc<Access>, refusals: &Arc<Refusals>) -> Self {
        Self {
            access: Arc::clone(access),
            refusals: Arc::clone(refusals),
            running: JoinSet::new(),
            handles: VecDeque::new(),
        }
    }

    /// Returns the next client that has finished its handshake. Cancel-safe.
    pub(super) async fn next(&mut self, listener: &TcpListener) -> io::Result<(Io, Peer)> {
        loop {
            let shaken = tokio::select! {
                accepted = listener.accept() => {
                    let (socket, from) = accepted?;
                    self.begin(socket, from.ip());
                    continue;
                }
                Some(shaken) = self.running.join_next() => shaken,
            };
            self.handles.retain(|handle| !handle.is_finished());
            match shaken {
                Ok(Ok((io, address))) => {
                    let (_, session) = io.get_ref();
                    let certificate = session
                        .peer_certificates()
                        .and_then(ClientCertificate::read);
                    return Ok((Io::Right(io), Peer::of_network(address, certificate)));
                }
                Ok(Err((error, address))) => {
                    tracing::debug!(%error, %address, "TLS handshake failed");
                    self.refusals
                        .note(Refusal::Handshake, &Peer::of_network(address, None));
                }
                // It was replaced by another one.
                Err(_) => {}
            }
        }
    }

    fn begin(&mut self, socket: TcpStream, address: IpAddr) {
        if self.running.len() >= HANDSHAKES_MAX
            && let Some(oldest) = self.handles.pop_front()
        {
            oldest.abort();
        }
        let tls = self.access.tls();
        let shake = async move {
            let tls = tls.ok_or_else(|| io::Error::other("there is no certificate any more"))?;
            socket.set_nodelay(true)?;
            let shaken = TlsAcceptor::from(tls).accept(socket);
            let shaken = tokio::time::timeout(HANDSHAKE_MAX, shaken).await;
            shaken.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
        };
        let handle = self.running.spawn(async move {
            match shake.await {
                Ok(io) => Ok((Box::new(io), address)),
                Err(error) => Err((error, address)),
            }
        });
        self.handles.push_back(handle);
    }
}
