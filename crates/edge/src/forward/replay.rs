//! A request's body that can be read again from its beginning.

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame};
use parking_lot::Mutex;
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tonic::{Status, body::Body};

use crate::limits::REQUEST_BYTES_MAX;

struct SharedBody {
    rest: Body,
    /// Frames read, while they may be read again.
    heard: Option<Vec<Bytes>>,
    bytes: usize,
}

/// A body whose frames are stored, up to the size of the largest request. Clones share it; one is read at a time.
pub(super) struct ReplayBody {
    shared: Arc<Mutex<SharedBody>>,
    /// Number of frames of `heard` that were delivered.
    given: usize,
}

impl ReplayBody {
    pub(super) fn of(body: Body) -> Self {
        let shared = SharedBody {
            rest: body,
            heard: Some(Vec::new()),
            bytes: 0,
        };
        Self {
            shared: Arc::new(Mutex::new(shared)),
            given: 0,
        }
    }

    /// Returns the body from its beginning. Meaningful while it is whole.
    pub(super) fn rewound(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            given: 0,
        }
    }

    /// Releases the stored frames: it will not be read again.
    pub(super) fn forget(&self) {
        self.shared.lock().heard = None;
    }

    /// Whether it can be read from its beginning.
    pub(super) fn is_whole(&self) -> bool {
        self.shared.lock().heard.is_some()
    }
}

impl HttpBody for ReplayBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        let mut shared = this.shared.lock();
        let shared = &mut *shared;
        if let Some(again) = shared
            .heard
            .as_ref()
            .and_then(|heard| heard.get(this.given))
        {
            this.given += 1;
            return Poll::Ready(Some(Ok(Frame::data(again.clone()))));
        }
        let frame = std::task::ready!(Pin::new(&mut shared.rest).poll_frame(cx));
        let data = frame.as_ref().and_then(|frame| frame.as_ref().ok());
        if let (Some(data), Some(heard)) = (data.and_then(Frame::data_ref), &mut shared.heard) {
            shared.bytes += data.len();
            heard.push(data.clone());
            this.given += 1;
            if shared.bytes > REQUEST_BYTES_MAX {
                shared.heard = None;
            }
        }
        Poll::Ready(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;
    use std::future::poll_fn;

    fn chunks(sizes: &[usize]) -> Body {
        let chunks = sizes
            .iter()
            .map(|size| Ok::<_, Status>(Bytes::from(vec![7; *size])));
        let frames = chunks
            .map(|chunk| chunk.map(Frame::data))
            .collect::<Vec<_>>();
        Body::new(Frames(stream::iter(frames)))
    }

    struct Frames<S>(S);

    impl<S: stream::Stream<Item = Result<Frame<Bytes>, Status>> + Unpin> HttpBody for Frames<S> {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            Pin::new(&mut self.0).poll_next(cx)
        }
    }

    async fn next(body: &mut ReplayBody) -> Option<usize> {
        let frame = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await;
        let data = frame?.expect("no error").into_data().expect("data");
        Some(data.len())
    }

    // promise: I-40
    #[tokio::test]
    async fn forwarded_body_can_be_replayed() {
        let replay = ReplayBody::of(chunks(&[1, 2, 3]));
        let mut first = replay.rewound();
        assert_eq!(next(&mut first).await, Some(1));
        assert_eq!(next(&mut first).await, Some(2));
        assert!(replay.is_whole());
        let mut second = replay.rewound();
        for size in [Some(1), Some(2), Some(3), None] {
            assert_eq!(next(&mut second).await, size);
        }
    }

    // promise: I-40
    #[tokio::test]
    async fn large_or_forgotten_body_cannot_be_replayed() {
        let replay = ReplayBody::of(chunks(&[REQUEST_BYTES_MAX, 1, 1]));
        let mut first = replay.rewound();
        assert_eq!(next(&mut first).await, Some(REQUEST_BYTES_MAX));
        assert!(replay.is_whole());
        assert_eq!(next(&mut first).await, Some(1));
        assert!(!replay.is_whole());
        assert_eq!(next(&mut first).await, Some(1));
        assert_eq!(next(&mut first).await, None);

        let replay = ReplayBody::of(chunks(&[1, 2]));
        let mut first = replay.rewound();
        assert_eq!(next(&mut first).await, Some(1));
        replay.forget();
        assert_eq!(next(&mut first).await, Some(2));
        assert!(!replay.is_whole());
    }
}
