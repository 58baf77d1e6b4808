//! Who is at the other end of a unix socket.

use crate::procfs;
use nix::sys::socket::{getsockopt, sockopt};
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

/// Whether one of `ancestors` is among the ancestors of `pid`, or is `pid`.
#[must_use]
pub fn descends_from(pid: i32, ancestors: &[i32]) -> bool {
    nearest_of(pid, ancestors).is_some()
}

/// The first of `ancestors` among `pid` and its ancestors.
pub(crate) fn nearest_of(pid: i32, ancestors: &[i32]) -> Option<i32> {
    let mut at = pid;
    for _ in 0..procfs::ANCESTORS_MAX {
        if ancestors.contains(&at) {
            return Some(at);
        }
        match procfs::stat(at) {
            Ok(stat) if stat.ppid > 0 => at = stat.ppid,
            _ => return None,
        }
    }
    None
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
}
