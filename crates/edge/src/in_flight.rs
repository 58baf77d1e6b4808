//! Bytes in flight of owners: of their answers those that the transport holds because the client has not taken them.
//!
//! An owner at its quota waits, stream by stream, until its clients have read; no byte is lost. A call of which nothing
//! is in flight may always send one message, so that no call waits for another client to read.

use crate::{
    access::Caller,
    layer::{Answer, Middleware},
    shares::Shares,
};
use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use std::{
    future::Future,
    num::NonZeroU64,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
};
use tokio::sync::watch;
use tonic::{Status, body::Body};
use tower::Service;

/// Number of bytes in flight of one owner. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct InFlight(Arc<watch::Sender<u64>>);

impl InFlight {
    /// Returns the number of bytes.
    pub(crate) fn bytes(&self) -> u64 {
        *self.0.borrow()
    }

    /// Whether a call has it.
    pub(crate) fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

/// Bounds the bytes in flight of owners.
#[derive(Clone, Debug)]
pub(crate) struct BytesInFlight(pub(crate) Shares);

impl<S, B> Middleware<S, Request<B>> for BytesInFlight
where
    S: Service<Request<B>, Response = Response<Body>>,
    S::Future: Send + 'static,
{
    type Future = Answer<S::Error>;

    fn call(&self, inner: &mut S, request: Request<B>) -> Self::Future {
        let caller = request.extensions().get::<Caller>();
        let of_call = caller.and_then(|caller| {
            let most = caller.quota.stream_bytes?;
            Some(OfCall {
                most,
                of_owner: self.0.in_flight(&caller.owner),
                own: Arc::default(),
            })
        });
        let answer = inner.call(request);
        Box::pin(async move {
            let response = answer.await?;
            Ok(match of_call {
                None => response,
                Some(of_call) => response.map(|body| {
                    Body::new(Held {
                        body,
                        of_call,
                        room: None,
                    })
                }),
            })
        })
    }
}

/// The bytes in flight of one call.
#[derive(Clone, Debug)]
struct OfCall {
    most: NonZeroU64,
    of_owner: InFlight,
    own: Arc<AtomicU64>,
}

impl OfCall {
    /// Whether another message may be sent now.
    fn has_room(&self, all: u64) -> bool {
        all < self.most.get() || self.own.load(Ordering::Relaxed) == 0
    }

    /// Waits until another message may be sent.
    async fn room(self) {
        let mut all = self.of_owner.0.subscribe();
        // The sender is held here.
        let _ = all.wait_for(|all| self.has_room(*all)).await;
    }

    /// Counts these bytes until the transport has written them.
    fn hold(&self, bytes: Bytes) -> Bytes {
        let len = bytes.len() as u64;
        if len == 0 {
            return bytes;
        }
        self.own.fetch_add(len, Ordering::Relaxed);
        self.of_owner.0.send_modify(|all| *all += len);
        let of_call = self.clone();
        Bytes::from_owner(Message { bytes, of_call })
    }
}

/// Bytes of an answer, counted as long as they are there.
struct Message {
    bytes: Bytes,
    of_call: OfCall,
}

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        let len = self.bytes.len() as u64;
        self.of_call.own.fetch_sub(len, Ordering::Relaxed);
        self.of_call.of_owner.0.send_modify(|all| *all -= len);
    }
}

/// The body of an answer, with its wait for room.
struct Held {
    body: Body,
    of_call: OfCall,
    room: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl HttpBody for Held {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Self {
            body,
            of_call,
            room,
        } = &mut *self;
        // Before the next message is made: it is at its reader or still in its source.
        if room.is_some() || !of_call.has_room(of_call.of_owner.bytes()) {
            let waiting = room.get_or_insert_with(|| Box::pin(of_call.clone().room()));
            ready!(waiting.as_mut().poll(cx));
            *room = None;
        }
        let frame = ready!(Pin::new(body).poll_frame(cx));
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(|data| of_call.hold(data)))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::future::poll_fn;

    fn call(of_owner: &InFlight, messages: usize) -> Held {
        let frame = || Ok::<_, Status>(Frame::data(Bytes::from_static(&[7; 10])));
        let frames = (0..messages).map(|_| frame()).collect::<Vec<_>>();
        Held {
            body: Body::new(Frames(frames)),
            of_call: OfCall {
                most: NonZeroU64::new(25).expect("not zero"),
                of_owner: of_owner.clone(),
                own: Arc::default(),
            },
            room: None,
        }
    }

    struct Frames(Vec<Result<Frame<Bytes>, Status>>);

    impl HttpBody for Frames {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            Poll::Ready(self.0.pop())
        }
    }

    /// Takes messages until there is no room; they stay in flight.
    fn taken(call: &mut Held) -> Vec<Bytes> {
        let next =
            |call: &mut Held| poll_fn(|cx| Pin::new(&mut *call).poll_frame(cx)).now_or_never();
        let mut all = Vec::new();
        while let Some(Some(Ok(frame))) = next(call) {
            all.extend(frame.into_data());
        }
        all
    }

    #[tokio::test]
    async fn calls_wait_at_the_quota_and_lose_nothing() {
        let of_owner = InFlight::default();
        let (mut first, mut second) = (call(&of_owner, 5), call(&of_owner, 2));
        let held = taken(&mut first);
        assert_eq!((held.len(), of_owner.bytes()), (3, 30));
        // Nothing of it is in flight: it sends a message all the same.
        let own = taken(&mut second);
        assert_eq!((own.len(), of_owner.bytes()), (1, 40));
        assert!(taken(&mut first).is_empty());

        drop(held);
        let rest = taken(&mut first);
        assert_eq!((rest.len(), of_owner.bytes()), (2, 30));
        drop((rest, own));
        assert_eq!(taken(&mut second).len(), 1);
        assert_eq!(of_owner.bytes(), 0);
    }

    #[tokio::test]
    async fn waiting_call_is_woken_by_a_reader() {
        let of_owner = InFlight::default();
        let mut first = call(&of_owner, 4);
        let held = taken(&mut first);
        let waiting =
            tokio::spawn(async move { poll_fn(|cx| Pin::new(&mut first).poll_frame(cx)).await });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(held);
        let frame = waiting.await.expect("no panic").expect("a message");
        assert_eq!(
            frame.expect("no error").into_data().expect("data").len(),
            10
        );
    }
}
