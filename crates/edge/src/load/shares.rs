//! Quota usage of owners: what their calls take, one count for each kind; and the rates of their spawns and refusals.
//! Live runs, their output and records are counted where they are stored.

use crate::{
    access::{Caller, Quota},
    limits::{REFUSAL_PAUSE_MAX, REFUSALS_PER_SECOND},
    load::run_waits::{RunWait, RunWaits},
    status,
};
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    num::{NonZeroU32, NonZeroU64},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tonic::Status;

const SECOND: Duration = Duration::from_secs(1);
/// Owners that are stored; above it those without usage are forgotten.
const OWNERS_KEPT: usize = 1024;

/// Events at a rate: each is paid for with its part of a second, and those of one second may come at once.
#[derive(Clone, Copy, Debug, Default)]
struct Paid {
    /// Time at which all are paid for. Absent: they are.
    at: Option<Instant>,
}

impl Paid {
    /// Returns this with one more, and how long that is too early.
    fn with_one(self, per_second: u32, now: Instant) -> (Self, Duration) {
        let at = self.at.unwrap_or(now).max(now) + SECOND / per_second;
        let early = at.saturating_duration_since(now + SECOND);
        (Self { at: Some(at) }, early)
    }

    fn is_ahead(self, now: Instant) -> bool {
        self.at.is_some_and(|at| at > now)
    }
}

/// What is counted of an owner as long as it lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Calls until their answer was sent, streams among them.
    Calls,
    /// Calls beyond these, until they are answered that they are.
    Refusals,
    /// Bytes of requests, whole or not, until they are answered.
    RequestBytes,
    /// Streams of events, attached terminals, and waits for output.
    Streams,
    /// Bytes of answers until the transport has written them.
    AnswerBytes,
}

impl Kind {
    const COUNT: usize = 5;

    fn name(self) -> &'static str {
        match self {
            Self::Calls => "calls in progress",
            Self::Refusals => "refused calls",
            Self::RequestBytes => "bytes of requests in flight",
            Self::Streams => "open streams",
            Self::AnswerBytes => "bytes in flight",
        }
    }

    /// Returns the bound in this quota; absent: there is none.
    fn most(self, quota: &Quota) -> Option<u64> {
        match self {
            Self::Calls | Self::Refusals => quota.calls.map(|most| most.get().into()),
            Self::RequestBytes => quota.request_bytes.map(NonZeroU64::get),
            Self::Streams => quota.streams.map(|most| most.get().into()),
            Self::AnswerBytes => quota.stream_bytes.map(NonZeroU64::get),
        }
    }

    fn refusal(self, most: u64) -> Status {
        status::too_many_of_owner(self.name(), most, SECOND)
    }
}

/// Usage of one owner.
#[derive(Debug, Default)]
pub(crate) struct Share {
    rates: Mutex<Rates>,
    used: [watch::Sender<u64>; Kind::COUNT],
}

#[derive(Clone, Copy, Debug, Default)]
struct Rates {
    spawns: Paid,
    refusals: Paid,
    /// Part of the range in which the last one of those waits that waits longest.
    late: u32,
}

impl Share {
    /// Returns how much of this kind is used.
    pub(crate) fn used(&self, kind: Kind) -> u64 {
        *self.used[kind as usize].borrow()
    }

    /// Follows how much of this kind is used; changes are reported when it becomes less.
    pub(crate) fn follow(&self, kind: Kind) -> watch::Receiver<u64> {
        self.used[kind as usize].subscribe()
    }

    /// Begins to count one more user of this kind, with nothing at first.
    pub(crate) fn begin(self: &Arc<Self>, kind: Kind) -> Used {
        Used {
            share: Arc::clone(self),
            kind,
            amount: 0,
        }
    }

    /// Takes one of this kind out of the quota.
    pub(crate) fn take(self: &Arc<Self>, kind: Kind, quota: &Quota) -> Result<Used, Status> {
        let mut used = self.begin(kind);
        used.take(1, quota)?;
        Ok(used)
    }
}

/// An amount of one kind, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Used {
    share: Arc<Share>,
    kind: Kind,
    amount: u64,
}

impl Used {
    /// Takes so much more out of the quota.
    pub(crate) fn take(&mut self, more: u64, quota: &Quota) -> Result<(), Status> {
        let most = self.kind.most(quota);
        let mut refused = None;
        self.share.used[self.kind as usize].send_if_modified(|all| {
            refused = most.filter(|most| all.saturating_add(more) > *most);
            if refused.is_none() {
                *all += more;
            }
            // No wake-up: tasks wait for a decrease.
            false
        });
        match refused {
            Some(most) => Err(self.kind.refusal(most)),
            None => {
                self.amount += more;
                Ok(())
            }
        }
    }

    /// Counts so much less.
    pub(crate) fn give_back(&mut self, less: u64) {
        self.amount -= less;
        self.share.used[self.kind as usize].send_modify(|all| *all -= less);
    }

    pub(crate) fn amount(&self) -> u64 {
        self.amount
    }
}

impl Drop for Used {
    fn drop(&mut self) {
        self.give_back(self.amount);
    }
}

/// All owners with usage.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shares {
    owners: Arc<Mutex<HashMap<String, Arc<Share>>>>,
    runs: RunWaits,
}

/// A slot among the streams, released when it is dropped.
#[derive(Debug)]
pub(crate) struct StreamPlace {
    _permit: OwnedSemaphorePermit,
    _of_owner: Used,
    _of_run: Option<RunWait>,
}

impl Shares {
    /// Takes a spawn out of the owner's quota: as many at once as it has for a second.
    pub(crate) fn spawn(&self, caller: &Caller) -> Result<(), Status> {
        self.spawn_at(caller, Instant::now())
    }

    fn spawn_at(&self, caller: &Caller, now: Instant) -> Result<(), Status> {
        let Some(most) = caller.quota.spawns_per_second.map(NonZeroU32::get) else {
            return Ok(());
        };
        let share = self.of(&caller.owner);
        let mut rates = share.rates.lock();
        let (spawns, wait) = rates.spawns.with_one(most, now);
        if !wait.is_zero() {
            return Err(status::too_many_of_owner(
                "spawns a second",
                most.into(),
                wait,
            ));
        }
        rates.spawns = spawns;
        Ok(())
    }

    /// Takes a refusal out of those that an owner gets at once; returns how long its answer waits, at most
    /// [`REFUSAL_PAUSE_MAX`].
    pub(crate) fn refusal(&self, owner: &str) -> Duration {
        self.refusal_at(owner, Instant::now())
    }

    fn refusal_at(&self, owner: &str, now: Instant) -> Duration {
        let share = self.of(owner);
        let mut rates = share.rates.lock();
        let (refusals, wait) = rates.refusals.with_one(REFUSALS_PER_SECOND, now);
        if wait <= REFUSAL_PAUSE_MAX {
            rates.refusals = refusals;
            return wait;
        }
        // A call that waits longest leaves no debt to later calls. Calls refused together would return together while
        // others wait: each waits for a different time, spread evenly by the golden ratio.
        rates.late = rates.late.wrapping_add(0x9E37_79B9);
        let part = f64::from(rates.late) / f64::from(u32::MAX);
        REFUSAL_PAUSE_MAX.mul_f64(1.0 - part / 2.0)
    }

    /// Takes a stream out of the owner's quota.
    pub(crate) fn stream(
        &self,
        caller: &Caller,
        permit: OwnedSemaphorePermit,
    ) -> Result<StreamPlace, Status> {
        let of_run = self.wait_of_run(caller)?;
        let share = self.of(&caller.owner);
        let of_owner = share.take(Kind::Streams, &caller.quota)?;
        if let Some(most) = Kind::AnswerBytes.most(&caller.quota)
            && share.used(Kind::AnswerBytes) >= most
        {
            return Err(Kind::AnswerBytes.refusal(most));
        }
        Ok(StreamPlace {
            _permit: permit,
            _of_owner: of_owner,
            _of_run: of_run,
        })
    }

    /// Takes a slot among the waiting calls of the caller's run; absent: the caller is in no run.
    pub(crate) fn wait_of_run(&self, caller: &Caller) -> Result<Option<RunWait>, Status> {
        self.runs.begin(caller)
    }

    /// Returns the usage of this owner.
    pub(crate) fn of(&self, owner: &str) -> Arc<Share> {
        let mut shares = self.owners.lock();
        if let Some(share) = shares.get(owner) {
            return Arc::clone(share);
        }
        if shares.len() >= OWNERS_KEPT {
            let now = Instant::now();
            shares.retain(|_, share| {
                let rates = *share.rates.lock();
                let is_ahead = rates.spawns.is_ahead(now) || rates.refusals.is_ahead(now);
                is_ahead || Arc::strong_count(share) > 1
            });
        }
        Arc::clone(shares.entry(owner.to_owned()).or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pb::Role;
    use std::num::NonZeroU32;
    use tokio::sync::Semaphore;
    use tonic_types::StatusExt;

    fn caller(owner: &str, quota: Quota) -> Caller {
        Caller {
            principal: "p".to_owned(),
            role: Role::Spawner,
            owner: owner.to_owned(),
            quota,
            ..Caller::default()
        }
    }

    #[test]
    fn spawns_above_the_rate_say_when_to_retry() {
        let quota = Quota {
            spawns_per_second: NonZeroU32::new(4),
            ..Quota::default()
        };
        let (shares, start) = (Shares::default(), Instant::now());
        let team = caller("team", quota);
        for _ in 0..4 {
            shares.spawn_at(&team, start).expect("within its second");
        }
        let refused = shares.spawn_at(&team, start).expect_err("one too many");
        let retry = refused.get_details_retry_info().expect("when to retry");
        let retry = retry.retry_delay.expect("after so long");
        assert_eq!(retry, Duration::from_millis(250));
        shares
            .spawn_at(&caller("other", quota), start)
            .expect("another owner's");
        shares
            .spawn_at(&team, start + retry)
            .expect("it has waited");
        shares
            .spawn_at(&team, start + retry)
            .expect_err("and has no more");
        let unbounded = caller("team", Quota::default());
        shares.spawn_at(&unbounded, start).expect("without a quota");
    }

    // promise: I-104
    #[test]
    fn refusals_above_the_rate_are_delayed() {
        let (shares, start) = (Shares::default(), Instant::now());
        let each = SECOND / REFUSALS_PER_SECOND;
        for _ in 0..REFUSALS_PER_SECOND {
            assert_eq!(shares.refusal_at("team", start), Duration::ZERO);
        }
        assert_eq!(shares.refusal_at("team", start), each);
        assert_eq!(shares.refusal_at("team", start), 2 * each);
        assert_eq!(shares.refusal_at("other", start), Duration::ZERO);
        let waits = (0..10 * REFUSALS_PER_SECOND).map(|_| shares.refusal_at("team", start));
        let mut waits: Vec<Duration> = waits.collect();
        waits.sort_unstable();
        assert!(waits.iter().all(|wait| *wait <= REFUSAL_PAUSE_MAX));
        // Calls that wait longest return one after the other.
        let pauses = waits.windows(2).map(|two| two[1].abs_diff(two[0]));
        assert!(pauses.max() <= Some(each), "{waits:?}");
        let together = waits.chunk_by(|one, next| next.abs_diff(*one) < REFUSAL_PAUSE_MAX / 2000);
        assert!(together.map(<[_]>::len).max() <= Some(3), "{waits:?}");
        let later = start + REFUSAL_PAUSE_MAX + SECOND;
        assert_eq!(shares.refusal_at("team", later), Duration::ZERO);
    }

    #[test]
    fn streams_count_until_they_are_dropped() {
        let quota = Quota {
            streams: NonZeroU32::new(1),
            ..Quota::default()
        };
        let all = Arc::new(Semaphore::new(8));
        let permit = || all.clone().try_acquire_owned().expect("room for all");
        let (shares, team) = (Shares::default(), caller("team", quota));
        let first = shares.stream(&team, permit()).expect("the first");
        shares.stream(&team, permit()).expect_err("one too many");
        shares
            .stream(&caller("other", quota), permit())
            .expect("another owner's");
        drop(first);
        shares.stream(&team, permit()).expect("the first has ended");
    }

    #[test]
    fn idle_owners_are_forgotten() {
        let shares = Shares::default();
        let all = Arc::new(Semaphore::new(1));
        for n in 0..2 * OWNERS_KEPT {
            let permit = all.clone().try_acquire_owned().expect("it was left");
            let caller = caller(&n.to_string(), Quota::default());
            drop(shares.stream(&caller, permit).expect("no quota"));
        }
        assert!(shares.owners.lock().len() <= OWNERS_KEPT);
    }
}
