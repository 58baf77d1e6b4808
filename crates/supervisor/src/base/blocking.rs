//! Blocking work, mostly on files.

use std::io;

/// Runs the work on a thread of its own, beside the tasks. The error means that the work did not complete: it has
/// panicked, or the runtime ends.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let marks = tracing::Span::current();
    let done = tokio::task::spawn_blocking(move || marks.in_scope(work)).await;
    done.map_err(io::Error::other)
}
