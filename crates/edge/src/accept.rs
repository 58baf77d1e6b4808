//! Accepts connections. The transport's own loop spins when descriptors are used up, and a client that never sends a byte
//! would live for ever and hold a shutdown up (<https://github.com/hyperium/hyper/issues/4170>).

use crate::{auth::Peer, limits};
use futures_util::stream::{self, Stream};
use std::{
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{UnixListener, UnixStream, unix::UCred},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_util::{
    sync::{CancellationToken, WaitForCancellationFutureOwned},
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};

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

/// Ends after its time; and is counted.
type Silence = (Pin<Box<dyn Future<Output = ()> + Send>>, TaskTrackerToken);

/// A connection, as long as it may last.
pub(crate) struct Accepted {
    io: UnixStream,
    peer: Peer,
    /// Ends a connection that has not sent a byte yet; absent: it has.
    silence: Option<Silence>,
    over: Pin<Box<WaitForCancellationFutureOwned>>,
    _place: OwnedSemaphorePermit,
}

impl Accepted {
    pub(crate) fn peer(&self) -> &Peer {
        &self.peer
    }
}

/// The connections that come in on all listeners, at most [`limits::CONNECTIONS_MAX`] at a time.
pub(crate) fn incoming<J>(
    listeners: Vec<UnixListener>,
    ending: &Ending,
    judge: J,
) -> impl Stream<Item = io::Result<Accepted>> + use<J>
where
    J: Fn(UCred) -> Peer + Clone + Send + 'static,
{
    let places = Arc::new(Semaphore::new(limits::CONNECTIONS_MAX));
    let streams = listeners.into_iter().map(|listener| {
        let door = Door {
            listener,
            places: places.clone(),
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
    places: Arc<Semaphore>,
    ending: Ending,
    judge: J,
}

impl<J: Fn(UCred) -> Peer> Door<J> {
    async fn accept(&self) -> Accepted {
        let place = self.places.clone().acquire_owned();
        let place = place.await.expect("the semaphore is never closed");
        loop {
            let accepted = tokio::select! { biased;
                () = self.ending.shut.cancelled() => return std::future::pending().await,
                accepted = self.listener.accept() => accepted,
            };
            let met = match accepted {
                Ok((io, _)) => io.peer_cred().map(|cred| (io, cred)),
                Err(error) => Err(error),
            };
            match met {
                Ok((io, cred)) => return self.welcome(io, cred, place),
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted, trying again");
                    tokio::time::sleep(limits::ACCEPT_REST).await;
                }
            }
        }
    }

    fn welcome(&self, io: UnixStream, cred: UCred, place: OwnedSemaphorePermit) -> Accepted {
        let begun = self.ending.begun.clone();
        let silence = async move {
            // Whichever comes first: the client has been silent for too long, or the shutdown begins.
            let _ = tokio::time::timeout(limits::FIRST_BYTE_MAX, begun.cancelled()).await;
        };
        Accepted {
            io,
            peer: (self.judge)(cred),
            silence: Some((Box::pin(silence), self.ending.silent.token())),
            over: Box::pin(self.ending.over.clone().cancelled_owned()),
            _place: place,
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
        if let Some((silence, _)) = &mut self.silence
            && silence.as_mut().poll(cx).is_ready()
        {
            self.silence = None;
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
