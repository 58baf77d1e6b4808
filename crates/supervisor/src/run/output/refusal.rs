//! State of a disk that refuses writes.

use crate::base::cause::{Chain, is_full};
use kennel_journal::Dropped;
use kennel_lifecycle::Timestamp;
use std::{fmt::Write as _, io};

/// A refusal of the disk.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// Start; absent: an earlier server met it.
    since: Option<Timestamp>,
    /// Its first error.
    why: String,
    /// Whether the disk is full.
    pub(super) full: bool,
    /// Whether output is dropped meanwhile.
    pub(super) drops: bool,
    /// Output that was dropped and reported.
    dropped: Dropped,
    /// Whether a warning has reported it.
    pub(super) is_warned: bool,
}

impl Refusal {
    pub(super) fn new(since: Timestamp, error: &io::Error) -> Self {
        Self {
            since: Some(since),
            why: Chain(error).to_string(),
            full: is_full(error),
            drops: false,
            dropped: Dropped::default(),
            is_warned: false,
        }
    }

    /// Makes the refusal that an earlier server left by dropping output.
    pub(super) fn found() -> Self {
        Self {
            since: None,
            why: String::new(),
            full: true,
            drops: false,
            dropped: Dropped::default(),
            is_warned: false,
        }
    }

    /// Ends the refusal: there is room again, and readers get a report of the missing output.
    pub(super) fn is_over(&mut self, dropped: Dropped) {
        self.drops = false;
        self.dropped.bytes[0] += dropped.bytes[0];
        self.dropped.bytes[1] += dropped.bytes[1];
        self.dropped.uncounted |= dropped.uncounted;
    }

    /// Makes the warning for readers, now that writes succeed again; so many entries were given up.
    pub(super) fn message(&self, now: Timestamp, given_up: u64) -> String {
        let mut message = match self.since {
            Some(since) => {
                let millis = now.0.saturating_sub(since.0) / 1000;
                let (seconds, millis) = (millis / 1000, millis % 1000);
                format!(
                    "the journal could not be written for {seconds}.{millis:03} s: {}",
                    self.why
                )
            }
            None => "the journal could not be written while the server was replaced".to_owned(),
        };
        let [stdout, stderr] = self.dropped.bytes;
        let least = if self.dropped.uncounted {
            "at least "
        } else {
            ""
        };
        let _ = if self.dropped == Dropped::default() {
            write!(message, "; no output is missing for that")
        } else {
            write!(
                message,
                "; {least}{stdout} bytes of stdout and {least}{stderr} bytes of stderr are missing"
            )
        };
        if given_up > 0 {
            let _ = write!(
                message,
                "; {given_up} events that are no output are missing"
            );
        }
        message
    }
}
