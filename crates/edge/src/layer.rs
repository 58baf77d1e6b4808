//! Parts that all middlewares of calls share: a middleware is a type of its own, and a service is wrapped in its value.

use futures_util::future::BoxFuture;
use http::Response;
use tonic::body::Body;
use tower::Layer;

/// The future answer of a call.
pub(crate) type Answer<E> = BoxFuture<'static, Result<Response<Body>, E>>;

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
