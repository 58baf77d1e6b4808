//! Processes in /proc. Read only; a process that exits during the read does not exist.

use std::{fs, path::Path};

/// A process as /proc shows it at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Proc {
    /// Process id.
    pub pid: i32,
    /// Process id of its parent.
    pub ppid: i32,
    /// Process group.
    pub pgid: i32,
    /// Session.
    pub sid: i32,
    /// State letter.
    pub state: char,
    /// Start time in ticks since boot: with the number, an identity.
    pub start_ticks: u64,
    /// Its name.
    pub comm: String,
}

impl Proc {
    /// Returns the process with this number, if there is one.
    #[must_use]
    pub fn read(pid: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Self::parse(&stat)
    }

    /// Parses the fields after the last parenthesis: a name may contain anything.
    fn parse(stat: &str) -> Option<Self> {
        let (pid, rest) = stat.split_once(" (")?;
        let (comm, rest) = rest.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split(' ').collect();
        Some(Self {
            pid: pid.parse().ok()?,
            comm: comm.to_owned(),
            state: fields.first()?.chars().next()?,
            ppid: fields.get(1)?.parse().ok()?,
            pgid: fields.get(2)?.parse().ok()?,
            sid: fields.get(3)?.parse().ok()?,
            start_ticks: fields.get(19)?.parse().ok()?,
        })
    }

    /// Whether the keys of its terminal are its own: its process group is the one in the foreground.
    #[must_use]
    pub fn is_in_foreground(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        let after_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        after_name.split(' ').nth(5) == Some(&self.pgid.to_string())
    }

    /// Whether it is dead and only waits to be reaped.
    #[must_use]
    pub fn is_zombie(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }

    /// Whether a thread of it runs: the main one may have exited before.
    #[must_use]
    pub fn has_living_thread(&self) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid));
        threads.into_iter().flatten().flatten().any(|thread| {
            fs::read_to_string(thread.path().join("stat"))
                .ok()
                .and_then(|stat| Self::parse(&stat))
                .is_some_and(|thread| !thread.is_zombie())
        })
    }

    /// Whether this very process (not a later one of the same number) is still there.
    #[must_use]
    pub fn is_still_there(&self) -> bool {
        Self::read(self.pid).is_some_and(|now| now.start_ticks == self.start_ticks)
    }

    /// Whether it is still there and not only a zombie. A main thread that has exited may be one while others have not:
    /// they still hold its open files.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        Self::read(self.pid).is_some_and(|now| {
            now.start_ticks == self.start_ticks && (!now.is_zombie() || now.has_living_thread())
        })
    }

    /// Returns its arguments; empty for zombies and kernel threads.
    #[must_use]
    pub fn cmdline(&self) -> Vec<String> {
        let bytes = fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        split_at_nul(&bytes)
    }

    /// Returns the value of a variable of its environment, where that can be read.
    #[must_use]
    pub fn env(&self, name: &str) -> Option<String> {
        let bytes = fs::read(format!("/proc/{}/environ", self.pid)).ok()?;
        split_at_nul(&bytes).into_iter().find_map(|entry| {
            entry
                .split_once('=')
                .filter(|(key, _)| *key == name)
                .map(|(_, value)| value.to_owned())
        })
    }

    /// Returns its cgroup v2 path, such as `/user.slice/...`.
    #[must_use]
    pub fn cgroup(&self) -> Option<String> {
        let text = fs::read_to_string(format!("/proc/{}/cgroup", self.pid)).ok()?;
        text.lines()
            .find_map(|line| line.strip_prefix("0::"))
            .map(str::to_owned)
    }
}

fn split_at_nul(bytes: &[u8]) -> Vec<String> {
    bytes
        .split(|byte| *byte == 0)
        .filter(|part| !part.is_empty())
        .map(|part| String::from_utf8_lossy(part).into_owned())
        .collect()
}

/// Returns every visible process.
#[must_use]
pub fn all() -> Vec<Proc> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(Proc::read)
        .collect()
}

/// Returns everything below `root` in this snapshot, `root` itself excluded.
#[must_use]
pub fn descendants(all: &[Proc], root: i32) -> Vec<Proc> {
    let mut found: Vec<Proc> = Vec::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        for proc in all.iter().filter(|proc| proc.ppid == parent) {
            if !found.contains(proc) {
                parents.push(proc.pid);
                found.push(proc.clone());
            }
        }
    }
    found
}

/// Returns the bytes of a memory figure of `/proc/<pid>/smaps_rollup`, such as `Pss`.
#[must_use]
pub fn memory_bytes(pid: i32, figure: &str) -> Option<u64> {
    kib_line(Path::new(&format!("/proc/{pid}/smaps_rollup")), figure)
}

/// Returns the bytes of a line of `/proc/meminfo`, such as `Slab`.
#[must_use]
pub fn meminfo_bytes(figure: &str) -> Option<u64> {
    kib_line(Path::new("/proc/meminfo"), figure)
}

fn kib_line(path: &Path, figure: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(figure)?.strip_prefix(':'))?;
    let kib: u64 = value.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kib * 1024)
}

/// Returns user and system time that a process has used, in clock ticks.
#[must_use]
pub fn cpu_ticks(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    let user: u64 = fields.get(11)?.parse().ok()?;
    let system: u64 = fields.get(12)?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parentheses_in_process_name_are_parsed() {
        let stat = "7 (a) S 1) S 3 4 5 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 99 0 0";
        let proc = Proc::parse(stat).expect("it parses");
        assert_eq!(
            (proc.ppid, proc.pgid, proc.sid, proc.start_ticks),
            (3, 4, 5, 99)
        );
        assert_eq!(proc.comm, "a) S 1");
    }

    #[test]
    fn procfs_lists_the_test_process() {
        let own = i32::try_from(std::process::id()).expect("pids are small");
        assert!(all().iter().any(|proc| proc.pid == own && proc.is_alive()));
    }
}
