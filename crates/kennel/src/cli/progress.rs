//! A line on standard error, where that is a terminal, while something takes longer than two seconds.

use std::{
    io::{self, IsTerminal as _, Write as _},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};
use tokio::time::{Instant, interval_at};

/// After what time a person wonders.
const QUIET_FOR: Duration = Duration::from_secs(2);
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Back to the beginning of the line, and all of it empty.
const CLEAR: &str = "\r\x1b[K";

/// Whether there is a line that is to be cleared before anything else is printed.
static IS_SHOWN: AtomicBool = AtomicBool::new(false);

/// Does some work, and says how long it has taken so far.
pub(crate) async fn during<T>(what: &str, work: impl Future<Output = T>) -> T {
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
    // Standard error may be closed; there is nowhere left to say so.
    let _ = write!(io::stderr(), "{CLEAR}{what} ({}s)", lasted.as_secs());
}

/// Takes the line away, where there is one.
pub(crate) fn clear() {
    if IS_SHOWN.swap(false, Ordering::Relaxed) {
        let _ = write!(io::stderr(), "{CLEAR}");
    }
}
