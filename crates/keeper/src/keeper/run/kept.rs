//! Reports of one run that are repeated to the next server, until one has acknowledged the run.

use crate::values::{Fact, Notified};
use kennel_lifecycle::{Signal, Timestamp, limits::STEPS_LISTED_MAX};
use std::mem::discriminant;

/// Reports in the order in which they were sent. Of each kind that can come any number of times their number is
/// bounded.
#[derive(Default)]
pub(super) struct PendingReports {
    facts: Vec<(Timestamp, Fact)>,
}

impl PendingReports {
    /// Adds a report, which replaces one that it makes superfluous.
    pub(super) fn keep(&mut self, at: Timestamp, fact: &Fact) {
        // The number of earlier reports of the same kind that stay.
        let stay = match fact {
            // The sender already has its answer; only a report of SIGKILL explains a later exit.
            Fact::SignalSent { signal, .. } if *signal == Signal::KILL => 0,
            // The state of the pause is handed over with the run.
            Fact::SignalSent { .. } | Fact::PauseExpired {} => return,
            Fact::TreeStuck(_)
            | Fact::Extended { .. }
            | Fact::Notified(Notified::Status(_) | Notified::Activity(_) | Notified::Extends(_)) => {
                0
            }
            Fact::RoundTargets(_) | Fact::StopStep(_) => STEPS_LISTED_MAX,
            _ => usize::MAX,
        };
        let is_of_kind = |(_, earlier): &(Timestamp, Fact)| is_same_kind(earlier, fact);
        if self.facts.iter().filter(|kept| is_of_kind(kept)).count() > stay
            && let Some(newest) = self.facts.iter().rposition(is_of_kind)
        {
            self.facts.remove(newest);
        }
        self.facts.push((at, fact.clone()));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &(Timestamp, Fact)> {
        self.facts.iter()
    }
}

fn is_same_kind(one: &Fact, other: &Fact) -> bool {
    match (one, other) {
        (Fact::Notified(one), Fact::Notified(other)) => discriminant(one) == discriminant(other),
        (Fact::Extended { limit: one, .. }, Fact::Extended { limit: other, .. }) => one == other,
        _ => discriminant(one) == discriminant(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_lifecycle::{Activity, Deadline, Exit, SignalScope, SignalSender, StopStep, Stuck};
    use std::time::Duration;

    #[test]
    fn pending_reports_are_bounded_and_in_order() {
        let mut kept = PendingReports::default();
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
        keep(&Fact::Executed {});
        for _ in 0..1_000 {
            keep(&sent(Signal::HUP));
            keep(&sent(Signal::KILL));
            keep(&Fact::PauseExpired {});
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
            Fact::Executed {},
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
