//! Events of this thread's play, in order: printed when it has failed.

use std::{cell::RefCell, fmt::Write, io};
use tokio::time::Instant;
use tracing::Level;

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

/// Plays with the warnings of the server in the story.
pub(crate) fn with_warnings(play: impl FnOnce()) {
    let log = tracing_subscriber::fmt()
        .with_max_level(Level::WARN)
        .with_ansi(false)
        .without_time()
        .with_target(false)
        .with_writer(|| Line)
        .finish();
    tracing::subscriber::with_default(log, play);
}

/// Takes one line of the server's log.
struct Line;

impl io::Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        tell(|| String::from_utf8_lossy(line).trim().to_owned());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(crate) fn whole() -> String {
    LINES.with_borrow(|lines| {
        let mut whole = String::new();
        let mut before = lines.first().map(|(at, _)| *at);
        for (at, line) in lines {
            let since = before
                .replace(*at)
                .map_or(0, |before| at.saturating_duration_since(before).as_millis());
            // Writes to memory cannot fail.
            let _ = writeln!(whole, "+{since} ms {line}");
        }
        whole
    })
}
