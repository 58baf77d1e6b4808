//! The middlewares around each call, and what they share: a middleware is a type of its own, and a service is wrapped in
//! its value.

pub(crate) mod answers;
pub(crate) mod body;
pub(crate) mod deadline;
pub(crate) mod gate;
pub(crate) mod observe;

use futures_util::future::BoxFuture;
use http::Response;
use std::task::{Context, Poll};
use tonic::body::Body;
use tower::{Layer, Service};

/// The future answer of a call.
pub(crate) type Answer<E> = BoxFuture<'static, Result<Response<Body>, E>>;

/// What a middleware does with a call.
pub(crate) trait Middleware<S: Service<R>, R> {
    type Future: Future<Output = Result<Response<Body>, S::Error>>;

    /// Answers a call, by the service within or without it.
    fn call(&self, inner: &mut S, request: R) -> Self::Future;
}

/// The layer of a middleware: each service gets a clone of it.
#[derive(Clone, Debug)]
pub(crate) struct With<T>(pub(crate) T);

/// A service in a middleware.
#[derive(Clone, Debug)]
pub(crate) struct Around<S, T> {
    pub(crate) inner: S,
    pub(crate) with: T,
}

impl<S, T: Clone> Layer<S> for With<T> {
    type Service = Around<S, T>;

    fn layer(&self, inner: S) -> Around<S, T> {
        let with = self.0.clone();
        Around { inner, with }
    }
}

impl<S: Service<R>, T: Middleware<S, R>, R> Service<R> for Around<S, T> {
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = T::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> T::Future {
        self.with.call(&mut self.inner, request)
    }
}
