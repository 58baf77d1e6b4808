//! Accepts connections. The transport's own loop spins when descriptors are used up, and a client that never makes a
//! call would stay for ever and delay a shutdown (<https://github.com/hyperium/hyper/issues/4170>).

mod credentials;
pub(crate) mod crowd;
mod handshakes;
pub(crate) mod places;
mod refusals;
pub(crate) mod tally;
mod unix;

pub(crate) use credentials::ServerCredentials;
pub(crate) use places::Places;
pub(crate) use refusals::Refusals;

use crate::{
    access::{Bearer, Rules},
    auth::{Full, Origin, Peer, PeerVerdict, run_tokens::RunTokens},
    limits::{self, TOKENS_PER_CONNECTION_MAX},
};
use futures_util::stream::{self, Stream};
use handshakes::TcpAcceptor;
use kennel_lifecycle::RunId;
use parking_lot::Mutex;
use places::ConnectionSlot;
use refusals::Refusal;
use std::{
    collections::HashSet,
    future::Future,
    io,
    net::TcpListener as StdTcpListener,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream},
    },
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::SystemTime,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
    sync::mpsc,
    time::Sleep,
};
use tokio_rustls::server::TlsStream;
use tokio_util::{
    either::Either,
    sync::{CancellationToken, WaitForCancellationFutureOwned},
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};
use tonic::transport::server::Connected;
use unix::UnixAcceptor;

/// Signals at which connections have to end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ending {
    /// Fires when no connection is accepted any more; later ones wait for the next server.
    pub(crate) shut: CancellationToken,
    /// Unix sockets at which connections are accepted, or are still to be handed over.
    pub(crate) open: TaskTracker,
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
pub(crate) struct ConnectionState {
    pub(crate) peer: Peer,
    /// Whether a call was accepted on it: from then on it may stay.
    has_called: AtomicBool,
    /// Whether a token with a forged signature was shown on it.
    has_forged: AtomicBool,
    /// The tokens of its calls.
    tokens: Mutex<HashSet<Bearer>>,
    /// Its slot, until it has ended.
    place: Weak<ConnectionSlot>,
    /// Fires when its credentials are no longer valid, its owner's calls are refused without end, or another client has
    /// its slot.
    cut: CancellationToken,
}

impl ConnectionState {
    pub(crate) fn new(peer: Peer, place: &Arc<ConnectionSlot>) -> Arc<Self> {
        Arc::new(Self {
            peer,
            has_called: AtomicBool::new(false),
            has_forged: AtomicBool::new(false),
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
            let mut tokens = self.tokens.lock();
            // Above the bound, a connection is cut when the first recorded token expires.
            if tokens.len() < TOKENS_PER_CONNECTION_MAX {
                tokens.insert(token);
            }
        }
    }

    /// Counts a token with a forged signature, and ends the connection with the second: each costs as much as many
    /// calls, and a new connection costs its client more than this server.
    pub(crate) fn count_forgery(&self) {
        if self.has_forged.swap(true, Ordering::Relaxed) {
            self.cut();
        }
    }

    /// Whether its calls may continue under these rules.
    pub(crate) fn is_good(&self, rules: &Rules, runs: Option<&RunTokens>, now: SystemTime) -> bool {
        if self.peer.verdict != PeerVerdict::Allowed {
            return self.tokens.lock().iter().all(|token| match token {
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
                .tokens
                .lock()
                .iter()
                .all(|token| rules.of_bearer(token, now).is_some()),
        }
    }

    #[cfg(test)]
    pub(crate) fn is_cut(&self) -> bool {
        self.cut.is_cancelled()
    }

    /// Ends the connection.
    pub(crate) fn cut(&self) {
        self.cut.cancel();
    }
}

/// State of a client that has not sent a byte: it ends when the shutdown begins, and is counted until then.
type Silence = (Pin<Box<WaitForCancellationFutureOwned>>, TaskTrackerToken);

type Tls = Box<TlsStream<TcpStream>>;

/// The bytes of a connection.
type Io = Either<UnixStream, Tls>;

/// A connection, as long as it may last.
pub(crate) struct Accepted {
    io: Io,
    connection: Arc<ConnectionState>,
    /// State before the first byte; absent: it has sent one.
    silence: Option<Silence>,
    /// Ends a connection on which no call was accepted; absent: one was.
    idle: Option<Pin<Box<Sleep>>>,
    over: Pin<Box<WaitForCancellationFutureOwned>>,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    refusals: Arc<Refusals>,
    _place: Arc<ConnectionSlot>,
}

impl Connected for Accepted {
    type ConnectInfo = Arc<ConnectionState>;

    fn connect_info(&self) -> Arc<ConnectionState> {
        Arc::clone(&self.connection)
    }
}

/// Judges the peers of unix sockets.
pub(crate) trait Judge: Clone + Send + 'static {
    /// Identifies the peer of a connection.
    fn judge(&self, socket: &StdUnixStream) -> io::Result<Peer>;

    /// Warns the run, if any, that the peer of a refused connection belongs to, where that is due.
    fn warn(&self, socket: &StdUnixStream, is_due: impl FnOnce(RunId) -> bool);
}

/// Returns the connections of all listeners.
pub(crate) fn incoming<J: Judge>(
    listeners: Vec<Listener>,
    ending: &Ending,
    places: &Places,
    refusals: &Arc<Refusals>,
    credentials: &Arc<ServerCredentials>,
    judge: &J,
) -> io::Result<impl Stream<Item = io::Result<Accepted>> + use<J>> {
    let acceptors = listeners.into_iter().map(|listener| {
        let welcome = Welcome {
            places: places.clone(),
            refusals: Arc::clone(refusals),
            credentials: Arc::clone(credentials),
            ending: ending.clone(),
        };
        let door = match listener {
            Listener::Unix(listener, rebound) => SocketAcceptor::Unix(UnixAcceptor::start(
                listener,
                rebound,
                judge.clone(),
                welcome.clone(),
            )?),
            Listener::Tcp(listener) => {
                SocketAcceptor::Tcp(TcpAcceptor::start(listener, welcome.clone())?)
            }
        };
        // A TCP handshake may take longer than a leaving server has time.
        let open = matches!(door, SocketAcceptor::Unix(_)).then(|| ending.open.token());
        Ok(Acceptor {
            door,
            welcome,
            open,
        })
    });
    let streams = acceptors.collect::<io::Result<Vec<_>>>()?;
    let streams = streams.into_iter().map(|acceptor| {
        Box::pin(stream::unfold(acceptor, |mut acceptor| async move {
            let accepted = acceptor.accept().await;
            Some((Ok(accepted), acceptor))
        }))
    });
    Ok(stream::select_all(streams))
}

/// A listening socket that does not block.
pub(crate) enum Listener {
    /// With those that are to replace it.
    Unix(StdUnixListener, mpsc::Receiver<OwnedFd>),
    Tcp(StdTcpListener),
}

/// A connection that has a slot, as the thread that accepted it hands it over.
struct Admitted {
    io: Either<StdUnixStream, Tls>,
    peer: Peer,
    place: Arc<ConnectionSlot>,
    silent: TaskTrackerToken,
}

enum SocketAcceptor<J> {
    Unix(UnixAcceptor<J>),
    Tcp(TcpAcceptor),
}

impl<J: Judge> SocketAcceptor<J> {
    /// Returns the next connection; `None`: it is stopped, and there is none left. Cancel-safe.
    async fn next(&mut self) -> Option<Admitted> {
        match self {
            Self::Unix(acceptor) => acceptor.next().await,
            Self::Tcp(acceptor) => acceptor.next().await,
        }
    }

    /// Leaves further connections in the queue of the socket.
    fn stop(&mut self) {
        match self {
            Self::Unix(acceptor) => acceptor.stop(),
            Self::Tcp(acceptor) => acceptor.stop(),
        }
    }
}

struct Acceptor<J> {
    door: SocketAcceptor<J>,
    welcome: Welcome,
    open: Option<TaskTrackerToken>,
}

impl<J: Judge> Acceptor<J> {
    async fn accept(&mut self) -> Accepted {
        let shut = self.welcome.ending.shut.clone();
        loop {
            if shut.is_cancelled() {
                self.door.stop();
            }
            let admitted = tokio::select! { biased;
                () = shut.cancelled(), if !shut.is_cancelled() => continue,
                admitted = self.door.next() => admitted,
            };
            match admitted.map(|admitted| self.welcome.accepted(admitted)) {
                Some(Ok(accepted)) => return accepted,
                Some(Err(error)) => {
                    tracing::warn!(%error, "cannot serve a connection that was accepted, closing it");
                }
                // The acceptor is stopped, or its thread has failed: connections stay in the queue.
                None => {
                    self.open = None;
                    return std::future::pending().await;
                }
            }
        }
    }
}

/// Slots for connections, and what ends them.
#[derive(Clone)]
struct Welcome {
    places: Places,
    refusals: Arc<Refusals>,
    credentials: Arc<ServerCredentials>,
    ending: Ending,
}

impl Welcome {
    /// Takes a slot for a connection of this peer; `None`: there is none.
    fn place(&self, peer: &mut Peer) -> Option<Arc<ConnectionSlot>> {
        match self.take(peer) {
            Ok(place) => Some(place),
            Err(full) => {
                self.refusals.note(full.into(), peer);
                // With a free slot for refused clients, this client gets the reason.
                peer.verdict = PeerVerdict::TooMany(full);
                self.take(peer).ok()
            }
        }
    }

    /// Takes a connection over from the thread that accepted it.
    fn accepted(&self, admitted: Admitted) -> io::Result<Accepted> {
        let Admitted {
            io,
            peer,
            place,
            silent,
        } = admitted;
        let io = match io {
            Either::Left(socket) => Io::Left(UnixStream::from_std(socket)?),
            Either::Right(mut tls) => {
                // A socket is registered with the runtime that made it: this runtime gets its own copy.
                let (socket, _) = tls.get_mut();
                let own = socket.as_fd().try_clone_to_owned()?;
                *socket = TcpStream::from_std(own.into())?;
                Io::Right(tls)
            }
        };
        let begun = self.ending.begun.clone().cancelled_owned();
        let connection = ConnectionState::new(peer, &place);
        self.credentials.watch(&connection);
        let cut = connection.cut.clone().cancelled_owned();
        Ok(Accepted {
            io,
            connection,
            silence: Some((Box::pin(begun), silent)),
            idle: Some(Box::pin(tokio::time::sleep(limits::FIRST_CALL_MAX))),
            over: Box::pin(self.ending.over.clone().cancelled_owned()),
            cut: Box::pin(cut),
            refusals: Arc::clone(&self.refusals),
            _place: place,
        })
    }

    fn take(&self, peer: &Peer) -> Result<Arc<ConnectionSlot>, Full> {
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
