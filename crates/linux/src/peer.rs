//! The peer of a unix socket.

use crate::{cgroup, pidfd::PidFd, procfs};
use nix::{
    errno::Errno,
    sys::socket::{getsockopt, sockopt},
};
use std::{collections::HashMap, io, os::fd::AsFd, path::Path};

/// Credentials as they were when the peer connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerSeen {
    /// User.
    pub uid: u32,
    /// Process id; 0 where it lives in a pid namespace that cannot be seen from here.
    pub pid: i32,
}

/// Reads `SO_PEERCRED` of a connected unix socket.
pub fn credentials(socket: &impl AsFd) -> io::Result<PeerSeen> {
    let cred = getsockopt(socket, sockopt::PeerCredentials)?;
    Ok(PeerSeen {
        uid: cred.uid(),
        pid: cred.pid(),
    })
}

/// Returns the process at the other end of a connected unix socket, with its credentials. Before Linux 6.5 the socket
/// does not know its process, and the number is opened anew.
pub fn process(socket: &impl AsFd) -> io::Result<(PeerSeen, PidFd)> {
    let peer = credentials(socket)?;
    let process = match getsockopt(socket, sockopt::PeerPidfd) {
        Ok(process) => PidFd::from_fd(process),
        Err(Errno::ENOPROTOOPT) => PidFd::open(peer.pid)?,
        Err(errno) => return Err(errno.into()),
    };
    Ok((peer, process))
}

/// Number of attempts to read a process whose ancestors change meanwhile.
const LOOKS_MAX: usize = 8;

/// Membership of a connected process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Descent {
    /// The process is one of these ancestors, descends from one, or is in one of these groups.
    Member,
    /// The process does not descend from them, and is in none of the groups.
    Other,
    /// The process has exited: its membership can no longer be read.
    Ended,
    /// The files that would show it cannot be read.
    Unreadable,
}

/// Evidence that a process is a member.
pub trait Membership {
    /// Whether the members have this control group, or one above it. A process whose ancestors have died keeps its
    /// group.
    fn has_group(&self, group: &Path) -> bool;

    /// Whether this process, by number and start time, is a member's ancestor or a member. When it dies, its children
    /// get another parent, and this evidence of them is gone.
    fn has_ancestor(&self, pid: i32, start_ticks: u64) -> bool;

    /// Whether process 1 adopts the members whose ancestors have died, so that a child of process 1 is one.
    fn has_orphans_of_init(&self) -> bool {
        false
    }
}

/// Any of these groups and of these ancestors, by number.
impl Membership for (&[&Path], &[i32]) {
    fn has_group(&self, group: &Path) -> bool {
        self.0.iter().any(|base| group.starts_with(base))
    }

    fn has_ancestor(&self, pid: i32, _: u64) -> bool {
        self.1.contains(&pid)
    }
}

/// Determines the membership of the process that has connected this socket, not of a later process with its number.
///
/// Before Linux 6.5 the socket does not know its process, and the number is opened anew. A process that has exited in
/// between is noticed, unless all numbers have been used since.
pub fn descent(socket: &impl AsFd, members: &impl Membership) -> Descent {
    match connector(socket) {
        Ok((pid, process)) => judge(pid, members, || process.has_ended()),
        Err(descent) => descent,
    }
}

/// The nearest of `ancestors` from which the process descends that has connected this socket; `None`: it descends from
/// none, has ended, or cannot be read. A process whose ancestor has died is of none: it loses what it had by it.
pub fn nearest_ancestor(socket: &impl AsFd, ancestors: &[i32]) -> Option<i32> {
    let (pid, process) = connector(socket).ok().filter(|(pid, _)| *pid > 0)?;
    let found = nearest_of(pid, ancestors);
    // INVARIANT: a process keeps its pid until it has exited, so earlier reads are about the connector.
    found.filter(|_| !process.has_ended())
}

/// The process that has connected this socket, with its number; an error says what is known of it.
fn connector(socket: &impl AsFd) -> Result<(i32, PidFd), Descent> {
    match process(socket) {
        Ok((peer, process)) => Ok((peer.pid, process)),
        Err(error) => match error.raw_os_error() {
            Some(libc::ESRCH | libc::ENODATA) => Err(Descent::Ended),
            _ => Err(Descent::Unreadable),
        },
    }
}

/// The sender of a datagram.
#[derive(Debug)]
pub struct Sender {
    /// Process id; 0 where it lives in a pid namespace that cannot be seen from here.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// The process itself (Linux 6.5).
    process: Option<PidFd>,
}

impl Sender {
    pub(crate) fn new(pid: i32, uid: u32, process: Option<PidFd>) -> Self {
        Self { pid, uid, process }
    }

    /// Determines the membership of the sender, not of a later process with its number. A sender that has exited and is
    /// not reaped yet still has its membership.
    pub fn descent(&self, members: &impl Membership) -> Descent {
        let opened;
        let process = match &self.process {
            Some(process) => process,
            None => match PidFd::open(self.pid) {
                Ok(process) => {
                    opened = process;
                    &opened
                }
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Descent::Ended,
                Err(_) => return Descent::Unreadable,
            },
        };
        judge(self.pid, members, || !process.is_unreaped())
    }

    /// Whether the sender has ended, and in the control group of this id (Linux 6.16).
    pub fn ended_in(&self, group: u64) -> bool {
        self.process.as_ref().and_then(PidFd::exit_group) == Some(group)
    }
}

/// Determines the membership of the process with this number, as long as it is the intended one.
fn judge(pid: i32, members: &impl Membership, is_gone: impl Fn() -> bool) -> Descent {
    for _ in 0..LOOKS_MAX {
        // setns(2) moves no process out of sight of its old pid namespace: a process without a pid here was not started
        // here.
        let seen = if pid > 0 {
            seen(pid, members)
        } else {
            Some(Descent::Other)
        };
        // INVARIANT: a process keeps its pid until it has exited, so earlier reads are about it.
        if is_gone() {
            return Descent::Ended;
        }
        if let Some(seen) = seen {
            return seen;
        }
    }
    Descent::Unreadable
}

/// Reads the membership of a process; `None`: it cannot be read at present.
fn seen(pid: i32, members: &impl Membership) -> Option<Descent> {
    let group = cgroup::read_path_of(pid).ok()?;
    if group.is_some_and(|group| members.has_group(&group)) {
        return Some(Descent::Member);
    }
    let chain = chain(pid)?;
    if chain.is_of(members) {
        return Some(Descent::Member);
    }
    // A parent that exits during the walk passes its children to an ancestor already read: only a chain that is read
    // twice the same existed at one time.
    (self::chain(pid)? == chain).then_some(Descent::Other)
}

/// A process and its ancestors below process 1, with their start times.
#[derive(PartialEq, Eq)]
struct Ancestry {
    processes: Vec<(i32, u64)>,
    /// Whether the last one is a child of process 1. It is not where a process outside of this pid namespace has
    /// started it.
    is_below_init: bool,
}

impl Ancestry {
    fn is_of(&self, members: &impl Membership) -> bool {
        let mut processes = self.processes.iter();
        self.is_below_init && members.has_orphans_of_init()
            || processes.any(|(pid, start)| members.has_ancestor(*pid, *start))
    }
}

/// Returns the chain of a process; `None`: one cannot be read, or there are too many.
fn chain(pid: i32) -> Option<Ancestry> {
    let mut processes = Vec::new();
    let mut at = pid;
    while processes.len() < procfs::ANCESTORS_MAX {
        let stat = procfs::stat(at).ok()?;
        processes.push((at, stat.start_ticks));
        if stat.ppid <= 1 {
            let is_below_init = stat.ppid == 1;
            return Some(Ancestry {
                processes,
                is_below_init,
            });
        }
        at = stat.ppid;
    }
    None
}

/// Whether one of `ancestors` is among the ancestors of `pid`, or is `pid`. When an ancestor dies, its descendants are
/// those of the next subreaper above it: callers name that one as well, or have other evidence of them.
pub fn descends_from(pid: i32, ancestors: &[i32]) -> bool {
    nearest_of(pid, ancestors).is_some()
}

/// Returns the first of `ancestors` among `pid` and its ancestors. That of a process whose ancestor has died is the
/// next one above, if any.
pub fn nearest_of(pid: i32, ancestors: &[i32]) -> Option<i32> {
    (0..LOOKS_MAX)
        .find_map(|_| climb(pid, ancestors).ok())
        .flatten()
}

/// Whether `pid` is, or descends from, `ancestor` or a process of `known`, by number and start time. Those that were seen
/// to on the way are known from then on.
pub(crate) fn descends_from_known(
    pid: i32,
    ancestor: Option<i32>,
    known: &mut HashMap<i32, u64>,
) -> bool {
    (0..LOOKS_MAX)
        .find_map(|_| climb_to_known(pid, ancestor, known).ok())
        .unwrap_or(false)
}

fn climb_to_known(
    pid: i32,
    ancestor: Option<i32>,
    known: &mut HashMap<i32, u64>,
) -> io::Result<bool> {
    let (mut at, mut way) = (pid, Vec::new());
    while way.len() < procfs::ANCESTORS_MAX {
        let stat = match ancestor {
            Some(ancestor) if at == ancestor => None,
            _ => Some(procfs::stat(at)?).filter(|stat| known.get(&at) != Some(&stat.start_ticks)),
        };
        match stat {
            None => {
                known.extend(way);
                return Ok(true);
            }
            Some(stat) if stat.ppid > 0 => {
                way.push((at, stat.start_ticks));
                at = stat.ppid;
            }
            Some(_) => return Ok(false),
        }
    }
    Err(Errno::ELOOP.into())
}

/// Whether the ancestors of `pid` were all seen, and `ancestor` is neither among them nor `pid` itself. It says nothing
/// when `ancestor` is dead: callers check afterwards that it lives.
pub(crate) fn is_beside(pid: i32, ancestor: i32) -> bool {
    let seen = (0..LOOKS_MAX).find_map(|_| climb(pid, &[ancestor]).ok());
    seen.is_some_and(|found| found.is_none())
}

/// Walks up once. An error: the process or a parent has exited meanwhile and passed its children on, so that the chain
/// has to be read anew; or there are too many.
fn climb(pid: i32, ancestors: &[i32]) -> io::Result<Option<i32>> {
    let mut at = pid;
    for _ in 0..procfs::ANCESTORS_MAX {
        if ancestors.contains(&at) {
            return Ok(Some(at));
        }
        match procfs::stat(at) {
            Ok(stat) if stat.ppid > 0 => at = stat.ppid,
            Ok(_) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Err(Errno::ELOOP.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn peer_is_identified_by_pid_and_pidfd() {
        let (one, other) = UnixStream::pair().expect("a pair");
        let me = i32::try_from(std::process::id()).expect("a pid");
        assert_eq!(credentials(&one).expect("credentials").pid, me);
        assert!(process(&other).is_ok());
    }

    #[test]
    fn ancestor_is_found_through_parents() {
        let me = i32::try_from(std::process::id()).expect("a pid");
        let parent = procfs::stat(me).expect("own stat").ppid;
        assert!(descends_from(me, &[me]));
        assert!(descends_from(me, &[parent]));
        assert!(!descends_from(parent, &[me]));
    }

    // promise: T-18c
    #[test]
    fn cached_ancestor_is_matched_by_start_time() {
        let me = i32::try_from(std::process::id()).expect("a pid");
        let parent = procfs::stat(me).expect("own stat").ppid;
        let mut known = HashMap::new();
        assert!(!descends_from_known(me, None, &mut known) && known.is_empty());
        assert!(descends_from_known(me, Some(parent), &mut known));
        let start = procfs::stat(me).expect("own stat").start_ticks;
        assert_eq!(known, HashMap::from([(me, start)]));
        assert!(descends_from_known(me, None, &mut known));
        let mut reused = HashMap::from([(me, start - 1)]);
        assert!(!descends_from_known(me, None, &mut reused));
    }

    #[test]
    fn peer_descent_is_that_of_connecting_process() {
        let (one, _other) = UnixStream::pair().expect("a pair");
        let me = i32::try_from(std::process::id()).expect("a pid");
        let parent = procfs::stat(me).expect("own stat").ppid;
        let by = |ancestor: i32| descent(&one, &(&[][..], &[ancestor][..]));
        assert_eq!(by(me), Descent::Member);
        assert_eq!(by(parent), Descent::Member);
        assert_eq!(by(i32::MAX), Descent::Other);
        assert_eq!(nearest_ancestor(&one, &[parent, me]), Some(me));
        assert_eq!(nearest_ancestor(&one, &[parent]), Some(parent));
        assert_eq!(nearest_ancestor(&one, &[i32::MAX]), None);
    }

    /// Ancestors by number and start time, and whether process 1 has orphans.
    struct Known(Vec<(i32, u64)>, bool);

    impl Membership for Known {
        fn has_group(&self, _: &Path) -> bool {
            false
        }

        fn has_ancestor(&self, pid: i32, start_ticks: u64) -> bool {
            self.0.contains(&(pid, start_ticks))
        }

        fn has_orphans_of_init(&self) -> bool {
            self.1
        }
    }

    // promise: W-11a
    #[test]
    fn descendant_of_pid_1_belongs_to_pid_1_keeper() {
        let chain = |is_below_init| Ancestry {
            processes: vec![(30, 3), (20, 2)],
            is_below_init,
        };
        let none = || Vec::new();
        assert!(chain(true).is_of(&Known(none(), true)));
        // The keeper is not process 1, or the process comes from outside the container.
        assert!(!chain(true).is_of(&Known(none(), false)));
        assert!(!chain(false).is_of(&Known(none(), true)));
        assert!(chain(false).is_of(&Known(vec![(20, 2)], false)));
        assert!(!chain(false).is_of(&Known(vec![(20, 1)], false)));
    }
}
