//! Reports of one run that are repeated to the next server, until one has acknowledged the run.

use crate::values::{Fact, Notified};
use kennel_lifecycle::{Deadline, Signal, Timestamp, limits::STEPS_LISTED_MAX};

/// Reports in the order in which they were sent. Of each kind that can come any number of times their number is
/// bounded.
#[derive(Default)]
pub(super) struct Kept {
    facts: Vec<(Timestamp, Fact)>,
}

impl Kept {
    /// Adds a report, which replaces one that it makes superfluous.
    pub(super) fn keep(&mut self, at: Timestamp, fact: &Fact) {
        match fact {
            // A signal was answered; only the fact that a SIGKILL was sent explains an end that comes later.
            Fact::SignalSent { signal, .. } if *signal == Signal::KILL => {
                self.forget(is_sent);
            }
            // The state of the pause is handed over with the run.
            Fact::SignalSent { .. } | Fact::PauseExpired => return,
            Fact::TreeStuck(_) => self.forget(is_stuck),
            Fact::RoundTargets(_) if self.count(is_targets) > STEPS_LISTED_MAX => {
                self.forget(is_targets);
            }
            Fact::StopStep(_) if self.count(is_step) > STEPS_LISTED_MAX => self.forget(is_step),
            Fact::Notified(Notified::Status(_)) => self.forget(is_status),
            Fact::Notified(Notified::Activity(_)) => self.forget(is_activity),
            Fact::Notified(Notified::Extends(_)) => self.forget(is_later_end),
            Fact::Extended { limit, .. } => self.forget(is_extension_of(*limit)),
            Fact::StopStep(_)
            | Fact::StopInput(_)
            | Fact::StopCommand(_)
            | Fact::RoundTargets(_)
            | Fact::NotReleased
            | Fact::Executed
            | Fact::ExecFailed(_)
            | Fact::LeaderExited(_)
            | Fact::LeftBehind(_)
            | Fact::MemoryKills(_)
            | Fact::Usage(_)
            | Fact::TreeEnded(_)
            | Fact::Notified(Notified::Ready | Notified::Refused { .. })
            | Fact::Stops(_) => {}
        }
        self.facts.push((at, fact.clone()));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &(Timestamp, Fact)> {
        self.facts.iter()
    }

    fn count(&self, kind: fn(&Fact) -> bool) -> usize {
        self.facts.iter().filter(|(_, fact)| kind(fact)).count()
    }

    /// Removes the newest report of this kind.
    fn forget(&mut self, kind: impl Fn(&Fact) -> bool) {
        if let Some(newest) = self.facts.iter().rposition(|(_, fact)| kind(fact)) {
            self.facts.remove(newest);
        }
    }
}

fn is_sent(fact: &Fact) -> bool {
    matches!(fact, Fact::SignalSent { .. })
}

fn is_stuck(fact: &Fact) -> bool {
    matches!(fact, Fact::TreeStuck(_))
}

fn is_status(fact: &Fact) -> bool {
    matches!(fact, Fact::Notified(Notified::Status(_)))
}

fn is_activity(fact: &Fact) -> bool {
    matches!(fact, Fact::Notified(Notified::Activity(_)))
}

fn is_later_end(fact: &Fact) -> bool {
    matches!(fact, Fact::Notified(Notified::Extends(_)))
}

fn is_extension_of(limit: Deadline) -> impl Fn(&Fact) -> bool {
    move |fact| matches!(fact, Fact::Extended { limit: of, .. } if *of == limit)
}

fn is_step(fact: &Fact) -> bool {
    matches!(fact, Fact::StopStep(_))
}

fn is_targets(fact: &Fact) -> bool {
    matches!(fact, Fact::RoundTargets(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_lifecycle::{Activity, Deadline, Exit, SignalScope, SignalSender, StopStep, Stuck};
    use std::time::Duration;

    #[test]
    fn repeatable_facts_are_bounded_and_in_order() {
        let mut kept = Kept::default();
        let sent = |signal| Fact::SignalSent {
            signal,
            targets: Some(1),
            errno: None,
        };
        let step = |at| {
            Fact::StopStep(StopStep {
                at: Timestamp(at),
                signal: Signal::TERM,
                scope: SignalScope::Tree,
                sender: SignalSender::Keeper,
                delivered: 1,
                gone: 0,
                refused: 0,
                errno: None,
            })
        };
        let stuck = |unlisted| {
            Fact::TreeStuck(Stuck {
                processes: Vec::new(),
                unlisted,
            })
        };
        let extended = |limit| Fact::Extended {
            limit,
            total: Duration::ZERO,
            by: String::new(),
        };
        let mut now = 0;
        let mut keep = |fact: &Fact| {
            now += 1;
            kept.keep(Timestamp(now), fact);
        };
        keep(&Fact::Executed);
        for _ in 0..1_000 {
            keep(&sent(Signal::HUP));
            keep(&sent(Signal::KILL));
            keep(&Fact::PauseExpired);
            keep(&Fact::Notified(Notified::Activity(Activity::Working)));
            keep(&Fact::Notified(Notified::Activity(Activity::Idle)));
            keep(&Fact::Notified(Notified::Extends(Duration::ZERO)));
            keep(&extended(Deadline::MaxRuntime));
            keep(&extended(Deadline::StartTimeout));
        }
        let steps = i64::try_from(STEPS_LISTED_MAX).expect("few") + 10;
        for at in 0..steps {
            keep(&step(at));
            keep(&stuck(1));
        }
        keep(&stuck(2));
        keep(&Fact::LeaderExited(Exit::Unknown));

        let times: Vec<i64> = kept.iter().map(|(at, _)| at.0).collect();
        assert!(times.is_sorted(), "{times:?}");
        let facts: Vec<&Fact> = kept.iter().map(|(_, fact)| fact).collect();
        let first = i64::try_from(STEPS_LISTED_MAX).expect("few");
        let steps_kept: Vec<Fact> = (0..first).chain([steps - 1]).map(step).collect();
        let others = [
            Fact::Executed,
            sent(Signal::KILL),
            Fact::Notified(Notified::Activity(Activity::Idle)),
            Fact::Notified(Notified::Extends(Duration::ZERO)),
            extended(Deadline::MaxRuntime),
            extended(Deadline::StartTimeout),
            stuck(2),
            Fact::LeaderExited(Exit::Unknown),
        ];
        let expected: Vec<&Fact> = others[..6]
            .iter()
            .chain(&steps_kept)
            .chain(&others[6..])
            .collect();
        assert_eq!(facts, expected);
    }
}
