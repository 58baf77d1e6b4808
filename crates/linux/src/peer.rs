//! Who is at the other end of a unix socket.

use crate::{cgroup, pidfd::PidFd, procfs};
use nix::{
    errno::Errno,
    sys::socket::{getsockopt, sockopt},
};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

/// Credentials as they were when the peer connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// User.
    pub uid: u32,
    /// Process; 0 where it lives in a pid namespace that cannot be seen from here.
    pub pid: i32,
}

/// `SO_PEERCRED` of a connected unix socket.
pub fn credentials(socket: &impl AsFd) -> io::Result<Peer> {
    let cred = getsockopt(socket, sockopt::PeerCredentials)?;
    Ok(Peer {
        uid: cred.uid(),
        pid: cred.pid(),
    })
}

/// `SO_PEERPIDFD` of a connected unix socket: the process itself, whose number cannot be reused unseen (Linux 6.5).
pub fn pidfd(socket: &impl AsFd) -> io::Result<OwnedFd> {
    Ok(getsockopt(socket, sockopt::PeerPidfd)?)
}

/// How often a process is looked at anew whose ancestors changed meanwhile.
const LOOKS_MAX: usize = 8;

/// Where a process belongs that has connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Descent {
    /// It is one of these ancestors, descends from one, or is in one of these groups.
    Member,
    /// It does not, and is not.
    Other,
    /// It has ended: nothing can be said of it any more.
    Ended,
    /// What would say it cannot be read.
    Unreadable,
}

/// Where the process belongs that has connected this socket: it, and not whatever has its number by now.
///
/// Before Linux 6.5 the socket does not know its process, and the number is opened anew. One that has ended in between is
/// noticed, unless all numbers have been given out since.
#[must_use]
pub fn descent(socket: &impl AsFd, groups: &[&Path], ancestors: &[i32]) -> Descent {
    match connector(socket) {
        Ok((pid, process)) => judge(pid, groups, ancestors, || process.has_ended()),
        Err(descent) => descent,
    }
}

/// The nearest of `ancestors` from which the process descends that has connected this socket; `None`: it descends from none, has
/// ended, or cannot be read.
#[must_use]
pub fn nearest_ancestor(socket: &impl AsFd, ancestors: &[i32]) -> Option<i32> {
    let (pid, process) = connector(socket).ok().filter(|(pid, _)| *pid > 0)?;
    let found = nearest_of(pid, ancestors);
    // INVARIANT: it has its number until it has ended, so what was read before this is about it.
    found.filter(|_| !process.has_ended())
}

/// The process that has connected this socket, with its number; an error says what is known of it.
fn connector(socket: &impl AsFd) -> Result<(i32, PidFd), Descent> {
    let process = match getsockopt(socket, sockopt::PeerPidfd) {
        Ok(process) => PidFd::from_fd(process),
        Err(Errno::ENOPROTOOPT) => match credentials(socket).map(|peer| PidFd::open(peer.pid)) {
            Ok(Ok(process)) => process,
            Ok(Err(error)) if error.raw_os_error() == Some(Errno::ESRCH as i32) => {
                return Err(Descent::Ended);
            }
            Ok(Err(_)) | Err(_) => return Err(Descent::Unreadable),
        },
        Err(Errno::ESRCH | Errno::ENODATA) => return Err(Descent::Ended),
        Err(_) => return Err(Descent::Unreadable),
    };
    match credentials(socket) {
        Ok(Peer { pid, .. }) => Ok((pid, process)),
        Err(_) => Err(Descent::Unreadable),
    }
}

/// The process that has sent a datagram.
#[derive(Debug)]
pub struct Sender {
    /// Its number; 0 where it lives in a pid namespace that cannot be seen from here.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// Itself (Linux 6.5).
    process: Option<PidFd>,
}

impl Sender {
    pub(crate) fn new(pid: i32, uid: u32, process: Option<PidFd>) -> Self {
        Self { pid, uid, process }
    }

    /// Where it belongs: it, and not whatever has its number by now. One that has ended and is not reaped yet is still
    /// where it was.
    #[must_use]
    pub fn descent(&self, groups: &[&Path], ancestors: &[i32]) -> Descent {
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
        judge(self.pid, groups, ancestors, || !process.is_unreaped())
    }
}

/// Where the process with this number belongs, for as long as it is the one that is meant.
fn judge(pid: i32, groups: &[&Path], ancestors: &[i32], is_gone: impl Fn() -> bool) -> Descent {
    for _ in 0..LOOKS_MAX {
        // Nobody gets into a pid namespace from which its old one cannot see it (setns(2)): what has no number here was not
        // begun here.
        let seen = if pid > 0 {
            seen(pid, groups, ancestors)
        } else {
            Some(Descent::Other)
        };
        // INVARIANT: it has its number until it has ended, so what was read before this is about it.
        if is_gone() {
            return Descent::Ended;
        }
        if let Some(seen) = seen {
            return seen;
        }
    }
    Descent::Unreadable
}

/// Where a process belongs; `None`: it cannot be read now.
fn seen(pid: i32, groups: &[&Path], ancestors: &[i32]) -> Option<Descent> {
    let group = cgroup::read_path_of(pid).ok()?;
    if group.is_some_and(|group| groups.iter().any(|base| group.starts_with(base))) {
        return Some(Descent::Member);
    }
    let chain = chain(pid)?;
    if chain.iter().any(|(pid, _)| ancestors.contains(pid)) {
        return Some(Descent::Member);
    }
    // A parent that ends while it is read hands its children on, past those that were read: only what reads twice the same was
    // so at one time.
    (self::chain(pid)? == chain).then_some(Descent::Other)
}

/// The process and its ancestors below process 1, with their start times; `None`: one cannot be read, or there are too many.
fn chain(pid: i32) -> Option<Vec<(i32, u64)>> {
    let mut chain = Vec::new();
    let mut at = pid;
    while chain.len() < procfs::ANCESTORS_MAX {
        let stat = procfs::stat(at).ok()?;
        chain.push((at, stat.start_ticks));
        if stat.ppid <= 1 {
            return Some(chain);
        }
        at = stat.ppid;
    }
    None
}

/// Whether one of `ancestors` is among the ancestors of `pid`, or is `pid`.
#[must_use]
pub fn descends_from(pid: i32, ancestors: &[i32]) -> bool {
    nearest_of(pid, ancestors).is_some()
}

/// The first of `ancestors` among `pid` and its ancestors.
pub fn nearest_of(pid: i32, ancestors: &[i32]) -> Option<i32> {
    (0..LOOKS_MAX)
        .find_map(|_| climb(pid, ancestors).ok())
        .flatten()
}

/// One walk up. An error: a parent has ended meanwhile and handed its children on, so that the chain has to be read anew.
fn climb(pid: i32, ancestors: &[i32]) -> io::Result<Option<i32>> {
    let mut at = pid;
    for _ in 0..procfs::ANCESTORS_MAX {
        if ancestors.contains(&at) {
            return Ok(Some(at));
        }
        match procfs::stat(at) {
            Ok(stat) if stat.ppid > 0 => at = stat.ppid,
            Ok(_) => return Ok(None),
            Err(_) if at == pid => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Whether `pid` is in the cgroup v2 directory `base` or below it.
#[must_use]
pub fn in_cgroup(pid: i32, base: &Path) -> bool {
    crate::cgroup::path_of(pid).is_some_and(|path| path.starts_with(base))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_peer_is_known_by_uid_pid_and_descriptor() {
        let (one, other) = UnixStream::pair().expect("a pair");
        let me = i32::try_from(std::process::id()).expect("a pid");
        assert_eq!(credentials(&one).expect("credentials").pid, me);
        assert!(pidfd(&other).is_ok());
    }

    #[test]
    fn descent_is_found_through_parents() {
        let me = i32::try_from(std::process::id()).expect("a pid");
        let parent = procfs::stat(me).expect("own stat").ppid;
        assert!(descends_from(me, &[me]));
        assert!(descends_from(me, &[parent]));
        assert!(!descends_from(parent, &[me]));
    }

    #[test]
    fn descent_is_judged_by_the_process_that_connected() {
        let (one, _other) = UnixStream::pair().expect("a pair");
        let me = i32::try_from(std::process::id()).expect("a pid");
        let parent = procfs::stat(me).expect("own stat").ppid;
        assert_eq!(descent(&one, &[], &[me]), Descent::Member);
        assert_eq!(descent(&one, &[], &[parent]), Descent::Member);
        assert_eq!(descent(&one, &[], &[i32::MAX]), Descent::Other);
        assert_eq!(nearest_ancestor(&one, &[parent, me]), Some(me));
        assert_eq!(nearest_ancestor(&one, &[parent]), Some(parent));
        assert_eq!(nearest_ancestor(&one, &[i32::MAX]), None);
    }
}
