//! Accepts connections. The transport's own loop spins when descriptors are used up, and a client that never makes a call
//! would live for ever and hold a shutdown up (<https://github.com/hyperium/hyper/issues/4170>).

pub(crate) mod places;
mod refusals;

pub(crate) use places::Places;
pub(crate) use refusals::Refusals;

use crate::{
    auth::{Peer, Standing},
    limits,
};
use futures_util::stream::{self, Stream};
use places::Place;
use refusals::Refusal;
use std::{
    future::Future,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{UnixListener, UnixStream},
    time::Sleep,
};
use tokio_util::{
    sync::{CancellationToken, WaitForCancellationFutureOwned},
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};
use tonic::transport::server::Connected;

/// When connections have to end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ending {
    /// Fires when nobody is accepted any more; who connects then waits for the next server.
    pub(crate) shut: CancellationToken,
    /// Who was accepted and has not sent a byte.
    pub(crate) silent: TaskTracker,
    /// Calls that are not answered yet.
    pub(crate) calls: TaskTracker,
    /// Fires when the shutdown begins: who has not sent a byte is let go.
    pub(crate) begun: CancellationToken,
    /// Fires when its time is over: everybody is let go.
    pub(crate) over: CancellationToken,
}

/// What a request knows of its connection.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub(crate) peer: Peer,
    /// Whether a call was accepted on it: from then on it may stay.
    has_called: Arc<AtomicBool>,
}

impl Connection {
    pub(crate) fn new(peer: Peer) -> Self {
        Self {
            peer,
            has_called: Arc::default(),
        }
    }

    /// A call is accepted.
    pub(crate) fn accept_call(&self) {
        self.has_called.store(true, Ordering::Relaxed);
    }
}

/// Of a client that has not sent a byte: it ends when the shutdown begins, and is counted until then.
type Silence = (Pin<Box<WaitForCancellationFutureOwned>>, TaskTrackerToken);

/// A connection, as long as it may last.
pub(crate) struct Accepted {
    io: UnixStream,
    connection: Connection,
    /// Absent: it has sent a byte.
    silence: Option<Silence>,
    /// Ends a connection on which no call was accepted; absent: one was.
    idle: Option<Pin<Box<Sleep>>>,
    over: Pin<Box<WaitForCancellationFutureOwned>>,
    refusals: Arc<Refusals>,
    _place: Place,
}

impl Connected for Accepted {
    type ConnectInfo = Connection;

    fn connect_info(&self) -> Connection {
        self.connection.clone()
    }
}

/// The connections that come in on all listeners.
pub(crate) fn incoming<J>(
    listeners: Vec<UnixListener>,
    ending: &Ending,
    places: &Places,
    refusals: &Arc<Refusals>,
    judge: J,
) -> impl Stream<Item = io::Result<Accepted>> + use<J>
where
    J: Fn(&UnixStream) -> io::Result<Peer> + Clone + Send + 'static,
{
    let streams = listeners.into_iter().map(|listener| {
        let door = Door {
            listener,
            places: places.clone(),
            refusals: Arc::clone(refusals),
            ending: ending.clone(),
            judge: judge.clone(),
        };
        Box::pin(stream::unfold(door, |door| async move {
            let accepted = door.accept().await;
            Some((Ok(accepted), door))
        }))
    });
    stream::select_all(streams)
}

struct Door<J> {
    listener: UnixListener,
    places: Places,
    refusals: Arc<Refusals>,
    ending: Ending,
    judge: J,
}

impl<J: Fn(&UnixStream) -> io::Result<Peer>> Door<J> {
    async fn accept(&self) -> Accepted {
        loop {
            let accepted = tokio::select! { biased;
                () = self.ending.shut.cancelled() => return std::future::pending().await,
                accepted = self.listener.accept() => accepted,
            };
            let met = match accepted {
                Ok((io, _)) => (self.judge)(&io).map(|peer| (io, peer)),
                Err(error) => Err(error),
            };
            match met {
                Ok((io, peer)) => {
                    if let Some(accepted) = self.welcome(io, peer) {
                        return accepted;
                    }
                    // Whoever connects and connects must not keep this task from others.
                    tokio::task::yield_now().await;
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted, trying again");
                    tokio::time::sleep(limits::ACCEPT_REST).await;
                }
            }
        }
    }

    /// A connection of this peer; `None`: there is no room for it, and it is closed.
    fn welcome(&self, io: UnixStream, mut peer: Peer) -> Option<Accepted> {
        let place = match self.places.take(&peer) {
            Ok(place) => place,
            Err(full) => {
                self.refusals.note(full.into(), &peer);
                // Where there is room among the refused, it is told why.
                peer.standing = Standing::TooMany(full);
                self.places.take(&peer).ok()?
            }
        };
        let begun = self.ending.begun.clone().cancelled_owned();
        Some(Accepted {
            io,
            connection: Connection::new(peer),
            silence: Some((Box::pin(begun), self.ending.silent.token())),
            idle: Some(Box::pin(tokio::time::sleep(limits::FIRST_CALL_MAX))),
            over: Box::pin(self.ending.over.clone().cancelled_owned()),
            refusals: Arc::clone(&self.refusals),
            _place: place,
        })
    }
}

impl Accepted {
    /// Whether it ends while there is nothing to read.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.connection.has_called.load(Ordering::Relaxed) {
            self.idle = None;
        }
        if let Some(idle) = &mut self.idle
            && idle.as_mut().poll(cx).is_ready()
        {
            self.idle = None;
            self.refusals.note(Refusal::NoCall, &self.connection.peer);
            return Poll::Ready(());
        }
        match &mut self.silence {
            Some((begun, _)) => begun.as_mut().poll(cx),
            None => Poll::Pending,
        }
    }
}

impl AsyncRead for Accepted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.over.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let before = buf.filled().len();
        if let Poll::Ready(read) = Pin::new(&mut self.io).poll_read(cx, buf) {
            if buf.filled().len() > before {
                self.silence = None;
            }
            return Poll::Ready(read);
        }
        match self.poll_end(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncWrite for Accepted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests;
