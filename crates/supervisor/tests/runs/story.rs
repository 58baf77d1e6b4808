//! Events of this thread's play, in order: printed when it has failed.

use std::{cell::RefCell, fmt::Write};
use tokio::time::Instant;

thread_local! {
    static LINES: RefCell<Vec<(Instant, String)>> = const { RefCell::new(Vec::new()) };
}

/// Begins another play.
pub(crate) fn begin() {
    LINES.with_borrow_mut(Vec::clear);
}

pub(crate) fn tell(what: impl FnOnce() -> String) {
    LINES.with_borrow_mut(|lines| lines.push((Instant::now(), what())));
}

pub(crate) fn whole() -> String {
    LINES.with_borrow(|lines| {
        let mut whole = String::new();
        let mut before = lines.first().map(|(at, _)| *at);
        for (at, line) in lines {
            let since = before
                .replace(*at)
                .map_or(0, |before| at.saturating_duration_since(before).as_millis());
            // Into memory.
            let _ = writeln!(whole, "+{since} ms {line}");
        }
        whole
    })
}
