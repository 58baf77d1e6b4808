//! Statistics of the memory controller at the end of a control group.

use crate::cgroup;
use kennel_lifecycle::{MemoryKills, Usage};
use std::os::fd::OwnedFd;

/// Returns how many processes in an opened group and below it the kernel has killed for lack of memory, by its usage;
/// `None`: none, or without the controller there is no count.
pub fn kills(dir: &OwnedFd, used: &Usage) -> Option<MemoryKills> {
    let kills = used.memory_kills.filter(|kills| *kills > 0)?;
    let limit = cgroup::read_in(dir, "memory.max").ok().flatten();
    Some(MemoryKills {
        kills,
        // "max" means no limit.
        memory_max: limit.and_then(|text| text.trim().parse().ok()),
    })
}

/// Returns the count of one kind of event; the file has one line for each. Later kernels add kinds, and earlier ones
/// have fewer.
pub(crate) fn count(events: &str, kind: &str) -> Option<u64> {
    let mut lines = events.lines().filter_map(|line| line.split_once(' '));
    let (_, count) = lines.find(|(key, _)| *key == kind)?;
    count.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usage::{self, Counting};
    use kennel_lifecycle::CgroupIdentity;
    use std::{fs, os::unix::fs::MetadataExt, path::Path};

    /// As read after one process met a limit.
    const KILLED: &str = "low 0\nhigh 0\nmax 35\noom 1\noom_kill 1\noom_group_kill 0\n";

    /// As read with `memory.oom.group`, where two processes were killed as one, on a kernel with one more kind.
    const KILLED_AS_ONE: &str =
        "low 0\nhigh 0\nmax 37\noom 1\noom_kill 2\noom_group_kill 1\nsock_throttled 0\n";

    fn group(dir: &Path, files: &[(&str, &str)]) -> CgroupIdentity {
        for (name, text) in files {
            fs::write(dir.join(name), text).expect("a file");
        }
        CgroupIdentity {
            path: dir.to_str().expect("UTF-8").to_owned(),
            inode: fs::metadata(dir).expect("it is there").ino(),
        }
    }

    fn read_of(group: &CgroupIdentity) -> Option<MemoryKills> {
        let dir = cgroup::open(group).ok()??;
        kills(&dir, &usage::counted(&dir, Counting::PERHAPS)?)
    }

    fn read(files: &[(&str, &str)]) -> Option<MemoryKills> {
        let dir = tempfile::tempdir().expect("a directory");
        read_of(&group(dir.path(), files))
    }

    // promise: Q-8
    #[test]
    fn memory_kills_are_reported_with_the_limit() {
        let killed = |kills, memory_max| Some(MemoryKills { kills, memory_max });
        let limit = ("memory.max", "536870912\n");
        let limited = read(&[("memory.events", KILLED), limit]);
        assert_eq!(limited, killed(1, Some(512 << 20)));
        let unlimited = read(&[("memory.events", KILLED_AS_ONE), ("memory.max", "max\n")]);
        assert_eq!(unlimited, killed(2, None));
        assert_eq!(read(&[("memory.events", KILLED)]), killed(1, None));
    }

    // promise: Q-8b
    #[test]
    fn no_memory_kills_are_reported_without_counter() {
        let limit = ("memory.max", "402653184\n");
        let met = "low 0\nhigh 0\nmax 13693\noom 0\noom_kill 0\noom_group_kill 0\n";
        assert_eq!(read(&[("memory.events", met), limit]), None);
        assert_eq!(read(&[limit]), None, "no memory controller");
        let dir = tempfile::tempdir().expect("a directory");
        let mut other = group(dir.path(), &[("memory.events", KILLED)]);
        other.inode += 1;
        assert_eq!(read_of(&other), None, "the directory of another");
    }

    // promise: Q-8
    #[test]
    fn memory_event_keys_are_found_in_any_order() {
        let count = |events| count(events, "oom_kill");
        assert_eq!(count("low 0\nhigh 0\nmax 0\noom 0\noom_kill 7\n"), Some(7));
        assert_eq!(count(KILLED_AS_ONE), Some(2));
        assert_eq!(count("oom_group_kill 5\noom 4\noom_kill 3"), Some(3));
        let nothing = [
            "",
            "oom 4",
            "oom_kill",
            "oom_kill many",
            "oom_kill -1",
            "xoom_kill 3",
        ];
        for events in nothing {
            assert_eq!(count(events), None, "{events:?}");
        }
    }
}
