//! The gRPC API: conversions between contract and lifecycle, services, streams, status mapping.
//!
//! Only this crate uses prost types and status codes. It never decides about a run, never touches a store or a process:
//! each rpc parses, calls the supervisor once, and converts the answer. Start at [`serve`].

mod accept;
mod access;
mod attach;
mod auth;
mod convert;
mod enums;
mod forward;
mod keys;
mod layers;
pub mod limits;
mod load;
mod serve;
mod status;
mod stream;
mod verbs;

pub use accept::crowd::Crowd;
pub use access::{Access, AccessError};
use kennel_proto::{json, pb, reason};
pub use keys::digest::DigestKey;
pub use serve::{
    EdgeConfig, ServeError,
    health::{ProbeClient, unready},
    serve,
};
