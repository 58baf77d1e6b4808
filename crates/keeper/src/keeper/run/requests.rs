//! Request ids under which signals were sent: none is sent twice, whichever server asks.

use super::Run;
use crate::wire::Answer;
use std::{collections::VecDeque, time::Duration};

/// Most ids that are remembered, the newest; none is longer than `REQUEST_ID_BYTES_MAX`.
const REMEMBERED_MAX: usize = 1024;
/// Time for which they are remembered, on the clock that advances while the host sleeps.
const REMEMBERED_FOR: Duration = Duration::from_mins(10);

/// The ids with their times, oldest first.
#[derive(Default)]
pub(super) struct Requests {
    sent: VecDeque<(Box<str>, u64)>,
}

impl Requests {
    fn has(&mut self, id: &str, now: u64) -> bool {
        let age = |at| Duration::from_millis(now.saturating_sub(at));
        while self
            .sent
            .front()
            .is_some_and(|(_, at)| age(*at) > REMEMBERED_FOR)
        {
            self.sent.pop_front();
        }
        self.sent.iter().any(|(seen, _)| **seen == *id)
    }

    /// Remembers the id of a signal that a process got.
    pub(super) fn remember(&mut self, id: Option<&str>, now: u64) {
        let Some(id) = id else { return };
        if self.sent.len() >= REMEMBERED_MAX {
            self.sent.pop_front();
        }
        self.sent.push_back((id.into(), now));
    }
}

impl Run {
    /// Whether a signal was sent under this id before; then that is the answer.
    pub(super) fn sent_before(&mut self, seq: u64, id: Option<&str>, now: u64) -> bool {
        let before = id.is_some_and(|id| self.requests.has(id, now));
        if before {
            self.answer(seq, Answer::SentBefore {});
        }
        before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: T-15
    #[test]
    fn recent_request_ids_are_remembered_ten_minutes() {
        let mut requests = Requests::default();
        requests.remember(None, 0);
        requests.remember(Some("a"), 0);
        requests.remember(Some("b"), 1);
        assert!(requests.has("a", 600_000));
        assert!(!requests.has("a", 600_001));
        assert!(requests.has("b", 600_001));
        for number in 0..1023 {
            requests.remember(Some(&number.to_string()), 600_001);
        }
        assert!(requests.has("b", 600_001));
        requests.remember(Some("c"), 600_001);
        assert!(!requests.has("b", 600_001));
        assert!(requests.has("0", 600_001) && requests.has("c", 600_001));
        assert_eq!(requests.sent.len(), 1024);
    }
}
