//! What /proc says of processes: parents, states, children.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
};

/// Longest chain of parents that is followed.
pub(crate) const ANCESTORS_MAX: usize = 4096;

/// The fields of /proc/pid/stat that are used here (`proc_pid_stat(5)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) state: u8,
    pub(crate) ppid: i32,
    pub(crate) pgid: i32,
    pub(crate) sid: i32,
    /// Foreground group of its controlling terminal; 0 or less: it has no terminal, or one without such a group.
    pub(crate) tpgid: i32,
    pub(crate) start_ticks: u64,
}

impl Stat {
    /// Whether it has ended and waits to be reaped, or is being taken down.
    pub(crate) fn is_dead(&self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x')
    }

    /// Whether a stop signal or a tracer holds it.
    pub(crate) fn is_stopped(&self) -> bool {
        matches!(self.state, b'T' | b't')
    }
}

/// Whether a stop signal holds it, or waits for it where it cannot be interrupted: it takes the stop before it runs one
/// more instruction of its own. A parent in vfork(2) whose child was stopped waits so for as long as the child is held.
pub(crate) fn runs_no_more(pid: i32, stat: &Stat) -> bool {
    stat.is_stopped() || (stat.state == b'D' && has_pending_stop(pid))
}

fn has_pending_stop(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
    let bits = pending.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    bits.is_some_and(|bits| bits & (1 << (libc::SIGSTOP - 1)) != 0)
}

/// Reads /proc/pid/stat; the error is `ENOENT` or `ESRCH` where there is no such process.
pub(crate) fn stat(pid: i32) -> io::Result<Stat> {
    let text = fs::read(format!("/proc/{pid}/stat"))?;
    parse(&text).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// Resident memory; 0 where there is none, or no such process.
pub(crate) fn rss_bytes(pid: i32) -> u64 {
    const KIB: u64 = 1024;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(KIB)
}

fn parse(text: &[u8]) -> Option<Stat> {
    // The name in parentheses may hold anything, so count from the last parenthesis.
    let close = text.iter().rposition(|b| *b == b')')?;
    let rest = std::str::from_utf8(text.get(close + 2..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    let session = fields.next()?.parse().ok()?;
    // Field 8; field 7 is the number of the terminal.
    let foreground = fields.nth(1)?.parse().ok()?;
    // Field 22 is the start time; fields 3 to 8 are taken.
    let start_ticks = fields.nth(13)?.parse().ok()?;
    Some(Stat {
        state,
        ppid: parent,
        pgid: group,
        sid: session,
        tpgid: foreground,
        start_ticks,
    })
}

/// All process ids there are.
pub(crate) fn all_pids() -> io::Result<Vec<i32>> {
    let entries = fs::read_dir("/proc")?;
    Ok(entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect())
}

/// The direct children of all threads of `pid`, zombies included.
pub(crate) fn children(pid: i32) -> Vec<i32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for task in tasks.flatten() {
        match fs::read_to_string(task.path().join("children")) {
            Ok(list) => found.extend(
                list.split_ascii_whitespace()
                    .filter_map(|p| p.parse::<i32>().ok()),
            ),
            // A kernel without CONFIG_PROC_CHILDREN has no such file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return children_by_scan(pid);
            }
            Err(_) => {}
        }
    }
    found
}

fn children_by_scan(parent: i32) -> Vec<i32> {
    let pids = all_pids().unwrap_or_default();
    pids.into_iter()
        .filter(|pid| stat(*pid).is_ok_and(|s| s.ppid == parent))
        .collect()
}

/// All descendants of `pid`, without itself, zombies included.
pub(crate) fn descendants(pid: i32) -> Vec<i32> {
    let mut found = Vec::new();
    let mut seen = HashSet::from([pid]);
    let mut open = vec![pid];
    while let Some(parent) = open.pop() {
        for child in children(parent) {
            if seen.insert(child) {
                found.push(child);
                open.push(child);
            }
        }
    }
    found
}

/// A process with its stat, of those that are neither dead nor gone.
pub(crate) fn living(pids: impl IntoIterator<Item = i32>) -> HashMap<i32, Stat> {
    pids.into_iter()
        .filter_map(|pid| {
            stat(pid)
                .ok()
                .filter(|s| !s.is_dead())
                .map(|stat| (pid, stat))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_spaces_and_parentheses_does_not_shift_the_fields() {
        let text = b"7 (a) b (c) S 3 4 5 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 991 1000 2\n";
        let stat = parse(text).expect("it parses");
        assert_eq!(
            (stat.state, stat.ppid, stat.pgid, stat.sid),
            (b'S', 3, 4, 5)
        );
        assert_eq!((stat.tpgid, stat.start_ticks), (-1, 991));
    }

    #[test]
    fn a_child_is_found_among_the_descendants_of_its_parent() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .expect("sleep starts");
        let me = i32::try_from(std::process::id()).expect("a pid");
        let pid = i32::try_from(child.id()).expect("a pid");
        let found = descendants(me);
        let scanned = children_by_scan(me);
        child.kill().expect("it can be killed");
        child.wait().expect("it can be reaped");
        assert!(found.contains(&pid));
        assert!(scanned.contains(&pid));
    }
}
