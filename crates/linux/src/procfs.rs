//! Processes in /proc: parents, states, children.

use crate::kernel_file;
use std::{
    collections::{HashMap, HashSet},
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::MetadataExt,
    sync::OnceLock,
};

/// Links of /proc/pid/task while there is one thread: the directory's own two, and one for each thread.
const LINKS_OF_ONE_THREAD: u64 = 3;
/// Longest chain of parents that is followed.
pub const ANCESTORS_MAX: usize = 4096;

/// The flag of a kernel thread (`include/linux/sched.h`).
const PF_KTHREAD: u32 = 0x0020_0000;
/// The flag of an exiting process, set before it closes anything.
const PF_EXITING: u32 = 0x0000_0004;

/// The fields of /proc/pid/stat that are used here (`proc_pid_stat(5)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Letter of its process state.
    pub state: u8,
    /// Process id of its parent.
    pub ppid: i32,
    /// Its process group.
    pub pgid: i32,
    /// Its session.
    pub sid: i32,
    /// Foreground group of its controlling terminal; 0 or less: it has no terminal, or one without such a group.
    pub tpgid: i32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    /// Whether it is a kernel thread.
    pub is_kernel_thread: bool,
    /// Whether it is exiting: its descriptors are being closed, or are.
    pub is_exiting: bool,
}

impl Stat {
    /// Whether it has exited and waits to be reaped, or is being removed.
    pub fn is_dead(&self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x')
    }

    /// Whether a stop signal or a tracer stops it.
    pub fn is_stopped(&self) -> bool {
        matches!(self.state, b'T' | b't')
    }
}

/// Reads /proc/pid/stat; the error is `ENOENT` or `ESRCH` where there is no such process.
pub fn stat(pid: i32) -> io::Result<Stat> {
    let text = read_record(&format!("/proc/{pid}/stat"))?;
    parse(&text).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// Returns the length of the process's environment, from its first and last address: fields 50 and 51 of
/// `proc_pid_stat(5)`. `None`: there is none, as in the middle of execve(2). What is read of /proc/pid/environ while a
/// process executes a program may be a part of it, or nothing.
pub fn environment_bytes(pid: i32) -> Option<u64> {
    /// Fields before field 27, the end of its code, after the name, which is the second.
    const CODE_END_AT: usize = 27 - 3;
    /// Fields between that and the first address of the environment.
    const BETWEEN: usize = 50 - 27 - 1;
    let text = read_record(&format!("/proc/{pid}/stat")).ok()?;
    let mut numbers = fields(&text)?.map(|field| field.parse::<u64>().ok());
    // execve(2) sets the code's end after the environment, whose first and last address are equal until it is counted.
    let code_end = numbers.nth(CODE_END_AT)??;
    let (first, last) = (numbers.nth(BETWEEN)??, numbers.next()??);
    (code_end != 0 && last != 0).then(|| last.saturating_sub(first))
}

/// Returns in how many pid namespaces, from that of /proc on, the process has a number; 0: there is no such process.
pub fn namespace_depth(pid: i32) -> usize {
    status(pid, "NSpid:").map_or(0, |numbers| numbers.split_ascii_whitespace().count())
}

/// Reads the same fields of one of its tasks.
pub fn stat_of_task(pid: i32, tid: i32) -> io::Result<Stat> {
    let text = read_record(&format!("/proc/{pid}/task/{tid}/stat"))?;
    parse(&text).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// Returns the processor time that the process has used in user mode and in the kernel, in clock ticks: fields 14 and
/// 15 of `proc_pid_stat(5)`.
pub fn cpu_ticks(pid: i32) -> Option<u64> {
    let text = read_record(&format!("/proc/{pid}/stat")).ok()?;
    let mut fields = fields(&text)?.skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

/// Returns the resident memory; 0 where there is none, or no such process.
pub fn rss_bytes(pid: i32) -> u64 {
    const KIB: u64 = 1024;
    let rss = status(pid, "VmRSS:");
    let kib = rss.and_then(|rss| rss.strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(KIB)
}

fn read(path: &str) -> io::Result<Vec<u8>> {
    kernel_file::read_list(File::open(path)?)
}

fn read_record(path: &str) -> io::Result<Vec<u8>> {
    kernel_file::read_record(File::open(path)?)
}

/// Returns the kernel's name of the process with this start time; empty where it is gone.
pub fn name(pid: i32, start_ticks: u64) -> String {
    let name = comm(pid);
    // The start time is the same after the read, so the name is that of the process.
    if stat(pid).is_ok_and(|after| after.start_ticks == start_ticks) {
        name
    } else {
        String::new()
    }
}

/// Returns the kernel's name for the present process with this number; empty where there is none.
pub fn comm(pid: i32) -> String {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(name.trim_ascii_end()).into_owned()
}

/// Returns the first `bytes_max` bytes of the present command line, which the process may have overwritten. Empty where
/// there is none, or it cannot be read.
pub fn cmdline(pid: i32, bytes_max: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(format!("/proc/{pid}/cmdline")) {
        let _ = file.take(bytes_max as u64).read_to_end(&mut bytes);
    }
    bytes
}

/// Returns a field of /proc/pid/status by its name with the colon.
pub fn status(pid: i32, field: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let value = status.lines().find_map(|line| line.strip_prefix(field))?;
    Some(value.trim().to_owned())
}

/// Returns the real user; absent where there is no such process.
pub fn uid(pid: i32) -> Option<u32> {
    let users = status(pid, "Uid:")?;
    users.split_ascii_whitespace().next()?.parse().ok()
}

/// Returns the fields of a stat file from field 3 on: they are behind the name, which may contain anything, spaces and
/// parentheses included.
fn fields(text: &[u8]) -> Option<impl Iterator<Item = &str>> {
    let end = text.iter().rposition(|byte| *byte == b')')?;
    let text = std::str::from_utf8(&text[end + 1..]).ok()?;
    Some(text.split_ascii_whitespace())
}

fn parse(text: &[u8]) -> Option<Stat> {
    let mut fields = fields(text)?;
    let state = *fields.next()?.as_bytes().first()?;
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    let session = fields.next()?.parse().ok()?;
    // Field 8 is the foreground group, field 7 the terminal's number, field 9 the kernel's flags.
    let foreground = fields.nth(1)?.parse().ok()?;
    let flags: u32 = fields.next()?.parse().ok()?;
    // Field 22 is the start time; fields 3 to 9 are already read.
    let start_ticks = fields.nth(12)?.parse().ok()?;
    Some(Stat {
        state,
        ppid: parent,
        pgid: group,
        sid: session,
        tpgid: foreground,
        start_ticks,
        is_kernel_thread: flags & PF_KTHREAD != 0,
        is_exiting: flags & PF_EXITING != 0,
    })
}

/// Returns all process ids.
pub fn all_pids() -> io::Result<Vec<i32>> {
    let entries = fs::read_dir("/proc")?;
    Ok(entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect())
}

/// Returns the direct children of all threads of `pid`, zombies included.
pub fn children(pid: i32) -> Vec<i32> {
    if !lists_children() {
        return children_by_scan(pid);
    }
    // Nearly every process has one thread, whose id is the pid.
    match fs::metadata(format!("/proc/{pid}/task")) {
        Ok(tasks) if tasks.nlink() == LINKS_OF_ONE_THREAD => children_of_thread(pid, pid),
        Ok(_) => threads(pid)
            .into_iter()
            .flat_map(|thread| children_of_thread(pid, thread))
            .collect(),
        Err(_) => Vec::new(),
    }
}

/// Whether this kernel was built with `CONFIG_PROC_CHILDREN`. Checked on a thread that is sure to exist: for another
/// one a missing file may only mean that it has just exited.
fn lists_children() -> bool {
    static LISTS: OnceLock<bool> = OnceLock::new();
    *LISTS.get_or_init(|| fs::exists("/proc/thread-self/children").unwrap_or(false))
}

pub(crate) fn threads(pid: i32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    let tasks = tasks.into_iter().flatten().flatten();
    tasks
        .filter_map(|task| task.file_name().to_str()?.parse().ok())
        .collect()
}

/// Whether a process has a living task, also where its leader has exited.
fn has_live_task(pid: i32) -> bool {
    let mut tasks = threads(pid).into_iter();
    tasks.any(|task| stat_of_task(pid, task).is_ok_and(|stat| !stat.is_dead()))
}

fn children_of_thread(pid: i32, thread: i32) -> Vec<i32> {
    let list = read(&format!("/proc/{pid}/task/{thread}/children")).unwrap_or_default();
    let list = String::from_utf8_lossy(&list);
    let pids = list.split_ascii_whitespace();
    pids.filter_map(|pid| pid.parse().ok()).collect()
}

fn children_by_scan(parent: i32) -> Vec<i32> {
    let pids = all_pids().unwrap_or_default();
    pids.into_iter()
        .filter(|pid| stat(*pid).is_ok_and(|s| s.ppid == parent))
        .collect()
}

/// Returns all descendants of `pid`, without itself, zombies included.
pub fn descendants(pid: i32) -> Vec<i32> {
    descendants_beside(pid, &HashSet::new())
}

/// Returns all descendants of `pid`, without itself, without `known` and without their descendants.
pub fn descendants_beside(pid: i32, known: &HashSet<i32>) -> Vec<i32> {
    let mut found = Vec::new();
    let mut seen = HashSet::from([pid]);
    let mut open = vec![pid];
    while let Some(parent) = open.pop() {
        for child in children(parent) {
            if !known.contains(&child) && seen.insert(child) {
                found.push(child);
                open.push(child);
            }
        }
    }
    found
}

/// Returns those processes that are neither dead nor gone, with their stat. A process whose leader has exited before
/// its other threads looks dead, and is not.
pub fn living(pids: impl IntoIterator<Item = i32>) -> HashMap<i32, Stat> {
    pids.into_iter()
        .filter_map(|pid| {
            stat(pid)
                .ok()
                .filter(|s| !s.is_dead() || has_live_task(pid))
                .map(|stat| (pid, stat))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_parsed_despite_parentheses_in_name() {
        let text = b"7 (a) b (c) S 3 4 5 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 991 1000 2\n";
        let stat = parse(text).expect("it parses");
        assert_eq!(
            (stat.state, stat.ppid, stat.pgid, stat.sid),
            (b'S', 3, 4, 5)
        );
        assert_eq!((stat.tpgid, stat.start_ticks), (-1, 991));
        assert!(!stat.is_kernel_thread);
        let thread = b"2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 5 0 0\n";
        assert!(parse(thread).is_some_and(|stat| stat.is_kernel_thread));
    }

    #[test]
    fn environment_length_matches_environ_file() {
        let me = std::process::id().cast_signed();
        let environ = fs::read("/proc/self/environ").expect("own environment");
        assert_eq!(environment_bytes(me), Some(environ.len() as u64));
        assert_eq!(environment_bytes(0), None, "there is no such process");
    }

    #[test]
    fn child_is_among_its_parents_descendants() {
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

    #[test]
    fn children_of_every_thread_are_found() {
        let (tell, forked) = std::sync::mpsc::channel();
        let (leave, left) = std::sync::mpsc::channel();
        let other = std::thread::spawn(move || {
            let sleep = std::process::Command::new("sleep").arg("60").spawn();
            tell.send(sleep.expect("sleep starts")).expect("heard");
            left.recv().expect("the request to exit");
        });
        let mut child = forked.recv().expect("a child");
        let me = std::process::id().cast_signed();
        let found = children(me);
        child.kill().expect("it can be killed");
        child.wait().expect("it can be reaped");
        leave.send(()).expect("it waits");
        other.join().expect("it leaves");
        assert!(found.contains(&child.id().cast_signed()));
    }

    #[test]
    fn file_longer_than_first_read_is_read_completely() {
        let long = read("/proc/self/smaps").expect("own mappings");
        assert!(long.len() > kernel_file::FIRST_READ_BYTES);
        assert!(long.ends_with(b"\n"));
    }
}
