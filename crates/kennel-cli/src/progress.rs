//! A line on standard error, where that is a terminal, while an operation takes longer than two seconds.

use std::{
    io::{self, IsTerminal as _, Write as _},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};
use tokio::time::{Instant, interval_at};

/// Time before the line appears.
const QUIET_FOR: Duration = Duration::from_secs(2);
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Clears the line, with the cursor at its beginning.
const CLEAR: &str = "\r\x1b[K";

/// Whether there is a line that must be cleared before other output.
static IS_SHOWN: AtomicBool = AtomicBool::new(false);

/// Runs some work, and shows how long it has taken so far.
pub async fn during<T>(what: &str, work: impl Future<Output = T>) -> T {
    if !io::stderr().is_terminal() {
        return work.await;
    }
    tokio::pin!(work);
    let began = Instant::now();
    let mut ticks = interval_at(began + QUIET_FOR, AGAIN_AFTER);
    let done = loop {
        tokio::select! {
            done = &mut work => break done,
            _ = ticks.tick() => show(what, began.elapsed()),
        }
    };
    clear();
    done
}

fn show(what: &str, lasted: Duration) {
    IS_SHOWN.store(true, Ordering::Relaxed);
    // Standard error may be closed; then the line cannot be shown.
    let _ = write!(io::stderr(), "{CLEAR}{what} ({}s)", lasted.as_secs());
}

/// Removes the line, if there is one.
pub(crate) fn clear() {
    if IS_SHOWN.swap(false, Ordering::Relaxed) {
        let _ = write!(io::stderr(), "{CLEAR}");
    }
}
