//! Accepts connections. The transport's own loop spins when descriptors are used up, and a client that never makes a
//! call would stay for ever and delay a shutdown (<https://github.com/hyperium/hyper/issues/4170>).

mod credentials;
mod handshakes;
pub(crate) mod places;
mod refusals;

pub(crate) use credentials::Credentials;
pub(crate) use places::Places;
pub(crate) use refusals::Refusals;

use crate::{
    access::{Bearer, Rules},
    auth::{Origin, Peer, PeerVerdict},
    limits::{self, TOKENS_PER_CONNECTION_MAX},
    run_tokens::RunTokens,
};
use futures_util::stream::{self, Stream};
use handshakes::Handshakes;
use places::{Full, Place};
use refusals::Refusal;
use std::{
    collections::HashSet,
    future::Future,
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::SystemTime,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    time::Sleep,
};
use tokio_rustls::server::TlsStream;
use tokio_util::{
    either::Either,
    sync::{CancellationToken, WaitForCancellationFutureOwned},
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};
use tonic::transport::server::Connected;

/// Signals at which connections have to end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ending {
    /// Fires when no connection is accepted any more; later ones wait for the next server.
    pub(crate) shut: CancellationToken,
    /// Accepted clients that have not sent a byte.
    pub(crate) silent: TaskTracker,
    /// Calls that are not answered yet.
    pub(crate) calls: TaskTracker,
    /// Fires when the shutdown begins: clients that have not sent a byte are disconnected.
    pub(crate) begun: CancellationToken,
    /// Fires when its time is over: all clients are disconnected.
    pub(crate) over: CancellationToken,
}

/// State of a connection, for its requests.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) peer: Peer,
    /// Whether a call was accepted on it: from then on it may stay.
    has_called: AtomicBool,
    /// The tokens of its calls.
    tokens: Mutex<HashSet<Bearer>>,
    /// Its slot, until it has ended.
    place: Weak<Place>,
    /// Fires when its credentials are no longer valid, or another client has its slot.
    cut: CancellationToken,
}

impl Connection {
    fn new(peer: Peer, place: &Arc<Place>) -> Arc<Self> {
        Arc::new(Self {
            peer,
            has_called: AtomicBool::new(false),
            tokens: Mutex::default(),
            place: Arc::downgrade(place),
            cut: place.displaced(),
        })
    }

    /// Counts it with the connections of this principal; an error: that has too many.
    pub(crate) fn identify(&self, principal: &str) -> Result<(), Full> {
        let place = self.place.upgrade();
        place.map_or(Ok(()), |place| place.identify(principal))
    }

    /// Records that a call was accepted, with its token where it needed one.
    pub(crate) fn accept_call(&self, token: Option<Bearer>) {
        self.has_called.store(true, Ordering::Relaxed);
        if let Some(token) = token {
            let mut tokens = self.tokens();
            // A connection that uses so many is cut when the first of them expires.
            if tokens.len() < TOKENS_PER_CONNECTION_MAX {
                tokens.insert(token);
            }
        }
    }

    /// Whether its calls may continue under these rules.
    pub(crate) fn is_good(&self, rules: &Rules, runs: Option<&RunTokens>, now: SystemTime) -> bool {
        if self.peer.verdict != PeerVerdict::Allowed {
            return self.tokens().iter().all(|token| match token {
                Bearer::Run(attempt) => runs.is_some_and(|runs| runs.is_good(*attempt)),
                Bearer::Token(_) | Bearer::Signed(_) => false,
            });
        }
        match &self.peer.origin {
            Origin::Process { uid, pid } => rules.of_uid(*uid, *pid).is_some(),
            Origin::Network {
                certificate: Some(certificate),
                ..
            } => rules.trusts(certificate) && rules.of_principal(&certificate.uri).is_some(),
            Origin::Network { .. } => self
                .tokens()
                .iter()
                .all(|token| rules.of_bearer(token, now).is_some()),
        }
    }

    fn tokens(&self) -> MutexGuard<'_, HashSet<Bearer>> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the connection.
    pub(crate) fn cut(&self) {
        self.cut.cancel();
    }
}

/// State of a client that has not sent a byte: it ends when the shutdown begins, and is counted until then.
type Silence = (Pin<Box<WaitForCancellationFutureOwned>>, TaskTrackerToken);

/// The bytes of a connection.
type Io = Either<UnixStream, Box<TlsStream<TcpStream>>>;

/// A connection, as long as it may last.
pub(crate) struct Accepted {
    io: Io,
    connection: Arc<Connection>,
    /// State before the first byte; absent: it has sent one.
    silence: Option<Silence>,
    /// Ends a connection on which no call was accepted; absent: one was.
    idle: Option<Pin<Box<Sleep>>>,
    over: Pin<Box<WaitForCancellationFutureOwned>>,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    refusals: Arc<Refusals>,
    _place: Arc<Place>,
}

impl Connected for Accepted {
    type ConnectInfo = Arc<Connection>;

    fn connect_info(&self) -> Arc<Connection> {
        Arc::clone(&self.connection)
    }
}

/// Returns the connections of all listeners.
pub(crate) fn incoming<J>(
    listeners: Vec<Listener>,
    ending: &Ending,
    places: &Places,
    refusals: &Arc<Refusals>,
    credentials: &Arc<Credentials>,
    judge: J,
) -> impl Stream<Item = io::Result<Accepted>> + use<J>
where
    J: Fn(&UnixStream) -> io::Result<Peer> + Clone + Send + 'static,
{
    let streams = listeners.into_iter().map(|listener| {
        let acceptor = Acceptor {
            handshakes: Handshakes::new(credentials.access(), refusals),
            listener,
            places: places.clone(),
            refusals: Arc::clone(refusals),
            credentials: Arc::clone(credentials),
            ending: ending.clone(),
            judge: judge.clone(),
        };
        Box::pin(stream::unfold(acceptor, |mut acceptor| async move {
            let accepted = acceptor.accept().await;
            Some((Ok(accepted), acceptor))
        }))
    });
    stream::select_all(streams)
}

/// A listening socket.
pub(crate) enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

struct Acceptor<J> {
    listener: Listener,
    handshakes: Handshakes,
    places: Places,
    refusals: Arc<Refusals>,
    credentials: Arc<Credentials>,
    ending: Ending,
    judge: J,
}

impl<J: Fn(&UnixStream) -> io::Result<Peer>> Acceptor<J> {
    async fn accept(&mut self) -> Accepted {
        loop {
            let shut = self.ending.shut.clone();
            let met = tokio::select! { biased;
                () = shut.cancelled() => return std::future::pending().await,
                met = self.meet() => met,
            };
            match met {
                Ok((io, peer)) => {
                    if let Some(accepted) = self.welcome(io, peer) {
                        return accepted;
                    }
                    // A peer that keeps connecting must not keep this task from others.
                    tokio::task::yield_now().await;
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection, retrying");
                    tokio::time::sleep(limits::ACCEPT_REST).await;
                }
            }
        }
    }

    /// Accepts the next connection, and identifies its peer. Cancel-safe.
    async fn meet(&mut self) -> io::Result<(Io, Peer)> {
        match &self.listener {
            Listener::Unix(listener) => {
                let (io, _) = listener.accept().await?;
                let peer = (self.judge)(&io)?;
                Ok((Io::Left(io), peer))
            }
            Listener::Tcp(listener) => {
                // Without the keys a good token would be refused: clients wait in the queue of the socket.
                self.credentials.begun().await;
                self.handshakes.next(listener).await
            }
        }
    }

    /// Admits a connection of this peer; `None`: there is no slot for it, and it is closed.
    fn welcome(&self, io: Io, mut peer: Peer) -> Option<Accepted> {
        let place = match self.place(&peer) {
            Ok(place) => place,
            Err(full) => {
                self.refusals.note(full.into(), &peer);
                // Where there is a slot among the refused, it gets the reason.
                peer.verdict = PeerVerdict::TooMany(full);
                self.place(&peer).ok()?
            }
        };
        let begun = self.ending.begun.clone().cancelled_owned();
        let connection = Connection::new(peer, &place);
        self.credentials.watch(&connection);
        let cut = connection.cut.clone().cancelled_owned();
        Some(Accepted {
            io,
            connection,
            silence: Some((Box::pin(begun), self.ending.silent.token())),
            idle: Some(Box::pin(tokio::time::sleep(limits::FIRST_CALL_MAX))),
            over: Box::pin(self.ending.over.clone().cancelled_owned()),
            cut: Box::pin(cut),
            refusals: Arc::clone(&self.refusals),
            _place: place,
        })
    }

    fn place(&self, peer: &Peer) -> Result<Arc<Place>, Full> {
        let (place, greedy) = self.places.take(peer)?;
        if let Some(greedy) = greedy {
            let peer = Peer::of_network(greedy, None);
            self.refusals.note(Refusal::Displaced, &peer);
        }
        if let Origin::Network {
            certificate: Some(certificate),
            ..
        } = &peer.origin
            && let rules = self.credentials.access().rules()
            && rules.of_principal(&certificate.uri).is_some()
        {
            place.identify(&certificate.uri)?;
        }
        Ok(Arc::new(place))
    }
}

impl Accepted {
    /// Polls for its end, which comes also while it is read from and written to without a pause.
    fn end(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.over.as_mut().poll(cx).is_ready() || self.cut.as_mut().poll(cx).is_ready() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        if self.connection.has_called.load(Ordering::Relaxed) {
            self.idle = None;
        }
        if let Some(idle) = &mut self.idle
            && idle.as_mut().poll(cx).is_ready()
        {
            self.idle = None;
            self.refusals.note(Refusal::NoCall, &self.connection.peer);
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }
}

impl AsyncRead for Accepted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.end(cx)?;
        let before = buf.filled().len();
        if let Poll::Ready(read) = Pin::new(&mut self.io).poll_read(cx, buf) {
            if buf.filled().len() > before {
                self.silence = None;
            }
            return Poll::Ready(read);
        }
        if let Some((begun, _)) = &mut self.silence
            && begun.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Poll::Pending
    }
}

impl AsyncWrite for Accepted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.end(cx)?;
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.end(cx)?;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.end(cx)?;
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.end(cx)?;
        Pin::new(&mut self.io).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests;
