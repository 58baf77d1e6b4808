//! Quota usage of owners: spawns per second, open streams, and their bytes in flight; and the rate of their refusals.
//! Live runs and their output are counted where they are stored.

use crate::{
    access::Caller,
    in_flight::InFlight,
    limits::{REFUSAL_PAUSE_MAX, REFUSALS_PER_SECOND},
    run_waits::{RunWait, RunWaits},
    status,
};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::OwnedSemaphorePermit;
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

/// Usage of one owner.
#[derive(Debug, Default)]
struct Share {
    spawns: Paid,
    refusals: Paid,
    streams: u32,
    in_flight: InFlight,
}

/// All owners with usage.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shares {
    owners: Arc<Mutex<HashMap<String, Share>>>,
    runs: RunWaits,
}

/// A slot among the streams, released when it is dropped.
#[derive(Debug)]
pub(crate) struct StreamPlace {
    _permit: OwnedSemaphorePermit,
    _of_owner: OfOwner,
    _of_run: Option<RunWait>,
}

/// One stream of an owner.
#[derive(Debug)]
struct OfOwner {
    shares: Shares,
    owner: String,
}

impl Drop for OfOwner {
    fn drop(&mut self) {
        if let Some(share) = self.shares.lock().get_mut(&self.owner) {
            share.streams = share.streams.saturating_sub(1);
        }
    }
}

impl Shares {
    /// Takes a spawn out of the owner's quota: as many at once as it has for a second.
    pub(crate) fn spawn(&self, caller: &Caller) -> Result<(), Status> {
        self.spawn_at(caller, Instant::now())
    }

    fn spawn_at(&self, caller: &Caller, now: Instant) -> Result<(), Status> {
        let Some(most) = caller.quota.spawns_per_second else {
            return Ok(());
        };
        let mut shares = self.of(&caller.owner);
        let share = shares.entry(caller.owner.clone()).or_default();
        let (spawns, wait) = share.spawns.with_one(most.get(), now);
        if !wait.is_zero() {
            return Err(status::too_many_of_owner(
                "spawns a second",
                most.get().into(),
                wait,
            ));
        }
        share.spawns = spawns;
        Ok(())
    }

    /// Takes a refusal out of those that an owner gets at once; returns how long its answer waits, at most
    /// [`REFUSAL_PAUSE_MAX`].
    pub(crate) fn refusal(&self, owner: &str) -> Duration {
        self.refusal_at(owner, Instant::now())
    }

    fn refusal_at(&self, owner: &str, now: Instant) -> Duration {
        let mut shares = self.of(owner);
        let share = shares.entry(owner.to_owned()).or_default();
        let (refusals, wait) = share.refusals.with_one(REFUSALS_PER_SECOND, now);
        // One that waits longest leaves no debt to those that come after it.
        if wait <= REFUSAL_PAUSE_MAX {
            share.refusals = refusals;
        }
        wait.min(REFUSAL_PAUSE_MAX)
    }

    /// Takes a stream out of the owner's quota.
    pub(crate) fn stream(
        &self,
        caller: &Caller,
        permit: OwnedSemaphorePermit,
    ) -> Result<StreamPlace, Status> {
        let of_run = self.wait_of_run(caller)?;
        let mut shares = self.of(&caller.owner);
        let share = shares.entry(caller.owner.clone()).or_default();
        if let Some(most) = caller.quota.streams
            && share.streams >= most.get()
        {
            return Err(status::too_many_of_owner(
                "open streams",
                most.get().into(),
                SECOND,
            ));
        }
        if let Some(most) = caller.quota.stream_bytes
            && share.in_flight.bytes() >= most.get()
        {
            return Err(status::too_many_of_owner(
                "bytes in flight",
                most.get(),
                SECOND,
            ));
        }
        share.streams += 1;
        Ok(StreamPlace {
            _permit: permit,
            _of_owner: OfOwner {
                shares: self.clone(),
                owner: caller.owner.clone(),
            },
            _of_run: of_run,
        })
    }

    /// Returns the number of bytes in flight of this owner.
    pub(crate) fn in_flight(&self, owner: &str) -> InFlight {
        let mut shares = self.of(owner);
        shares
            .entry(owner.to_owned())
            .or_default()
            .in_flight
            .clone()
    }

    /// Takes a slot among the waiting calls of the caller's run; absent: the caller is in no run.
    pub(crate) fn wait_of_run(&self, caller: &Caller) -> Result<Option<RunWait>, Status> {
        self.runs.begin(caller)
    }

    fn of(&self, owner: &str) -> MutexGuard<'_, HashMap<String, Share>> {
        let mut shares = self.lock();
        if shares.len() >= OWNERS_KEPT && !shares.contains_key(owner) {
            let now = Instant::now();
            shares.retain(|_, share| {
                share.streams > 0
                    || share.in_flight.is_in_use()
                    || share.spawns.is_ahead(now)
                    || share.refusals.is_ahead(now)
            });
        }
        shares
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Share>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{access::Quota, pb::Role};
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

    #[test]
    fn refusals_above_the_rate_wait() {
        let (shares, start) = (Shares::default(), Instant::now());
        let each = SECOND / REFUSALS_PER_SECOND;
        for _ in 0..REFUSALS_PER_SECOND {
            assert_eq!(shares.refusal_at("team", start), Duration::ZERO);
        }
        assert_eq!(shares.refusal_at("team", start), each);
        assert_eq!(shares.refusal_at("team", start), 2 * each);
        assert_eq!(shares.refusal_at("other", start), Duration::ZERO);
        for _ in 0..10 * REFUSALS_PER_SECOND {
            assert!(shares.refusal_at("team", start) <= REFUSAL_PAUSE_MAX);
        }
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
    fn owners_that_use_nothing_are_forgotten() {
        let shares = Shares::default();
        let all = Arc::new(Semaphore::new(1));
        for n in 0..2 * OWNERS_KEPT {
            let permit = all.clone().try_acquire_owned().expect("it was left");
            let caller = caller(&n.to_string(), Quota::default());
            drop(shares.stream(&caller, permit).expect("no quota"));
        }
        assert!(shares.lock().len() <= OWNERS_KEPT);
    }
}
