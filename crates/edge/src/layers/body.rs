//! A body that a layer watches, delays or replaces.

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use std::{
    pin::Pin,
    task::{Context, Poll},
};
use tonic::{Status, body::Body};

/// The next frame of a body; absent: its end.
pub(crate) type Polled = Poll<Option<Result<Frame<Bytes>, Status>>>;

struct Layered<F> {
    body: Body,
    poll: F,
}

/// Returns a body whose frames this function gets from another one. What the function has lasts as long as the body.
pub(crate) fn layered<F>(body: Body, poll: F) -> Body
where
    F: FnMut(&mut Body, &mut Context<'_>) -> Polled + Send + Unpin + 'static,
{
    Body::new(Layered { body, poll })
}

impl<F: FnMut(&mut Body, &mut Context<'_>) -> Polled + Unpin> HttpBody for Layered<F> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled {
        let Self { body, poll } = &mut *self;
        poll(body, cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
