//! Bounds of the transport. Those of a request's fields are in the lifecycle crate.

use std::time::Duration;

/// Longest request. Argv and environment of the size that is allowed fit in, and so do requests that are somewhat too
/// large: those get a typed answer.
pub const REQUEST_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Longest response: the spec of one run fits in.
pub const RESPONSE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Runs of one page together; one run may be larger.
pub const PAGE_BYTES_MAX: usize = 1024 * 1024;
/// Runs on a page whose request names no number.
pub const PAGE_SIZE_DEFAULT: u32 = 50;
/// Most runs on a page.
pub const PAGE_SIZE_MAX: u32 = 1000;
/// Output in one message of a stream of events.
pub const BATCH_BYTES_MAX: usize = 64 * 1024;
/// Silence after which a heartbeat comes, where the request names none.
pub const HEARTBEAT_DEFAULT: Duration = Duration::from_secs(15);
/// Shortest silence before a heartbeat.
pub const HEARTBEAT_MIN: Duration = Duration::from_secs(1);
/// Longest silence before a heartbeat.
pub const HEARTBEAT_MAX: Duration = Duration::from_secs(300);
