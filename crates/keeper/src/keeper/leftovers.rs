//! Control groups of ended runs whose directories could not be removed yet.

use kennel_lifecycle::CgroupIdentity;
use kennel_linux::cgroup;

/// Pause between the first two attempts; then twice as long after each in which none was removed.
const TRY_AGAIN_MS: u64 = 20;
/// The pause doubles so many times at most.
const TRIES_SLOWER_MAX: u32 = 6;

/// The directories, and when the next attempt is due.
#[derive(Debug, Default)]
pub(super) struct LeftoverGroups {
    groups: Vec<CgroupIdentity>,
    due: u64,
    /// Attempts in a row that removed none.
    tried: u32,
}

impl LeftoverGroups {
    /// Adds directories that could not be removed just now, or cannot be removed yet.
    pub(super) fn add(&mut self, groups: impl IntoIterator<Item = CgroupIdentity>, now: u64) {
        let soon = now + TRY_AGAIN_MS;
        for group in groups {
            self.due = self.wake_at().map_or(soon, |due| due.min(soon));
            self.tried = 0;
            self.groups.push(group);
        }
    }

    /// Time of the next call of [`Self::step`].
    pub(super) fn wake_at(&self) -> Option<u64> {
        (!self.groups.is_empty()).then_some(self.due)
    }

    /// Tries to remove them, where an attempt is due.
    pub(super) fn step(&mut self, now: u64) {
        if self.groups.is_empty() || now < self.due {
            return;
        }
        let before = self.groups.len();
        self.remove();
        let none_went = self.groups.len() == before;
        self.tried = if none_went { self.tried + 1 } else { 0 };
        self.due = now + (TRY_AGAIN_MS << self.tried.min(TRIES_SLOWER_MAX));
    }

    /// Tries to remove them now; whether all are gone.
    pub(super) fn remove(&mut self) -> bool {
        self.groups.retain(|group| !cgroup::remove(group));
        self.groups.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn busy_directory_is_retried_with_growing_delay() {
        let dir = tempfile::tempdir().expect("a directory");
        let group = |name: &str| {
            let path = dir.path().join(name);
            fs::create_dir(&path).expect("a directory");
            // The directory cannot be removed as long as this file is in it.
            fs::write(path.join("file"), "").expect("a file");
            (cgroup::identify(&path).expect("it is there"), path)
        };
        let (first, path) = group("first");
        let mut leftovers = LeftoverGroups::default();
        leftovers.add([first], 1_000);
        let mut waits = Vec::new();
        let mut now = 1_000;
        for _ in 0..9 {
            let due = leftovers.wake_at().expect("it is there");
            waits.push(due - now);
            now = due;
            leftovers.step(now);
        }
        assert_eq!(waits, [20, 40, 80, 160, 320, 640, 1280, 1280, 1280]);

        // The directory could be removed now, but the next attempt waits for its time.
        fs::remove_file(path.join("file")).expect("it goes");
        leftovers.step(now + 1_279);
        assert!(path.exists());
        // Adding another directory brings the next attempt for both forward.
        let (second, other) = group("second");
        leftovers.add([second], now + 100);
        leftovers.step(now + 120);
        assert!(!path.exists() && other.exists());
        fs::remove_file(other.join("file")).expect("it goes");
        assert!(leftovers.remove());
        assert_eq!(leftovers.wake_at(), None);
    }
}
