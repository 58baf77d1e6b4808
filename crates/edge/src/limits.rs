//! Bounds of the transport. Those of a request's fields are in the lifecycle crate.

use std::{ops::RangeInclusive, time::Duration};

pub use kennel_proto::limits::{REQUEST_BYTES_MAX, RESPONSE_BYTES_MAX, STREAM_MESSAGE_BYTES_MAX};

/// Permitted values of the longest line of a reader.
pub const LINE_BYTES: RangeInclusive<u32> = 1024..=16 * 1024 * 1024;
/// Memory for lines that are longer than usual, in KiB, all readers together.
pub const LONG_LINES_KIB_MAX: u32 = 512 * 1024;
/// Runs of one page together in bytes; one run may be larger.
pub const PAGE_BYTES_MAX: usize = 1024 * 1024;
/// Default number of runs on a page.
pub const PAGE_SIZE_DEFAULT: u32 = 50;
/// Most runs on a page.
pub const PAGE_SIZE_MAX: u32 = 1000;
/// Output in one message of a stream of events: a reader that lags reads so much at a time.
pub const BATCH_BYTES_MAX: usize = 256 * 1024;
/// Output in one answer to a read by offset.
pub const OUTPUT_READ_BYTES_MAX: u64 = 1024 * 1024;
/// Nodes whose events one stream has, and with a place in its cursor.
pub const STREAM_NODES_MAX: usize = 1024;
/// Longest cursor.
pub const CURSOR_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Interval of reading the list of nodes while a stream has the events of all.
pub const NODES_INTERVAL: Duration = Duration::from_secs(2);
/// Time after the loss of a node after which a stream reports it as unreachable, if it is not there again.
pub const NODE_AWAY_AFTER: Duration = Duration::from_secs(1);
/// Time for a node to answer at all; a stream of present events then ends without it.
pub const NODE_ANSWER_MAX: Duration = Duration::from_secs(5);
/// Silence before a heartbeat of a node to the node that asks it.
pub const NODE_HEARTBEAT: Duration = Duration::from_secs(5);
/// Silence of a node after which its stream is opened again.
pub const NODE_SILENCE_MAX: Duration = Duration::from_secs(15);
/// Longest pause before the stream of a node is opened again.
pub const NODE_PAUSE_MAX: Duration = Duration::from_secs(2);
/// Longest time for the nodes to say where the events of a stream begin that has new events alone.
pub const NODES_BEGIN_MAX: Duration = Duration::from_secs(10);
/// Default silence before a heartbeat.
pub const HEARTBEAT_DEFAULT: Duration = Duration::from_secs(15);
/// Shortest silence before a heartbeat.
pub const HEARTBEAT_MIN: Duration = Duration::from_secs(1);
/// Longest silence before a heartbeat.
pub const HEARTBEAT_MAX: Duration = Duration::from_mins(5);
/// Streams of events that may be open at a time, all clients together.
pub const STREAMS_MAX: usize = 2048;
/// Streams of the audit log that may be open at a time.
pub const AUDIT_STREAMS_MAX: usize = 16;
/// Calls and streams on one connection. Above [`STREAMS_MAX`], so that a client that has opened too many gets an error and
/// can still make calls, where at the transport's own limit it would only wait.
pub const CALLS_PER_CONNECTION_MAX: u32 = 2304;
/// Connections at a time of peers that are known.
pub const CONNECTIONS_MAX: usize = 1024;
/// Connections of these that one user leaves to others; and as many of its own are for processes without any.
pub const CONNECTIONS_RESERVED: usize = 64;
/// Connections of all processes of one user.
pub const CONNECTIONS_PER_USER_MAX: usize = CONNECTIONS_MAX - CONNECTIONS_RESERVED;
/// Connections of one process.
pub const CONNECTIONS_PER_PROCESS_MAX: usize = 256;
/// Connections of the processes of one run that has a token.
pub const CONNECTIONS_PER_RUN_MAX: usize = 32;
/// Connections of the processes of all runs that have one; they take none of the others'.
pub const CONNECTIONS_OF_RUNS_MAX: usize = 512;
/// Connections of these of all runs of one owner; the last [`CONNECTIONS_RESERVED`] are for owners without any.
pub const CONNECTIONS_PER_RUNS_OF_OWNER_MAX: usize = 256;
/// Runs above a run among which the one is looked for whose process calls.
pub const RUN_ANCESTORS_MAX: usize = 64;
/// Connections over TCP of clients that have not identified themselves; they take none of the others', and beyond it the
/// address with the most loses its oldest.
pub const CONNECTIONS_UNIDENTIFIED_MAX: usize = 512;
/// Connections of peers that may not call; more are closed at once.
pub const CONNECTIONS_REFUSED_MAX: usize = 32;
/// Longest time of a connection without an accepted call.
pub const FIRST_CALL_MAX: Duration = Duration::from_secs(10);
/// Longest time of a client over TCP for its first byte.
pub const FIRST_BYTE_MAX: Duration = Duration::from_secs(1);
/// Longest time of a TLS handshake.
pub const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// TLS handshakes at a time on one listener; beyond it the address with the most loses its oldest.
pub const HANDSHAKES_MAX: usize = 512;
/// Interval of checking the access file and the credentials of open connections.
pub const ACCESS_INTERVAL: Duration = Duration::from_secs(1);
/// Longest time for which a new server lets clients over TCP wait for the first keys of issuers.
pub const FIRST_KEYS_MAX: Duration = Duration::from_secs(2);
/// Tokens that may be used on one connection.
pub const TOKENS_PER_CONNECTION_MAX: usize = 64;
/// Refused calls of one owner for lack of room that are answered at once, and then in each second; others wait.
pub const REFUSALS_PER_SECOND: u32 = 20;
/// Longest wait of such a call for its answer.
pub const REFUSAL_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Interval of warnings about refused connections of one kind.
pub const REFUSALS_WARNED_EVERY: Duration = Duration::from_secs(10);
/// Pause after a failed accept: descriptors may be used up, and the next one would fail at once.
pub const ACCEPT_REST: Duration = Duration::from_millis(50);
/// Time in which refused connections at a unix socket are counted by run, and a refused process is not judged again.
pub const STORM_WINDOW: Duration = Duration::from_secs(1);
/// Connections of such a process in that time that get the reason; further ones are closed at once.
pub const REFUSED_ANSWERS_MAX: u32 = 32;
/// Refused connections of a run in that time for which it gets a Warning.
pub const STORM: u32 = 100;
/// Refused connections of which one is looked at for its run.
pub const STORM_SAMPLE: u32 = 10;
/// Most that are looked at in that time.
pub const STORM_SAMPLES_MAX: u32 = 50;
/// Runs with such a Warning that are remembered: they get no second one.
pub const STORMS_REMEMBERED_MAX: usize = 4096;
/// Metadata of one request.
pub const METADATA_BYTES_MAX: u32 = 64 * 1024;
/// Interval of checking the store, for health.
pub const HEALTH_INTERVAL: Duration = Duration::from_secs(2);
/// Time for which a stream, or a call that waits, continues when the server is about to exit, to report events up to
/// then.
pub const LAST_WORDS_MAX: Duration = Duration::from_millis(300);
/// Longest time for connections to end when the server is about to exit. The runs have been ended by then.
pub const DRAIN_MAX: Duration = Duration::from_secs(1);
/// Longest time of a call in progress when another server is to replace this one.
pub const LEAVE_CALLS_MAX: Duration = Duration::from_secs(2);
/// Time that a newly accepted client then has for its first byte.
pub const LEAVE_FIRST_BYTE_MAX: Duration = Duration::from_millis(50);
/// Time for answers in flight when no call is left.
pub const LEAVE_FLUSH: Duration = Duration::from_millis(100);
