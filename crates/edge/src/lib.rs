//! Speaks: the generated contract, conversions, services, streams, status mapping, and the Rust client.
//!
//! Alone knows prost types and status codes. Never decides about a run, never touches a store or a process: each rpc
//! parses, asks the supervisor once, and converts the answer. Start at [`serve`] for the server and at [`client`] for
//! the other side.

mod accept;
mod admission;
mod answers;
mod attach;
mod auth;
pub mod client;
mod convert;
mod deadline;
pub mod digest;
mod gate;
mod health;
pub mod json;
pub mod limits;
mod observe;
pub mod pb;
pub mod reason;
mod serve;
mod service;
mod status;
mod stream;
mod trace_context;

pub use serve::{EdgeConfig, ServeError, serve};
