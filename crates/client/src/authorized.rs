//! Calls with the client's token.

use crate::credentials::TokenReader;
use http::{HeaderName, HeaderValue, Request, Response, header::AUTHORIZATION};
use std::{
    error::Error,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tonic::{Status, body::Body, transport::Channel};
use tower::Service;

type BoxError = Box<dyn Error + Send + Sync>;

/// Header with the node that a call is for.
const NODE: HeaderName = HeaderName::from_static("kennel-node");

/// A channel whose calls carry the client's token and their target node, where there is one.
#[derive(Clone, Debug)]
pub struct Authorized {
    channel: Channel,
    token: Option<Arc<TokenReader>>,
    node: Option<HeaderValue>,
}

impl Authorized {
    pub(crate) fn new(
        channel: Channel,
        token: Option<Arc<TokenReader>>,
        node: Option<HeaderValue>,
    ) -> Self {
        Self {
            channel,
            token,
            node,
        }
    }
}

impl Service<Request<Body>> for Authorized {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.channel.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        match self.token.as_deref().map(TokenReader::value).transpose() {
            Ok(Some(value)) => drop(request.headers_mut().insert(AUTHORIZATION, value)),
            Ok(None) => {}
            Err(error) => {
                let status = Status::unauthenticated(shown(&error));
                return Box::pin(std::future::ready(Err(status.into())));
            }
        }
        if let Some(node) = &self.node {
            request.headers_mut().insert(NODE, node.clone());
        }
        let answer = self.channel.call(request);
        Box::pin(async move { answer.await.map_err(Into::into) })
    }
}

/// Whether a connection broke that was open: a server that takes its place may answer. `false`: none was made, in whatever
/// time, or its peer was silent for too long.
pub fn has_broken(error: &(dyn Error + 'static)) -> bool {
    let is_late = |error: &io::Error| error.kind() == io::ErrorKind::TimedOut;
    !causes(error).any(|cause| {
        cause.is::<NotDialled>()
            || cause.downcast_ref().is_some_and(hyper::Error::is_timeout)
            || cause.downcast_ref().is_some_and(is_late)
    })
}

/// Returns an error and its causes.
pub(crate) fn causes<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| (**error).source())
}

/// Formats an error with its causes, each once: some errors repeat their cause in their own text.
pub fn shown(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    for cause in causes(error).map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Cause of a failed dial, as the transport passes it on; the error itself is stored beside it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NotDialled(pub(crate) String);

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt;

    #[derive(Debug)]
    struct Reported(&'static str, Option<Box<Reported>>);

    impl fmt::Display for Reported {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Reported {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|inner| inner as _)
        }
    }

    #[test]
    fn repeated_cause_text_is_printed_once() {
        let root = Box::new(Reported("refused", None));
        let middle = Box::new(Reported("cannot connect: refused", Some(root)));
        let top = Reported("cannot open the store", Some(middle));
        assert_eq!(
            shown(&top),
            "cannot open the store: cannot connect: refused"
        );
    }
}
