//! Speaks: the generated contract, conversions, services, streams, status mapping, and the Rust client.
//!
//! Alone knows prost types and status codes. Never decides about a run, never touches a store or a process: each rpc
//! parses, asks the supervisor once, and converts the answer. Start at `service` for the server, at [`client`] for
//! the other side.

pub mod client;
pub mod json;
pub mod limits;
pub mod pb;
