//! Memory limits of control groups that several runs share: how much is left before the kernel kills.

use crate::{cgroup, memory_events::count};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Memory that the kernel can take back before it kills: pages of files, and caches of the kernel itself.
const RECLAIMABLE: [&str; 3] = ["active_file", "inactive_file", "slab_reclaimable"];

/// A memory limit, and what is used of it. Sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRoom {
    /// The limit.
    pub limit: u64,
    /// Memory in use that the kernel cannot reclaim; swap is not counted.
    pub used: u64,
}

impl MemoryRoom {
    /// Returns what is left.
    pub fn left(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }
}

/// Returns a group and all groups above it that this process sees, the nearest first.
pub fn and_above(group: &Path) -> Vec<PathBuf> {
    let top = cgroup::mount_point().unwrap_or(group);
    let groups = group.ancestors().take_while(|dir| dir.starts_with(top));
    groups.map(Path::to_owned).collect()
}

/// Whether the memory of a group is counted, so that it can have a limit.
pub fn is_counted(group: &Path) -> bool {
    group.join("memory.max").exists()
}

/// Returns the limit of which least is left; `None`: no group has one. More than `enough` is not counted exactly.
pub fn tightest(groups: &[PathBuf], enough: u64) -> Option<MemoryRoom> {
    let rooms = groups.iter().filter_map(|group| room(group, enough));
    rooms.min_by_key(MemoryRoom::left)
}

/// Returns the lowest limit of these groups, in bytes; `None`: no group has one.
pub fn lowest_limit(groups: &[PathBuf]) -> Option<u64> {
    let limits = groups.iter();
    limits.filter_map(|group| number(group, "memory.max")).min()
}

fn room(group: &Path, enough: u64) -> Option<MemoryRoom> {
    // "max" means no limit.
    let limit = number(group, "memory.max")?;
    let current = number(group, "memory.current")?;
    // Reading memory.stat costs more: the kernel sums it over all processors.
    let is_enough = limit.saturating_sub(current) >= enough;
    let used = if is_enough { current } else { in_use(group)? };
    Some(MemoryRoom { limit, used })
}

/// Returns the memory of a group that the kernel cannot reclaim; `None`: it is not counted.
pub fn in_use(group: &Path) -> Option<u64> {
    let current = number(group, "memory.current")?;
    let stat = fs::read_to_string(group.join("memory.stat")).ok()?;
    let reclaimable = RECLAIMABLE.iter().filter_map(|kind| count(&stat, kind));
    Some(current.saturating_sub(reclaimable.fold(0, u64::saturating_add)))
}

fn number(group: &Path, file: &str) -> Option<u64> {
    let text = fs::read_to_string(group.join(file)).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(dir: &Path, [max, current, stat]: [&str; 3]) -> PathBuf {
        for (file, text) in [
            ("memory.max", max),
            ("memory.current", current),
            ("memory.stat", stat),
        ] {
            fs::write(dir.join(file), text).expect("a file");
        }
        dir.to_owned()
    }

    // promise: RW-121a
    #[test]
    fn tightest_limit_counts_without_reclaimable_memory() {
        let [near, far] = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
        let stat = "anon 500\nfile 300\nactive_file 100\ninactive_file 150\nslab_reclaimable 50\nslab 60\n";
        let groups = [
            group(near.path(), ["max\n", "900\n", stat]),
            group(far.path(), ["1000\n", "900\n", stat]),
        ];
        let room = tightest(&groups, 500).expect("one has a limit");
        assert_eq!((room.limit, room.used, room.left()), (1000, 600, 400));
        // Enough memory is left, so memory.stat is not read.
        fs::remove_file(far.path().join("memory.stat")).expect("it goes");
        assert_eq!(tightest(&groups, 100).map(|room| room.used), Some(900));
        fs::write(near.path().join("memory.max"), "910\n").expect("a file");
        assert_eq!(tightest(&groups, 10).map(|room| room.left()), Some(10));
    }

    // promise: RW-121
    #[test]
    fn memory_room_is_unknown_without_limit() {
        let dir = tempfile::tempdir().expect("a directory");
        let unlimited = group(dir.path(), ["max\n", "900\n", ""]);
        assert!(is_counted(&unlimited));
        assert_eq!(tightest(&[unlimited], 1), None);
        let gone = dir.path().join("gone");
        assert!(!is_counted(&gone));
        assert_eq!(
            (tightest(std::slice::from_ref(&gone), 1), in_use(&gone)),
            (None, None)
        );
    }
}
