//! TLS handshakes of one port: many at a time, each for a bounded time. Beyond the bound a new handshake displaces the
//! oldest of the address with the most, so that half-open ones lock no other client out.

use super::{
    Io,
    refusals::{Refusal, Refusals},
};
use crate::{
    access::{Access, ClientCertificate},
    auth::Peer,
    crowd::{Crowd, Member},
    limits::{HANDSHAKE_MAX, HANDSHAKES_MAX},
};
use std::{io, net::IpAddr, sync::Arc};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

/// Result of a handshake; `None`: it was displaced.
type Shaken = (
    Member,
    IpAddr,
    Option<io::Result<Box<TlsStream<TcpStream>>>>,
);

pub(super) struct Handshakes {
    access: Arc<Access>,
    refusals: Arc<Refusals>,
    running: JoinSet<Shaken>,
    in_progress: Crowd<HANDSHAKES_MAX>,
}

impl Handshakes {
    pub(super) fn new(access: &Arc<Access>, refusals: &Arc<Refusals>) -> Self {
        Self {
            access: Arc::clone(access),
            refusals: Arc::clone(refusals),
            running: JoinSet::new(),
            in_progress: Crowd::default(),
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
            let Ok((member, address, shaken)) = shaken else {
                continue;
            };
            self.in_progress.remove(&member);
            match shaken {
                Some(Ok(io)) => {
                    let (_, session) = io.get_ref();
                    let certificate = session
                        .peer_certificates()
                        .and_then(ClientCertificate::read);
                    return Ok((Io::Right(io), Peer::of_network(address, certificate)));
                }
                Some(Err(error)) => {
                    tracing::debug!(%error, %address, "TLS handshake failed");
                    let peer = Peer::of_network(address, None);
                    self.refusals.note_handshake(&error, &peer);
                }
                None => {}
            }
        }
    }

    fn begin(&mut self, socket: TcpStream, address: IpAddr) {
        let (member, greedy) = self.in_progress.add(address);
        if let Some(greedy) = greedy {
            let peer = Peer::of_network(greedy, None);
            self.refusals.note(Refusal::Displaced, &peer);
        }
        let tls = self.access.tls();
        let shake = async move {
            let tls = tls.ok_or_else(|| io::Error::other("there is no certificate any more"))?;
            socket.set_nodelay(true)?;
            let shaken = async {
                // A client that sends nothing costs no more than its socket.
                socket.readable().await?;
                TlsAcceptor::from(tls).accept(socket).await
            };
            let shaken = tokio::time::timeout(HANDSHAKE_MAX, shaken).await;
            let io = shaken.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
            Ok(Box::new(io))
        };
        self.running.spawn(async move {
            let shaken = member.displaced.run_until_cancelled(shake).await;
            (member, address, shaken)
        });
    }
}
