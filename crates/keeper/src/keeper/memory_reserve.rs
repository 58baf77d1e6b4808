//! The memory reserve: ends the largest run before a memory limit above Kennel is reached, at which the kernel may end
//! Kennel with every run (`memory.oom.group`, which Kubernetes sets on containers).
//!
//! Decides when and how; the run's stop goes the way of every stop. A limit that is set later counts from then on.

use kennel_lifecycle::{MemoryShortage, RunId};
use kennel_linux::memory_room::{self, MemoryRoom};
use std::path::PathBuf;

/// Time between two looks.
const LOOK_EVERY_MS: u64 = 200;
/// The same while less than twice the reserve is left.
const LOOK_CLOSELY_EVERY_MS: u64 = 20;
/// Time for a killed run to give its memory back before another one is ended.
const SETTLE_MS: u64 = 2_000;

/// The reserve, and the run that was ended for it.
#[derive(Debug)]
pub(super) struct MemoryReserve {
    bytes: u64,
    groups: Vec<PathBuf>,
    look_at: u64,
    ended: Option<EndedRun>,
}

#[derive(Clone, Copy, Debug)]
struct EndedRun {
    id: RunId,
    /// Time of its SIGKILL; absent: it has its grace.
    killed_at: Option<u64>,
}

/// Action for which memory is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Demand {
    /// End the largest run; at once: less than half of the reserve is left.
    Largest {
        /// The shortage.
        shortage: MemoryShortage,
        /// Whether it gets no grace.
        at_once: bool,
    },
    /// The run that has its grace gets no more of it.
    AtOnce(RunId),
}

impl MemoryReserve {
    /// Makes a reserve of so many bytes below the limits of these groups, the nearest first.
    pub(super) fn new(bytes: u64, groups: Vec<PathBuf>) -> Self {
        Self {
            bytes,
            groups,
            look_at: 0,
            ended: None,
        }
    }

    /// Whether the memory of any of the groups is counted at all.
    pub(super) fn can_be_kept(&self) -> bool {
        self.groups
            .iter()
            .any(|group| memory_room::is_counted(group))
    }

    /// Whether any of the groups has a limit at present.
    pub(super) fn has_limit(&self) -> bool {
        memory_room::tightest(&self.groups, 0).is_some()
    }

    /// Returns the lowest limit at present of which this reserve is more than half, in bytes: nearly every run would be
    /// ended for it.
    pub(super) fn unfit_limit(&self) -> Option<u64> {
        let limit = memory_room::lowest_limit(&self.groups)?;
        (self.bytes > limit / 2).then_some(limit)
    }

    /// Returns when to look next.
    pub(super) fn look_at(&self) -> u64 {
        self.look_at
    }

    /// Looks at the limits, and returns what is to be done. `is_ending` says whether a run is being stopped and has not
    /// ended yet: under the id of one that has ended its next attempt may run.
    pub(super) fn look(&mut self, now: u64, is_ending: impl Fn(RunId) -> bool) -> Option<Demand> {
        let near = self.bytes.saturating_mul(2);
        let room = memory_room::tightest(&self.groups, near);
        let is_near = room.is_some_and(|room| room.left() < near);
        self.look_at = now
            + if is_near {
                LOOK_CLOSELY_EVERY_MS
            } else {
                LOOK_EVERY_MS
            };
        self.demand(room?, now, is_ending)
    }

    fn demand(
        &mut self,
        room: MemoryRoom,
        now: u64,
        is_ending: impl Fn(RunId) -> bool,
    ) -> Option<Demand> {
        self.ended = self.ended.filter(|ended| is_ending(ended.id));
        // A memory limit set later may be too low for the whole reserve.
        let reserve = self.bytes.min(room.limit / 2);
        if room.left() >= reserve {
            return None;
        }
        let at_once = room.left() < reserve / 2;
        match &mut self.ended {
            Some(EndedRun { id, killed_at }) if killed_at.is_none() => {
                *killed_at = at_once.then_some(now);
                at_once.then_some(Demand::AtOnce(*id))
            }
            Some(EndedRun {
                killed_at: Some(at),
                ..
            }) if now < *at + SETTLE_MS => None,
            _ => Some(Demand::Largest {
                shortage: MemoryShortage {
                    limit: room.limit,
                    used: room.used,
                    reserve,
                },
                at_once,
            }),
        }
    }

    /// Notes the run that is ended as the largest, or that was being stopped already.
    pub(super) fn ends(&mut self, id: RunId, at_once: bool, now: u64) {
        self.ended = Some(EndedRun {
            id,
            killed_at: at_once.then_some(now),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESERVE: u64 = 100;

    fn left(left: u64) -> MemoryRoom {
        MemoryRoom {
            limit: 1000,
            used: 1000 - left,
        }
    }

    fn largest(used: u64, at_once: bool) -> Demand {
        Demand::Largest {
            shortage: MemoryShortage {
                limit: 1000,
                used,
                reserve: RESERVE,
            },
            at_once,
        }
    }

    // promise: RW-121a
    #[test]
    fn memory_reserve_ends_one_run_at_a_time() {
        let mut reserve = MemoryReserve::new(RESERVE, Vec::new());
        let (first, second) = (RunId::from_u128(1), RunId::from_u128(2));
        let is_ending = |_: RunId| true;
        assert_eq!(reserve.demand(left(100), 0, is_ending), None);
        assert_eq!(
            reserve.demand(left(99), 1, is_ending),
            Some(largest(901, false))
        );
        reserve.ends(first, false, 1);
        // The run keeps its grace while half of the reserve is left.
        assert_eq!(reserve.demand(left(50), 60_000, is_ending), None);
        let at_once = reserve.demand(left(49), 60_001, is_ending);
        assert_eq!(at_once, Some(Demand::AtOnce(first)));
        // A run's memory is freed some time after SIGKILL.
        assert_eq!(reserve.demand(left(10), 60_002, is_ending), None);
        let settled = 60_001 + SETTLE_MS;
        assert_eq!(
            reserve.demand(left(49), settled, is_ending),
            Some(largest(951, true))
        );
        reserve.ends(second, true, settled);
        assert_eq!(reserve.demand(left(49), settled + 1, is_ending), None);
        // The second run ended without freeing enough memory.
        let ended = reserve.demand(left(60), settled + 2, |id| id != second);
        assert_eq!(ended, Some(largest(940, false)));
    }

    // promise: RW-121a
    #[test]
    fn memory_reserve_may_end_the_next_attempt() {
        let mut reserve = MemoryReserve::new(RESERVE, Vec::new());
        let run = RunId::from_u128(1);
        for at_once in [false, true] {
            reserve.ends(run, at_once, 0);
            // The run's next attempt has the same id, and is not stopping.
            let next = reserve.demand(left(99), 1, |_| false);
            assert_eq!(next, Some(largest(901, false)));
        }
    }

    // promise: RW-122
    #[test]
    fn memory_reserve_is_at_most_half_the_limit() {
        let mut reserve = MemoryReserve::new(RESERVE, Vec::new());
        let room = |used| MemoryRoom { limit: 80, used };
        assert_eq!(reserve.demand(room(40), 0, |_| false), None);
        let shortage = MemoryShortage {
            limit: 80,
            used: 41,
            reserve: 40,
        };
        let at_once = false;
        assert_eq!(
            reserve.demand(room(41), 1, |_| false),
            Some(Demand::Largest { shortage, at_once })
        );
    }

    // promise: RW-122
    #[test]
    fn memory_reserve_above_half_of_limit_is_refused() {
        let dirs = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
        let groups = dirs.iter().map(|dir| dir.path().to_owned()).collect();
        let reserve = MemoryReserve::new(RESERVE, groups);
        for (near, far, unfit) in [
            ("max", "max", None),
            ("max", "200\n", None),
            ("max", "199\n", Some(199)),
            ("300\n", "100\n", Some(100)),
        ] {
            for (dir, limit) in dirs.iter().zip([near, far]) {
                std::fs::write(dir.path().join("memory.max"), limit).expect("a file");
            }
            assert_eq!(reserve.unfit_limit(), unfit, "{near} {far}");
        }
    }

    // promise: RW-121
    #[test]
    fn memory_reserve_without_limit_ends_no_run() {
        let dir = tempfile::tempdir().expect("a directory");
        let group = dir.path().to_owned();
        let mut reserve = MemoryReserve::new(RESERVE, vec![group.clone()]);
        assert!(!reserve.can_be_kept());
        let write = |file: &str, text: &str| std::fs::write(group.join(file), text);
        for (file, text) in [
            ("memory.max", "max"),
            ("memory.current", "950"),
            ("memory.stat", "anon 950\n"),
        ] {
            write(file, text).expect("a file");
        }
        assert!(reserve.can_be_kept() && !reserve.has_limit());
        assert_eq!(reserve.look(0, |_| true), None);
        assert_eq!(reserve.look_at(), LOOK_EVERY_MS);
        // Set the limit later, as `systemctl set-property` does.
        write("memory.max", "1000").expect("a file");
        assert_eq!(reserve.look(200, |_| true), Some(largest(950, false)));
        assert_eq!(reserve.look_at(), 200 + LOOK_CLOSELY_EVERY_MS);
        std::fs::remove_dir_all(&group).expect("it goes");
        assert_eq!(reserve.look(300, |_| true), None);
    }
}
