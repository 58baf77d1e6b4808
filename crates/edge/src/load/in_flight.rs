//! What the calls of an owner take of the server's memory, for its quotas: calls in progress, bytes of requests that
//! were received, also of one whose body never ends, and bytes of answers that were produced and not yet written by the
//! transport.
//!
//! A call or a request beyond its quota is refused; as many refusals as calls may wait for their answer, and further ones
//! end their connection. At the quota of answers each call may have one message in flight, and waits for its next one
//! until there is room: it loses nothing, and unary calls are answered. New streams are refused.

use crate::{
    accept::ConnectionState,
    access::{Caller, Quota},
    layers::{Answer, Middleware, body::layered, deadline},
    load::{
        pace::Pace,
        shares::{Kind, Share, Shares, Used},
    },
};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use http_body::Body as HttpBody;
use parking_lot::Mutex;
use std::{
    num::NonZeroU64,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Poll, ready},
};
use tonic::body::Body;
use tower::Service;

/// Length of the head of a message in a body of gRPC: a flag, then the number of bytes.
const HEAD_BYTES: usize = 5;

/// Counts what calls take of their owner's quota.
#[derive(Clone, Debug)]
pub(crate) struct Counting {
    pub(crate) shares: Shares,
    /// Paces refusals.
    pub(crate) pace: Pace,
}

impl<S> Middleware<S, Request<Body>> for Counting
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
{
    type Future = Answer<S::Error>;

    fn call(&self, inner: &mut S, request: Request<Body>) -> Self::Future {
        let caller = request.extensions().get::<Caller>();
        let Some(caller) = caller.filter(|caller| caller.quota != Quota::default()) else {
            return Box::pin(inner.call(request));
        };
        let (quota, owner) = (caller.quota, caller.owner.clone());
        let share = self.shares.of(&owner);
        let call = match share.take(Kind::Calls, &quota) {
            Ok(call) => call,
            Err(refused) => {
                let waits = share.take(Kind::Refusals, &quota).ok();
                if waits.is_none() && caller.via.is_none() {
                    // Endless refusals cost other callers time: a cut connection sends no more calls.
                    let connection = request.extensions().get::<Arc<ConnectionState>>();
                    connection.inspect(|connection| connection.cut());
                }
                let budget = deadline::of_headers(request.headers());
                let pace = self.pace.clone();
                return Box::pin(async move {
                    if waits.is_some() {
                        pace.pause(&owner, budget).await;
                    }
                    Ok(refused.into_http())
                });
            }
        };
        let received = Arc::new(Mutex::new(share.begin(Kind::RequestBytes)));
        let of_body = Arc::clone(&received);
        let answer = inner.call(request.map(|body| self::received(body, quota, of_body)));
        Box::pin(async move {
            let response = answer.await?;
            // This drop marks the call as answered for the body.
            drop(received);
            let of_call = OfCall {
                most: quota.stream_bytes,
                of_owner: share,
                own: Arc::default(),
            };
            Ok(response.map(|body| held(body, of_call, call)))
        })
    }
}

/// How much of a message in a body has come.
#[derive(Debug, Default)]
struct MessageProgress {
    head: [u8; HEAD_BYTES],
    came: usize,
}

impl MessageProgress {
    /// Follows the next bytes of the body.
    fn pass(&mut self, mut data: &[u8]) {
        while !data.is_empty() {
            let end = match self.came {
                ..HEAD_BYTES => HEAD_BYTES,
                _ => self.len(),
            };
            let (next, rest) = data.split_at(data.len().min(end - self.came));
            if let Some(head) = self.head.get_mut(self.came..self.came + next.len()) {
                head.copy_from_slice(next);
            }
            self.came += next.len();
            data = rest;
            if self.came == self.len() {
                *self = Self::default();
            }
        }
    }

    /// Returns the length of the message with its head, once that has come.
    fn len(&self) -> usize {
        let [_, len @ ..] = self.head;
        HEAD_BYTES + u32::from_be_bytes(len) as usize
    }
}

/// Returns the body of a request, counted as it is received; `used` is also held by the call until it is answered.
fn received(body: Body, quota: Quota, used: Arc<Mutex<Used>>) -> Body {
    // The message that is still being received.
    let mut message = MessageProgress::default();
    layered(body, move |body, cx| {
        let is_answered = Arc::strong_count(&used) == 1;
        let mut used = used.lock();
        if is_answered {
            // In a stream of requests, earlier messages were taken one at a time.
            let taken = used.amount().saturating_sub(message.came as u64);
            used.give_back(taken);
        }
        let Some(frame) = ready!(Pin::new(body).poll_frame(cx)) else {
            return Poll::Ready(None);
        };
        let frame = frame?;
        if let Some(data) = frame.data_ref() {
            used.take(data.len() as u64, &quota)?;
            message.pass(data);
        }
        Poll::Ready(Some(Ok(frame)))
    })
}

/// The bytes in flight of one call.
#[derive(Clone, Debug)]
struct OfCall {
    /// Absent: they are not bounded.
    most: Option<NonZeroU64>,
    of_owner: Arc<Share>,
    own: Arc<AtomicU64>,
}

impl OfCall {
    /// Whether another message may be sent now.
    fn has_room(&self, all: u64) -> bool {
        let is_below = self.most.is_none_or(|most| all < most.get());
        is_below || self.own.load(Ordering::Relaxed) == 0
    }

    /// Waits until another message may be sent.
    async fn room(self) {
        let mut all = self.of_owner.follow(Kind::AnswerBytes);
        // `self` keeps the sender alive.
        let _ = all.wait_for(|all| self.has_room(*all)).await;
    }

    /// Counts these bytes until the transport has written them.
    fn hold(&self, bytes: Bytes) -> Bytes {
        let len = bytes.len() as u64;
        if len == 0 || self.most.is_none() {
            return bytes;
        }
        self.own.fetch_add(len, Ordering::Relaxed);
        let mut used = self.of_owner.begin(Kind::AnswerBytes);
        // The bytes already exist: no quota refuses them any more.
        let _ = used.take(len, &Quota::default());
        let own = Arc::clone(&self.own);
        Bytes::from_owner(Sent { bytes, used, own })
    }
}

/// Bytes of an answer, counted as long as they are there.
struct Sent {
    bytes: Bytes,
    used: Used,
    own: Arc<AtomicU64>,
}

impl AsRef<[u8]> for Sent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        // Subtracted before the drop of `used` wakes the tasks that wait for room.
        self.own.fetch_sub(self.used.amount(), Ordering::Relaxed);
    }
}

/// Returns the body of an answer, which waits for room, and lasts as long as the call.
fn held(body: Body, of_call: OfCall, call: Used) -> Body {
    let mut room: Option<BoxFuture<'static, ()>> = None;
    layered(body, move |body, cx| {
        let _ = &call;
        // Room is awaited before the next message is made, so that none waits between source and reader.
        if room.is_some() || !of_call.has_room(of_call.of_owner.used(Kind::AnswerBytes)) {
            let waiting = room.get_or_insert_with(|| Box::pin(of_call.clone().room()));
            ready!(waiting.as_mut().poll(cx));
            room = None;
        }
        let frame = ready!(Pin::new(body).poll_frame(cx));
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(|data| of_call.hold(data)))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{accept::Places, auth::Peer, layers::With};
    use futures_util::FutureExt;
    use http_body::Frame;
    use std::{
        convert::Infallible, future::poll_fn, num::NonZeroU32, task::Context, time::Duration,
    };
    use tokio::{
        sync::{Semaphore, mpsc},
        time::timeout,
    };
    use tonic::Status;
    use tonic_types::StatusExt;
    use tower::{Layer, service_fn};

    fn call(of_owner: &Arc<Share>, messages: usize) -> Body {
        let frame = || Ok::<_, Status>(Frame::data(Bytes::from_static(&[7; 10])));
        let frames = (0..messages).map(|_| frame()).collect::<Vec<_>>();
        let of_call = OfCall {
            most: NonZeroU64::new(25),
            of_owner: of_owner.clone(),
            own: Arc::default(),
        };
        let body = Body::new(Frames(frames));
        held(body, of_call, of_owner.begin(Kind::Calls))
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
    fn taken(call: &mut Body) -> Vec<Bytes> {
        let next =
            |call: &mut Body| poll_fn(|cx| Pin::new(&mut *call).poll_frame(cx)).now_or_never();
        let mut all = Vec::new();
        while let Some(Some(Ok(frame))) = next(call) {
            all.extend(frame.into_data());
        }
        all
    }

    // promise: I-101
    #[tokio::test]
    async fn response_bytes_wait_at_the_owner_quota() {
        let of_owner = Arc::<Share>::default();
        let (mut first, mut second) = (call(&of_owner, 5), call(&of_owner, 2));
        let held = taken(&mut first);
        assert_eq!((held.len(), of_owner.used(Kind::AnswerBytes)), (3, 30));
        // A call with nothing in flight still sends a message.
        let own = taken(&mut second);
        assert_eq!((own.len(), of_owner.used(Kind::AnswerBytes)), (1, 40));
        assert!(taken(&mut first).is_empty());

        drop(held);
        let rest = taken(&mut first);
        assert_eq!((rest.len(), of_owner.used(Kind::AnswerBytes)), (2, 30));
        drop((rest, own));
        assert_eq!(taken(&mut second).len(), 1);
        assert_eq!(of_owner.used(Kind::AnswerBytes), 0);
    }

    #[tokio::test]
    async fn call_waiting_at_quota_is_woken_by_reader() {
        let of_owner = Arc::<Share>::default();
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

    /// Upper bound for an answer that waits for nothing.
    const SOON: Duration = Duration::from_secs(1);

    /// A caller of this owner, with a quota of two calls and 50 bytes.
    fn request(owner: &str, body: Body) -> Request<Body> {
        let mut request = Request::new(body);
        request.extensions_mut().insert(Caller {
            owner: owner.to_owned(),
            quota: Quota {
                calls: NonZeroU32::new(2),
                request_bytes: NonZeroU64::new(50),
                ..Quota::default()
            },
            ..Caller::default()
        });
        request
    }

    fn counting() -> Counting {
        let shares = Shares::default();
        Counting {
            shares: shares.clone(),
            pace: Pace::of(shares),
        }
    }

    fn quota(answer: &Response<Body>) -> Option<String> {
        let status = Status::from_header_map(answer.headers())?;
        let info = status.get_details_error_info()?;
        info.metadata.get("quota").cloned()
    }

    // promise: I-131a
    #[tokio::test(start_paused = true)]
    async fn call_counts_until_its_response_is_sent() {
        let go = Arc::new(Semaphore::new(0));
        let waits = Arc::clone(&go);
        let mut service = With(counting()).layer(service_fn(move |_: Request<Body>| {
            let go = Arc::clone(&waits);
            async move {
                go.acquire().await.expect("it is open").forget();
                let answer = Frames(vec![Ok(Frame::data(Bytes::from_static(b"x")))]);
                Ok::<_, Infallible>(Response::new(Body::new(answer)))
            }
        }));
        let mut call = |owner| service.call(request(owner, Body::empty()));
        let (first, second) = (tokio::spawn(call("team")), tokio::spawn(call("team")));
        let refused = timeout(SOON, call("team")).await.expect("refused");
        let refused = refused.expect("an answer");
        let name = "calls in progress of this owner";
        assert_eq!(quota(&refused).as_deref(), Some(name));
        let other = tokio::spawn(call("other"));
        go.add_permits(3);
        let unread = [first.await, second.await, other.await];
        let unread = unread.map(|answer| answer.expect("no panic").expect("an answer"));
        assert!(unread.iter().all(|answer| quota(answer).is_none()));
        let refused = timeout(SOON, call("team"))
            .await
            .expect("they are not read");
        let refused = refused.expect("an answer");
        assert_eq!(quota(&refused).as_deref(), Some(name));
        drop(unread);
        go.add_permits(1);
        let last = call("team").await.expect("an answer");
        assert_eq!(quota(&last), None);
    }

    // promise: I-131a
    #[tokio::test(start_paused = true)]
    async fn too_many_pending_refusals_close_the_connection() {
        let mut service = With(counting()).layer(service_fn(|_: Request<Body>| async {
            std::future::pending::<Result<Response<Body>, Infallible>>().await
        }));
        let peer = Peer::of_network([127, 0, 0, 1].into(), None);
        let (place, _) = Places::default().take(&peer).expect("it is empty");
        let connection = ConnectionState::new(peer, &Arc::new(place));
        let mut call = || {
            let mut request = request("team", Body::empty());
            request.extensions_mut().insert(Arc::clone(&connection));
            service.call(request)
        };
        let calls = [call(), call()];
        let refused: Vec<_> = (0..2).map(|_| call()).collect();
        assert!(!connection.is_cut());
        let last = call();
        assert!(connection.is_cut());
        drop((calls, refused, last));
    }

    // promise: I-131a
    #[tokio::test]
    async fn unfinished_requests_count_their_bytes() {
        let counting = counting();
        let used = counting.shares.of("team");
        let mut service =
            With(counting).layer(service_fn(|mut request: Request<Body>| async move {
                while let Some(frame) =
                    poll_fn(|cx| Pin::new(request.body_mut()).poll_frame(cx)).await
                {
                    if let Err(refused) = frame {
                        return Ok::<_, Infallible>(refused.into_http());
                    }
                }
                Ok(Response::new(Body::empty()))
            }));
        let (sender, unfinished) = body(&[&[7; 30]]);
        let mut first = service.call(request("team", unfinished));
        assert!((&mut first).now_or_never().is_none());
        assert_eq!(used.used(Kind::RequestBytes), 30);
        let (_, more) = body(&[&[7; 30]]);
        let refused = service
            .call(request("team", more))
            .await
            .expect("an answer");
        let name = "bytes of requests in flight of this owner";
        assert_eq!(quota(&refused).as_deref(), Some(name));
        let (_, others) = body(&[&[7; 30]]);
        let other = service.call(request("other", others)).await;
        assert_eq!(quota(&other.expect("an answer")), None);
        drop((first, sender));
        assert_eq!(used.used(Kind::RequestBytes), 0);
    }

    // promise: I-131a
    #[tokio::test]
    async fn stream_of_requests_counts_its_unfinished_message() {
        let share = Arc::<Share>::default();
        let whole = [&[0, 0, 0, 0, 30][..], &[7; 30]].concat();
        let (sender, sent) = body(&[&whole[..3], &whole[3..], &whole[..20]]);
        let quota = Quota {
            request_bytes: NonZeroU64::new(60),
            ..Quota::default()
        };
        let used = Arc::new(Mutex::new(share.begin(Kind::RequestBytes)));
        let mut received = received(sent, quota, used);
        let mut counts = Vec::new();
        while let Some(frame) = poll_fn(|cx| Pin::new(&mut received).poll_frame(cx)).now_or_never()
        {
            frame.expect("no end").expect("within the quota");
            counts.push(share.used(Kind::RequestBytes));
        }
        assert_eq!(counts, [3, 35, 20]);
        drop((sender, received));
        assert_eq!(share.used(Kind::RequestBytes), 0);
    }

    /// Makes a body with these frames, which ends when its sender is dropped.
    fn body(frames: &[&[u8]]) -> (mpsc::UnboundedSender<Bytes>, Body) {
        let (sender, frames_of_body) = mpsc::unbounded_channel();
        for frame in frames {
            sender
                .send(Bytes::copy_from_slice(frame))
                .expect("it listens");
        }
        (sender, Body::new(Sending(frames_of_body)))
    }

    struct Sending(mpsc::UnboundedReceiver<Bytes>);

    impl HttpBody for Sending {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            self.0
                .poll_recv(cx)
                .map(|data| data.map(|data| Ok(Frame::data(data))))
        }
    }
}
