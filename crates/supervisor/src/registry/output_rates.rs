//! Output rates of owners: how fast the output of all runs of an owner together is read. A command that writes faster
//! fills its pipe and waits; no byte is lost.

use crate::base::ports::OwnerQuotas;
use parking_lot::Mutex;
use std::{collections::HashMap, num::NonZeroU64, sync::Arc, time::Duration};
use tokio::time::Instant;

/// Time of which the bytes may come at once after silence.
const BURST: Duration = Duration::from_secs(1);
/// Moves in a second of a run that is alone at its rate: as many entries are in its journal.
const MOVES_PER_SECOND: u64 = 8;
/// Longest wait before the quota is read again: it may have been raised.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// Longest time that bytes which were read without waiting for a turn delay others: those that an ended run has left.
const DEBT_MAX: Duration = Duration::from_secs(10);
/// Owners that are stored; above it those whose bytes are paid for are forgotten.
const OWNERS_KEPT: usize = 1024;

/// Rates of all owners.
#[derive(Debug)]
pub(crate) struct OutputRates {
    quotas: Arc<dyn OwnerQuotas>,
    /// For each owner the time at which all its bytes are paid for, each with its part of a second.
    paid_at: Mutex<HashMap<Arc<str>, Paid>>,
}

/// A time until which bytes are paid for, and the rate that it was computed at: under another one it says nothing.
type Paid = (NonZeroU64, Instant);

/// A run's part in the rate of its owner.
#[derive(Debug)]
pub(crate) struct OutputRate {
    rates: Arc<OutputRates>,
    owner: Arc<str>,
    /// Time from which on it may move bytes; absent: it has moved none at a rate.
    turn: Option<Paid>,
    /// Bytes that it may still move in this turn.
    room: u64,
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
    pub(crate) fn new(quotas: Arc<dyn OwnerQuotas>) -> Arc<Self> {
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
            room: 0,
        }
    }
}

impl OutputRate {
    /// Returns the bytes a second of the owner; absent: it has no rate.
    pub(crate) fn bytes_per_second(&self) -> Option<NonZeroU64> {
        self.rates.quotas.output_bytes_per_second(&self.owner)
    }

    /// Returns how many bytes may be moved now.
    pub(crate) fn room(&mut self, now: Instant) -> RateRoom {
        self.room = 0;
        let Some(rate) = self.bytes_per_second() else {
            self.turn = None;
            return RateRoom::Unlimited;
        };
        let at_rate = |paid: &Paid| paid.0 == rate;
        // A run without a turn queues behind the bytes of its owner's other runs.
        let others = || self.rates.paid_at.lock().get(&self.owner).copied();
        let turn = self.turn.filter(at_rate);
        self.turn = turn.or_else(|| others().filter(at_rate));
        if self.turn.is_some_and(|(_, turn)| turn > now) {
            return RateRoom::Wait;
        }
        let each = NonZeroU64::new(rate.get() / MOVES_PER_SECOND).unwrap_or(NonZeroU64::MIN);
        self.room = each.get();
        RateRoom::Bytes(each)
    }

    /// Records that so many bytes were moved: the run's next turn comes when all bytes of its owner are paid for. More
    /// bytes than there was room for delay it by [`DEBT_MAX`] at most.
    pub(crate) fn pay(&mut self, bytes: u64, now: Instant) {
        let Some(rate) = self.bytes_per_second() else {
            return;
        };
        let is_beyond = bytes > self.room;
        self.room = self.room.saturating_sub(bytes);
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate.get());
        let cost = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let least = now.checked_sub(BURST).unwrap_or(now);
        let mut paid_at = self.rates.paid_at.lock();
        if paid_at.len() >= OWNERS_KEPT && !paid_at.contains_key(&self.owner) {
            paid_at.retain(|_, (_, at)| *at > least);
        }
        let paid = paid_at.entry(Arc::clone(&self.owner));
        let paid = paid.or_insert((rate, least));
        if paid.0 != rate {
            *paid = (rate, least);
        }
        let most = paid.1.max(now + DEBT_MAX);
        let next = paid.1.max(least).checked_add(cost).unwrap_or(most);
        paid.1 = if is_beyond { next.min(most) } else { next };
        self.turn = Some(*paid);
    }

    /// Returns the time at which to look for room again; absent: there is some.
    pub(crate) fn wait_until(&self, now: Instant) -> Option<Instant> {
        let (rate, turn) = self.turn.filter(|(_, turn)| *turn > now)?;
        let is_current = self.bytes_per_second()? == rate;
        is_current.then(|| turn.min(now + WAIT_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// The rate of every owner; 0: there is none.
    #[derive(Debug)]
    struct Rate(AtomicU64);

    impl OwnerQuotas for Rate {
        fn output_bytes_per_second(&self, _: &str) -> Option<NonZeroU64> {
            NonZeroU64::new(self.0.load(Ordering::Relaxed))
        }

        fn record_bytes(&self, _: &str) -> Option<NonZeroU64> {
            None
        }
    }

    fn quota(bytes: u64) -> (Arc<OutputRates>, Arc<Rate>) {
        let quota = Arc::new(Rate(AtomicU64::new(bytes)));
        (OutputRates::new(Arc::clone(&quota) as _), quota)
    }

    fn rates(bytes: u64) -> Arc<OutputRates> {
        quota(bytes).0
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

    // promise: I-100
    #[tokio::test]
    async fn runs_of_an_owner_share_its_rate() {
        let (rates, owner) = (rates(8000), Arc::from("team"));
        let mut runs: Vec<_> = (0..4).map(|_| rates.of(&owner)).collect();
        let start = Instant::now();
        let sums = moved(&mut runs, start, Duration::from_secs(10));
        let all: u64 = sums.iter().sum();
        // Ten seconds and a burst, and for each run one move begun before the others had paid.
        assert!((80_000..=88_000 + 4 * 1000).contains(&all), "{sums:?}");
        let (least, most) = (sums.iter().min(), sums.iter().max());
        assert!(
            most.zip(least).is_some_and(|(m, l)| m - l <= 10_000),
            "{sums:?}"
        );

        // A new run gets no bytes in advance.
        let mut late = rates.of(&owner);
        let now = start + Duration::from_secs(10);
        assert_eq!(late.room(now), RateRoom::Wait);
        assert!(late.wait_until(now).is_some_and(|at| at <= now + WAIT_MAX));
        let mut other = rates.of(&Arc::from("other"));
        assert!(matches!(other.room(now), RateRoom::Bytes(_)));
    }

    #[tokio::test]
    async fn output_without_configured_rate_is_unlimited() {
        let rates = rates(0);
        let mut run = rates.of(&Arc::from("team"));
        let now = Instant::now();
        assert_eq!(run.room(now), RateRoom::Unlimited);
        run.pay(u64::MAX, now);
        assert_eq!(
            (run.room(now), run.wait_until(now)),
            (RateRoom::Unlimited, None)
        );
    }

    // promise: I-100
    #[tokio::test]
    async fn removed_rate_clears_the_debt() {
        let (rates, quota) = quota(1);
        let (owner, now) = (Arc::from("team"), Instant::now());
        let mut runs = [rates.of(&owner), rates.of(&owner)];
        for second in 0..100 {
            runs[0].room(now);
            runs[0].pay(1, now + Duration::from_secs(second));
        }
        for run in &mut runs {
            assert_eq!(run.room(now), RateRoom::Wait);
        }
        quota.0.store(8_000, Ordering::Relaxed);
        assert_eq!(runs[0].wait_until(now), None);
        let sums = moved(&mut runs, now, Duration::from_secs(1));
        assert!(sums.iter().all(|sum| *sum >= 2000), "{sums:?}");
    }

    // promise: I-100
    #[tokio::test]
    async fn ended_runs_do_not_starve_live_ones() {
        let (rates, owner) = (rates(100_000), Arc::from("team"));
        let (mut living, mut sum, start) = ([rates.of(&owner)], 0, Instant::now());
        for step in 0..600 {
            let now = start + Duration::from_millis(100 * step);
            // Output left in a pipe is read at once when its run ends.
            rates.of(&owner).pay(50_000, now);
            let moved = moved(&mut living, now, Duration::ZERO)[0];
            sum += if step < 200 { 0 } else { moved };
            let late = rates
                .paid_at
                .lock()
                .values()
                .all(|(_, at)| *at <= now + 2 * DEBT_MAX);
            assert!(late, "the debt has no bound");
        }
        // One 12,500-byte move every ten seconds.
        assert!(sum >= 3 * 12_500, "{sum}");
    }

    #[tokio::test]
    async fn owners_without_output_debt_are_forgotten() {
        let rates = rates(8);
        let start = Instant::now();
        for n in 0..2 * OWNERS_KEPT {
            let now = start + Duration::from_secs(u64::try_from(n).expect("small"));
            rates.of(&Arc::from(n.to_string())).pay(1, now);
        }
        assert!(rates.paid_at.lock().len() <= OWNERS_KEPT);
    }
}
