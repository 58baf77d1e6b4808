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

    /// Returns when to look next.
    pub(super) fn look_at(&self) -> u64 {
        self.look_at
    }

    /// Looks at the limits, and returns what is to be done. `lives` says whether a run has not ended yet.
    pub(super) fn look(&mut self, now: u64, lives: impl Fn(RunId) -> bool) -> Option<Demand> {
        let near = self.bytes.saturating_mul(2);
        let room = memory_room::tightest(&self.groups, near);
        let is_near = room.is_some_and(|room| room.left() < near);
        self.look_at = now
            + if is_near {
                LOOK_CLOSELY_EVERY_MS
            } else {
                LOOK_EVERY_MS
            };
        self.demand(room?, now, lives)
    }

    fn demand(
        &mut self,
        room: MemoryRoom,
        now: u64,
        lives: impl Fn(RunId) -> bool,
    ) -> Option<Demand> {
        self.ended = self.ended.filter(|ended| lives(ended.id));
        if room.left() >= self.bytes {
            return None;
        }
        let at_once = room.left() < self.bytes / 2;
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
                    reserve: self.bytes,
                },
                at_once,
            }),
        }
    }

    /// Notes the run that is ended as the largest.
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

    fn largest(used: u64, at_once: bool) -> Option<Demand> {
        Some(Demand::Largest {
            shortage: MemoryShortage {
                limit: 1000,
                used,
                reserve: RESERVE,
            },
            at_once,
        })
    }

    #[test]
    fn one_run_at_a_time_is_ended_with_grace() {
        let mut reserve = MemoryReserve::new(RESERVE, Vec::new());
        let (first, second) = (RunId::from_u128(1), RunId::from_u128(2));
        let lives = |_: RunId| true;
        assert_eq!(reserve.demand(left(100), 0, lives), None);
        assert_eq!(reserve.demand(left(99), 1, lives), largest(901, false));
        reserve.ends(first, false, 1);
        // It has its grace for as long as half of the reserve is left.
        assert_eq!(reserve.demand(left(50), 60_000, lives), None);
        let at_once = reserve.demand(left(49), 60_001, lives);
        assert_eq!(at_once, Some(Demand::AtOnce(first)));
        // Its memory comes back some time after its SIGKILL.
        assert_eq!(reserve.demand(left(10), 60_002, lives), None);
        let settled = 60_001 + SETTLE_MS;
        assert_eq!(reserve.demand(left(49), settled, lives), largest(951, true));
        reserve.ends(second, true, settled);
        assert_eq!(reserve.demand(left(49), settled + 1, lives), None);
        // It has ended, and that was not enough.
        let ended = reserve.demand(left(60), settled + 2, |id| id != second);
        assert_eq!(ended, largest(940, false));
    }

    #[test]
    fn reserve_without_any_limit_demands_nothing() {
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
        // Set later, as `systemctl set-property` does.
        write("memory.max", "1000").expect("a file");
        assert_eq!(reserve.look(200, |_| true), largest(950, false));
        assert_eq!(reserve.look_at(), 200 + LOOK_CLOSELY_EVERY_MS);
        std::fs::remove_dir_all(&group).expect("it goes");
        assert_eq!(reserve.look(300, |_| true), None);
    }
}
