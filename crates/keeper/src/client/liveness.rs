//! Liveness of the keeper: it gets a ping each second, and pings are counted, not seconds. So a server that was
//! stopped, or a host that was suspended, finds at most one ping unanswered.

use kennel_lifecycle::Timestamp;
use kennel_linux::clock;
use parking_lot::Mutex;
use std::time::Duration;
use tokio::sync::watch;

/// Time between two pings.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// Checks in a row that find a ping unanswered before the keeper counts as unresponsive.
const LOOKS_MAX: u32 = 5;

/// State of the keeper's answers.
#[derive(Debug, Default)]
pub(super) struct KeeperLiveness {
    /// Time since which it has not answered; absent: it answers.
    unresponsive: watch::Sender<Option<Timestamp>>,
    question: Mutex<PingState>,
}

/// The last ping.
#[derive(Debug, Default)]
struct PingState {
    /// Time of the ping, while it is not answered.
    asked_at: Option<Timestamp>,
    /// Number of checks that found it unanswered.
    looks: u32,
}

impl KeeperLiveness {
    /// Time since which the keeper has not answered, and every change of it.
    pub(super) fn unresponsive(&self) -> watch::Receiver<Option<Timestamp>> {
        self.unresponsive.subscribe()
    }

    /// Sends pings for ever.
    pub(super) async fn watch(&self, ask: impl Fn()) {
        loop {
            tokio::time::sleep(ASK_EVERY).await;
            if self.look(clock::wall()) {
                ask();
            }
        }
    }

    /// Whether to send a ping: there is one at a time.
    fn look(&self, now: Timestamp) -> bool {
        let mut question = self.question.lock();
        let Some(asked_at) = question.asked_at else {
            *question = PingState {
                asked_at: Some(now),
                looks: 0,
            };
            return true;
        };
        question.looks = question.looks.saturating_add(1);
        if question.looks >= LOOKS_MAX {
            let first = |since: &mut Option<Timestamp>| since.replace(asked_at) != Some(asked_at);
            self.unresponsive.send_if_modified(first);
        }
        false
    }

    /// Records an answer.
    pub(super) fn answered(&self) {
        *self.question.lock() = PingState::default();
        let was_silent = |since: &mut Option<Timestamp>| since.take().is_some();
        self.unresponsive.send_if_modified(was_silent);
    }

    /// Records another message, which may be old.
    pub(super) fn heard(&self) {
        self.question.lock().looks = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: R-63
    #[test]
    fn keeper_is_unresponsive_after_unanswered_pings() {
        let liveness = KeeperLiveness::default();
        let seen = liveness.unresponsive();
        assert!(liveness.look(Timestamp(1)), "it is asked");
        for look in 1..LOOKS_MAX {
            // A stop of this process counts as one check, however long.
            let now = Timestamp(1_000_000_000 * i64::from(look));
            assert!(!liveness.look(now), "there is one question at a time");
            assert_eq!(*seen.borrow(), None);
        }
        liveness.look(Timestamp(7));
        assert_eq!(*seen.borrow(), Some(Timestamp(1)), "since it was asked");
        liveness.heard();
        assert!(seen.borrow().is_some(), "that may have been said before");
        liveness.answered();
        assert_eq!(*seen.borrow(), None);
        assert!(liveness.look(Timestamp(8)), "it is asked again");
    }

    // promise: R-63
    #[test]
    fn keeper_that_sends_messages_is_responsive() {
        let liveness = KeeperLiveness::default();
        for now in 0..100 {
            liveness.look(Timestamp(now));
            liveness.heard();
        }
        assert_eq!(*liveness.unresponsive().borrow(), None);
    }
}
