//! RPCs with one request and one answer, as types: what each answers, and when it may be repeated.

use crate::{limits, pb};
use prost::Message;
use tonic::{
    Request, Response, Status,
    body::Body,
    client::{Grpc, GrpcService},
    codegen::{Bytes, StdError, http::uri::PathAndQuery},
};
use tonic_prost::ProstCodec;

/// When a request may be sent again, by `idempotency_level` of its RPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MayRepeat {
    /// Always: it has no side effects, or repeats have the same one.
    AtWill,
    /// It has an id, so that the server takes repeats for one request.
    ById,
    /// A repeat would be another request.
    Never,
}

impl MayRepeat {
    fn by_id(has_id: bool) -> Self {
        if has_id { Self::ById } else { Self::Never }
    }
}

/// A request of an RPC that has one answer.
pub trait Call: Message + Clone + 'static {
    /// The answer.
    type Answer: Message + Default + 'static;

    /// Path of the RPC.
    const PATH: &'static str;

    /// Whether this request may be sent again.
    fn repeats(&self) -> MayRepeat;
}

/// A request of any RPC.
pub trait Rpc {
    /// The answer; a stream of answers.
    type Answer: Send + 'static;

    /// The field that has the id or the name of its run; absent: it has none, or takes no name.
    fn run(&mut self) -> Option<&mut String>;

    /// Its id, by which a repeat is the same request; absent: this RPC takes none.
    fn request_id(&self) -> Option<&str>;
}

include!(concat!(env!("OUT_DIR"), "/calls.rs"));

/// Sends a request once.
pub async fn unary<C: Call, S>(
    channel: S,
    request: Request<C>,
) -> Result<Response<C::Answer>, Status>
where
    S: GrpcService<Body, Error: Into<StdError>>,
    S::ResponseBody:
        tonic::codegen::Body<Data = Bytes, Error: Into<StdError> + Send> + Send + 'static,
{
    let mut grpc = Grpc::new(channel)
        .max_decoding_message_size(limits::RESPONSE_BYTES_MAX)
        .max_encoding_message_size(limits::REQUEST_BYTES_MAX);
    let not_ready = |error: S::Error| Status::unknown(format!("no channel: {}", error.into()));
    grpc.ready().await.map_err(not_ready)?;
    let path = PathAndQuery::from_static(C::PATH);
    grpc.unary(request, path, ProstCodec::default()).await
}
