//! Output rates of owners: how fast the output of all runs of an owner together is read. A command that writes faster
//! fills its pipe and waits; no byte is lost.

use crate::base::ports::OutputQuotas;
use std::{
    collections::HashMap,
    num::NonZeroU64,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Time of which the bytes may come at once after silence.
const BURST: Duration = Duration::from_secs(1);
/// Moves in a second of a run that is alone at its rate: as many entries are in its journal.
const MOVES_PER_SECOND: u64 = 8;
/// Longest wait before the quota is read again: it may have been raised.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// Owners that are stored; above it those whose bytes are paid for are forgotten.
const OWNERS_KEPT: usize = 1024;

/// Rates of all owners.
#[derive(Debug)]
pub(crate) struct OutputRates {
    quotas: Arc<dyn OutputQuotas>,
    /// For each owner the time at which all its bytes are paid for, each with its part of a second.
    paid_at: Mutex<HashMap<Arc<str>, Instant>>,
}

/// A run's part in the rate of its owner.
#[derive(Debug)]
pub(crate) struct OutputRate {
    rates: Arc<OutputRates>,
    owner: Arc<str>,
    /// Time from which on it may move bytes; absent: it has moved none at a rate.
    turn: Option<Instant>,
}

/// How many bytes may be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RateRoom {
    /// The owner has no rate.
    Unlimited,
    /// At most so many.
    Bytes(NonZeroU64),
    /// None before the run's turn.
    Wait,
}

impl OutputRates {
    pub(crate) fn new(quotas: Arc<dyn OutputQuotas>) -> Arc<Self> {
        Arc::new(Self {
            quotas,
            paid_at: Mutex::default(),
        })
    }

    /// Returns the part of one more run of this owner.
    pub(crate) fn of(self: &Arc<Self>, owner: &Arc<str>) -> OutputRate {
        OutputRate {
            rates: Arc::clone(self),
            owner: Arc::clone(owner),
            turn: None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, Instant>> {
        self.paid_at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OutputRate {
    /// Returns the bytes a second of the owner; absent: it has no rate.
    pub(crate) fn bytes_per_second(&self) -> Option<NonZeroU64> {
        self.rates.quotas.output_bytes_per_second(&self.owner)
    }

    /// Returns how many bytes may be moved now.
    pub(crate) fn room(&mut self, now: Instant) -> RateRoom {
        let Some(rate) = self.bytes_per_second() else {
            self.turn = None;
            return RateRoom::Unlimited;
        };
        // A run without a turn comes behind the bytes of its owner's others.
        let others = || self.rates.lock().get(&self.owner).copied();
        if self.turn.is_none() {
            self.turn = others();
        }
        if self.turn.is_some_and(|turn| turn > now) {
            return RateRoom::Wait;
        }
        let each = NonZeroU64::new(rate.get() / MOVES_PER_SECOND);
        RateRoom::Bytes(each.unwrap_or(NonZeroU64::MIN))
    }

    /// Records that so many bytes were moved: the run's next turn comes when all bytes of its owner are paid for.
    pub(crate) fn pay(&mut self, bytes: u64, now: Instant) {
        let Some(rate) = self.bytes_per_second() else {
            return;
        };
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate.get());
        let cost = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let least = now.checked_sub(BURST).unwrap_or(now);
        let mut paid_at = self.rates.lock();
        if paid_at.len() >= OWNERS_KEPT && !paid_at.contains_key(&self.owner) {
            paid_at.retain(|_, at| *at > least);
        }
        let at = paid_at.entry(Arc::clone(&self.owner)).or_insert(least);
        let next = (*at).max(least).checked_add(cost);
        // Of a time that cannot be named the run waits as long as can be.
        *at = next.unwrap_or(*at);
        self.turn = Some(*at);
    }

    /// Returns the time at which to look for room again; absent: there is some.
    pub(crate) fn wait_until(&self, now: Instant) -> Option<Instant> {
        let turn = self.turn.filter(|turn| *turn > now)?;
        self.bytes_per_second()?;
        Some(turn.min(now + WAIT_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Rate(Option<NonZeroU64>);

    impl OutputQuotas for Rate {
        fn output_bytes_per_second(&self, _: &str) -> Option<NonZeroU64> {
            self.0
        }
    }

    fn rates(bytes: u64) -> Arc<OutputRates> {
        OutputRates::new(Arc::new(Rate(NonZeroU64::new(bytes))))
    }

    /// Moves all that there is room for in this time, with these runs in turn. Returns the bytes of each.
    fn moved(runs: &mut [OutputRate], start: Instant, time: Duration) -> Vec<u64> {
        let mut sums = vec![0; runs.len()];
        for step in 0..=time.as_millis() {
            let now = start + Duration::from_millis(u64::try_from(step).expect("short"));
            for (run, sum) in runs.iter_mut().zip(&mut sums) {
                while let RateRoom::Bytes(bytes) = run.room(now) {
                    run.pay(bytes.get(), now);
                    *sum += bytes.get();
                }
            }
        }
        sums
    }

    #[tokio::test]
    async fn runs_of_an_owner_share_its_rate() {
        let (rates, owner) = (rates(8000), Arc::from("team"));
        let mut runs: Vec<_> = (0..4).map(|_| rates.of(&owner)).collect();
        let start = Instant::now();
        let sums = moved(&mut runs, start, Duration::from_secs(10));
        let all: u64 = sums.iter().sum();
        // Ten seconds and a burst; and for each run a move that was begun before the others had paid.
        assert!((80_000..=88_000 + 4 * 1000).contains(&all), "{sums:?}");
        let (least, most) = (sums.iter().min(), sums.iter().max());
        assert!(
            most.zip(least).is_some_and(|(m, l)| m - l <= 10_000),
            "{sums:?}"
        );

        // A new run does not begin with bytes of its own.
        let mut late = rates.of(&owner);
        let now = start + Duration::from_secs(10);
        assert_eq!(late.room(now), RateRoom::Wait);
        assert!(late.wait_until(now).is_some_and(|at| at <= now + WAIT_MAX));
        let mut other = rates.of(&Arc::from("other"));
        assert!(matches!(other.room(now), RateRoom::Bytes(_)));
    }

    #[tokio::test]
    async fn output_without_a_rate_is_unlimited() {
        let rates = OutputRates::new(Arc::new(Rate(None)));
        let mut run = rates.of(&Arc::from("team"));
        let now = Instant::now();
        assert_eq!(run.room(now), RateRoom::Unlimited);
        run.pay(u64::MAX, now);
        assert_eq!(
            (run.room(now), run.wait_until(now)),
            (RateRoom::Unlimited, None)
        );
    }

    #[tokio::test]
    async fn owners_whose_bytes_are_paid_are_forgotten() {
        let rates = rates(8);
        let start = Instant::now();
        for n in 0..2 * OWNERS_KEPT {
            let now = start + Duration::from_secs(u64::try_from(n).expect("small"));
            rates.of(&Arc::from(n.to_string())).pay(1, now);
        }
        assert!(rates.lock().len() <= OWNERS_KEPT);
    }
}
