//! Bounds of the transport. Those of a request's fields are in the lifecycle crate.

use std::{ops::RangeInclusive, time::Duration};

pub use kennel_proto::limits::{REQUEST_BYTES_MAX, RESPONSE_BYTES_MAX, STREAM_MESSAGE_BYTES_MAX};

/// The longest line that a reader may ask for.
pub const LINE_BYTES: RangeInclusive<u32> = 1024..=16 * 1024 * 1024;
/// Memory for lines that are longer than usual, in KiB, all readers together.
pub const LONG_LINES_KIB_MAX: u32 = 512 * 1024;
/// Runs of one page together; one run may be larger.
pub const PAGE_BYTES_MAX: usize = 1024 * 1024;
/// Runs on a page whose request names no number.
pub const PAGE_SIZE_DEFAULT: u32 = 50;
/// Most runs on a page.
pub const PAGE_SIZE_MAX: u32 = 1000;
/// Output in one message of a stream of events: a reader that is behind reads so much at a time.
pub const BATCH_BYTES_MAX: usize = 256 * 1024;
/// Output in one answer to a read by offset.
pub const OUTPUT_READ_BYTES_MAX: u64 = 1024 * 1024;
/// Silence after which a heartbeat comes, where the request names none.
pub const HEARTBEAT_DEFAULT: Duration = Duration::from_secs(15);
/// Shortest silence before a heartbeat.
pub const HEARTBEAT_MIN: Duration = Duration::from_secs(1);
/// Longest silence before a heartbeat.
pub const HEARTBEAT_MAX: Duration = Duration::from_mins(5);
/// Streams of events that may be open at a time, all clients together.
pub const STREAMS_MAX: usize = 2048;
/// Streams of the audit trail that may be open at a time.
pub const AUDIT_STREAMS_MAX: usize = 16;
/// Calls and streams on one connection. Above [`STREAMS_MAX`], so that a client that has opened too many gets an error and
/// can still make calls, where at the transport's own limit it would only wait.
pub const CALLS_PER_CONNECTION_MAX: u32 = 2304;
/// Connections at a time of peers that may call.
pub const CONNECTIONS_MAX: usize = 1024;
/// Of these one user leaves so many to others; and as many of its own are for processes that have none.
pub const CONNECTIONS_RESERVED: usize = 64;
/// Connections of all processes of one user.
pub const CONNECTIONS_PER_USER_MAX: usize = CONNECTIONS_MAX - CONNECTIONS_RESERVED;
/// Connections of one process.
pub const CONNECTIONS_PER_PROCESS_MAX: usize = 256;
/// Connections of the processes of one run that has a token.
pub const CONNECTIONS_PER_RUN_MAX: usize = 32;
/// Connections of the processes of all runs that have one; they take none of the others'.
pub const CONNECTIONS_OF_RUNS_MAX: usize = 512;
/// Runs above a run among which the one is looked for whose process calls.
pub const RUN_ANCESTORS_MAX: usize = 64;
/// Connections of peers that may not call; more are closed at once.
pub const CONNECTIONS_REFUSED_MAX: usize = 32;
/// How long a client may be connected without a call that is accepted.
pub const FIRST_CALL_MAX: Duration = Duration::from_secs(10);
/// How long a TLS handshake may take.
pub const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// TLS handshakes at a time on one listener; beyond it the oldest is given up.
pub const HANDSHAKES_MAX: usize = 128;
/// How often the access file is looked at, and credentials of open connections are checked.
pub const ACCESS_INTERVAL: Duration = Duration::from_secs(1);
/// Tokens that may be used on one connection.
pub const TOKENS_PER_CONNECTION_MAX: usize = 64;
/// How often it is warned of refused connections of one kind.
pub const REFUSALS_WARNED_EVERY: Duration = Duration::from_secs(10);
/// How long accepting rests after it has failed: descriptors may be used up, and then it would fail at once again.
pub const ACCEPT_REST: Duration = Duration::from_millis(50);
/// Metadata of one request.
pub const METADATA_BYTES_MAX: u32 = 64 * 1024;
/// How often the store is asked whether it answers, for health.
pub const HEALTH_INTERVAL: Duration = Duration::from_secs(2);
/// How long a stream, or a call that waits, continues when the server is about to go, to report what is known by then.
pub const LAST_WORDS_MAX: Duration = Duration::from_millis(300);
/// How long connections may take to end when the server is about to go. The runs have been ended by then.
pub const DRAIN_MAX: Duration = Duration::from_secs(1);
/// How long a call that is on its way may take when another server is to take the place of this one.
pub const LEAVE_CALLS_MAX: Duration = Duration::from_secs(2);
/// How long a client that has just been accepted then has for its first byte.
pub const LEAVE_FIRST_BYTE_MAX: Duration = Duration::from_millis(50);
/// How long answers may be on their way when no call is left.
pub const LEAVE_FLUSH: Duration = Duration::from_millis(100);
