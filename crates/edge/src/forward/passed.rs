//! The answer of another node, passed on while this server serves.

use crate::status;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame};
use kennel_supervisor::Serving;
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};
use tonic::{Status, body::Body};

/// A body that ends with the status of this server when it exits: its reader calls the next one.
pub(super) struct Passed {
    inner: Body,
    gone: Pin<Box<dyn Future<Output = Status> + Send>>,
    over: bool,
}

impl Passed {
    pub(super) fn new(inner: Body, serving: Serving) -> Self {
        let gone = async move {
            tokio::select! {
                () = serving.until_leaving() => status::leaving(),
                () = serving.until_closing() => status::draining(),
            }
        };
        Self {
            inner,
            gone: Box::pin(gone),
            over: false,
        }
    }
}

impl HttpBody for Passed {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.over {
            return Poll::Ready(None);
        }
        if let Poll::Ready(frame) = Pin::new(&mut self.inner).poll_frame(cx) {
            self.over = frame.is_none();
            return Poll::Ready(frame);
        }
        let status = std::task::ready!(self.gone.as_mut().poll(cx));
        self.over = true;
        let mut trailers = http::HeaderMap::new();
        let added = status.add_header(&mut trailers);
        Poll::Ready(Some(added.map(|()| Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.over || self.inner.is_end_stream()
    }
}
