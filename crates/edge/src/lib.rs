//! The gRPC API: conversions between contract and lifecycle, services, streams, status mapping.
//!
//! Only this crate uses prost types and status codes. It never decides about a run, never touches a store or a process:
//! each rpc parses, calls the supervisor once, and converts the answer. Start at [`serve`].

mod accept;
mod access;
mod admission;
mod answers;
mod attach;
mod auth;
mod convert;
mod crowd;
mod deadline;
pub mod digest;
mod enums;
mod exchange;
mod forward;
mod gate;
mod health;
mod in_flight;
mod layer;
pub mod limits;
mod observe;
mod pace;
mod run_tokens;
mod run_waits;
mod seal;
mod serve;
mod shares;
mod status;
mod stream;
mod trace_context;
mod verbs;

pub use access::{Access, AccessError};
pub use crowd::Crowd;
pub use health::{ProbeClient, unready};
use kennel_proto::{json, pb, reason};
pub use serve::{EdgeConfig, ServeError, serve};
