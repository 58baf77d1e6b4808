//! Time at which a pipe is read: as soon as it is readable, or by a timer where a command writes little all the time.
//!
//! A wake-up for each write costs the command more than the write does, and makes an entry of each. So a pipe that has
//! kept the pump busy with little is not watched: it is read repeatedly, and the bytes gathered in it become one entry.

use std::time::Duration;
use tokio::time::Instant;

/// Small reads in close succession until a pipe is not watched any more.
const BUSY_LOOKS: u32 = 8;
/// Longest distance of such reads.
const SOON: Duration = Duration::from_millis(1);
/// Bytes below which a read is small.
const LITTLE_BYTES: u64 = 16 * 1024;
/// Time for which output may gather in an unwatched pipe; the runtime's timers may double it.
const REST: Duration = Duration::from_millis(1);
/// Bytes from which on a read is followed by another at once, so that the pipe does not become full.
const MUCH_BYTES: u64 = 128 * 1024;
/// Empty reads until a pipe is watched again.
const EMPTY_LOOKS: u32 = 2;

/// Method of reading a pipe.
#[derive(Debug)]
pub(super) enum Pace {
    /// The pipe is read as soon as it is readable.
    Watched {
        looked_at: Option<Instant>,
        /// Small reads in close succession, less the larger ones.
        busy: u32,
    },
    /// By a timer.
    Timed {
        next: Next,
        /// Empty reads in a row.
        empty: u32,
    },
}

/// Time at which an unwatched pipe is read next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// After other work had its turn.
    Now,
    At(Instant),
}

/// Next step of a pipe after a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    None,
    /// The pipe need not be watched any more: [`Pace::unwatched`] records that it is not.
    Unwatch,
    Watch,
}

impl Default for Pace {
    fn default() -> Self {
        Self::Watched {
            looked_at: None,
            busy: 0,
        }
    }
}

impl Pace {
    /// Absent: the pipe is watched.
    pub(super) fn next(&self) -> Option<Next> {
        match self {
            Self::Watched { .. } => None,
            Self::Timed { next, .. } => Some(*next),
        }
    }

    /// Records a read of so many bytes. `gathers`: output may gather in the pipe; a rate can forbid it at any time.
    pub(super) fn looked(&mut self, bytes: u64, now: Instant, gathers: bool) -> Change {
        match self {
            Self::Watched { .. } if !gathers => Change::None,
            Self::Timed { .. } if !gathers => {
                *self = Self::default();
                Change::Watch
            }
            Self::Watched { looked_at, busy } => {
                let before = looked_at.replace(now);
                *busy = match before {
                    Some(before) if now - before < SOON && bytes < LITTLE_BYTES => *busy + 1,
                    Some(before) if now - before < SOON => busy.saturating_sub(1),
                    _ => 0,
                };
                if *busy < BUSY_LOOKS {
                    return Change::None;
                }
                *busy = 0;
                Change::Unwatch
            }
            Self::Timed { next, empty } => {
                *empty = if bytes == 0 { *empty + 1 } else { 0 };
                if *empty >= EMPTY_LOOKS {
                    *self = Self::default();
                    return Change::Watch;
                }
                *next = if bytes >= MUCH_BYTES {
                    Next::Now
                } else {
                    Next::At(now + REST)
                };
                Change::None
            }
        }
    }

    /// Records that the pipe is not watched from here on.
    pub(super) fn unwatched(&mut self, now: Instant) {
        let next = Next::At(now + REST);
        *self = Self::Timed { next, empty: 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_micros(50);

    /// Reads so many bytes, one step after the other, until a change. Returns the change and the number of reads.
    fn look(pace: &mut Pace, now: &mut Instant, step: Duration, bytes: u64) -> (Change, u32) {
        for looks in 1..=100 {
            *now += step;
            match pace.looked(bytes, *now, true) {
                Change::None => {}
                change => return (change, looks),
            }
        }
        (Change::None, 100)
    }

    // promise: O-33
    #[tokio::test(start_paused = true)]
    async fn slow_steady_pipe_is_unwatched_until_silent() {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        let busy = look(&mut pace, &mut now, STEP, 100);
        assert_eq!(busy, (Change::Unwatch, BUSY_LOOKS + 1));
        pace.unwatched(now);
        assert_eq!(pace.next(), Some(Next::At(now + REST)));
        assert_eq!(look(&mut pace, &mut now, REST, 100), (Change::None, 100));
        assert_eq!(pace.looked(MUCH_BYTES, now, true), Change::None);
        assert_eq!(pace.next(), Some(Next::Now));
        assert_eq!(pace.looked(0, now, true), Change::None);
        assert_eq!(pace.looked(1, now, true), Change::None);
        let silent = look(&mut pace, &mut now, REST, 0);
        assert_eq!(silent, (Change::Watch, EMPTY_LOOKS));
        assert_eq!(pace.next(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn polled_pipe_is_watched_when_delay_is_forbidden() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        pace.unwatched(now);
        assert_eq!(pace.looked(100, now, false), Change::Watch);
        assert_eq!(pace.next(), None);
        for _ in 0..100 {
            assert_eq!(pace.looked(100, now, false), Change::None);
        }
    }

    // promise: O-33
    #[tokio::test(start_paused = true)]
    async fn fast_or_infrequent_pipe_is_watched() {
        for (step, bytes) in [(SOON, 1), (SOON, LITTLE_BYTES), (STEP, LITTLE_BYTES)] {
            let (mut pace, mut now) = (Pace::default(), Instant::now());
            let found = look(&mut pace, &mut now, step, bytes);
            assert_eq!(found, (Change::None, 100), "{bytes} bytes after {step:?}");
        }
    }
}
