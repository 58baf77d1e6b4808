//! Size limits of messages, for both ends.

/// Longest request. Argv and environment of the permitted size fit in, and so do requests that are somewhat too large:
/// those get a typed answer.
pub const REQUEST_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Longest response: the spec of one run fits in.
pub const RESPONSE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Longest message of a stream of events: that of the longest line and its JSON. Only a reader that asks for longer lines than
/// usual gets one above [`RESPONSE_BYTES_MAX`].
pub const STREAM_MESSAGE_BYTES_MAX: usize = 64 * 1024 * 1024;
