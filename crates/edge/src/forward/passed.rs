//! The answer of another node, passed on while this server serves.

use crate::{layers::body::layered, status};
use http_body::{Body as HttpBody, Frame};
use kennel_supervisor::Serving;
use std::{
    pin::Pin,
    task::{Poll, ready},
};
use tonic::body::Body;

/// Returns a body that ends with the status of this server when it exits: its reader calls the next one.
pub(super) fn passed(inner: Body, serving: Serving) -> Body {
    let mut gone = Box::pin(async move {
        tokio::select! {
            () = serving.until_leaving() => status::leaving(),
            () = serving.until_closing() => status::draining(),
        }
    });
    layered(inner, move |inner, cx| {
        if let Poll::Ready(frame) = Pin::new(&mut *inner).poll_frame(cx) {
            return Poll::Ready(frame);
        }
        let status = ready!(gone.as_mut().poll(cx));
        *inner = Body::empty();
        let mut trailers = http::HeaderMap::new();
        let added = status.add_header(&mut trailers);
        Poll::Ready(Some(added.map(|()| Frame::trailers(trailers))))
    })
}
