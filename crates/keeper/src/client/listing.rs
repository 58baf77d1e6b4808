//! Processes of a tree and results of a signal to each, as the server gets them; and details that only /proc has.

use crate::{
    values::SignalledProcesses,
    wire::{WireListing, WireMember},
};
pub use kennel_linux::targets::{
    Holds, MembershipEvidence, RoundTarget, SignalOutcome, SignalTarget, SignalledProcess,
    TARGETS_LISTED_MAX,
};
use kennel_linux::{clock, procfs, sockets};
use std::{
    collections::{BTreeSet, HashMap},
    fs, io,
    net::SocketAddr,
    path::PathBuf,
    time::Duration,
};

/// Most of one command line that is read.
const ARGS_BYTES_MAX: usize = 4096;
/// Most bytes of all command lines of a tree together.
const ARGS_BYTES_TOTAL_MAX: usize = 512 * 1024;
/// Most descriptors of one process that are searched for sockets.
const FDS_MAX: usize = 4096;
/// Most descriptors of a tree that are searched.
const FDS_TOTAL_MAX: usize = 262_144;
/// Most ports of one process that are reported.
const PORTS_MAX: usize = 32;

/// Result of a requested signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The signal was sent.
    Now(SignalledProcesses),
    /// A signal was sent under its request id before; none was sent now.
    Before,
}

/// One process of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Process id.
    pub pid: i32,
    /// Parent.
    pub ppid: i32,
    /// Process group.
    pub pgid: i32,
    /// Session.
    pub sid: i32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    /// The kernel's name for it, at most 15 bytes.
    pub name: String,
    /// Its command line as it is now, which it may have overwritten; empty for a zombie.
    pub args: Vec<String>,
    /// Whether `args` is cut.
    pub args_cut: bool,
    /// Letter of proc(5), such as `S`.
    pub state: char,
    /// Resident memory in bytes.
    pub rss_bytes: u64,
    /// Processor time used by all of its threads; absent: it cannot be read.
    pub cpu_time: Option<Duration>,
    /// TCP ports that it listens on, rising.
    pub listening_ports: Vec<u16>,
    /// Whether some of its descriptors were not searched, or some ports are not listed.
    pub ports_cut: bool,
    /// Inodes of the sockets that it has open, of any kind.
    pub sockets: Vec<u64>,
    /// Its containment.
    pub holds: Holds,
}

/// Processes of a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Its processes by rising process id.
    pub members: Vec<Member>,
    /// Number of further processes.
    pub unlisted: u32,
}

/// Adds details that are slow to read. Processes that have exited meanwhile are left out.
pub(super) fn describe(listed: &WireListing) -> Listing {
    let mut look = MemberTables::default();
    let members = listed.members.iter().filter_map(|m| look.describe(m));
    Listing {
        members: members.collect(),
        unlisted: listed.unlisted,
    }
}

/// Tables that are read once for all members, and how much has been read.
#[derive(Default)]
struct MemberTables {
    args_bytes: usize,
    fds: usize,
    /// Addresses by inode of their listening socket, for each network namespace.
    listening: HashMap<PathBuf, HashMap<u64, SocketAddr>>,
}

impl MemberTables {
    fn describe(&mut self, member: &WireMember) -> Option<Member> {
        let pid = member.pid;
        let name = procfs::comm(pid);
        let (args, args_cut) = self.args(pid);
        let rss_bytes = procfs::rss_bytes(pid);
        let cpu_time = procfs::cpu_ticks(pid).map(clock::of_ticks);
        let (sockets, is_cut) = self.sockets(pid);
        let (listening_ports, has_more) = self.ports(pid, &sockets);
        // The start time is unchanged after everything was read, so nothing read belongs to another process.
        let stat = procfs::stat(pid).ok()?;
        (stat.start_ticks == member.start_ticks).then(|| Member {
            pid,
            ppid: stat.ppid,
            pgid: stat.pgid,
            sid: stat.sid,
            start_ticks: stat.start_ticks,
            name,
            args,
            args_cut,
            state: char::from(stat.state),
            rss_bytes,
            cpu_time,
            listening_ports,
            ports_cut: is_cut || has_more,
            sockets,
            holds: member.holds,
        })
    }

    fn args(&mut self, pid: i32) -> (Vec<String>, bool) {
        let most = ARGS_BYTES_MAX.min(ARGS_BYTES_TOTAL_MAX - self.args_bytes);
        // One byte more than is reported shows whether the command line is longer.
        let mut bytes = procfs::cmdline(pid, most + 1);
        let cut = bytes.len() > most;
        bytes.truncate(most);
        self.args_bytes += bytes.len();
        if bytes.last() == Some(&0) {
            bytes.pop();
        } else if bytes.is_empty() {
            return (Vec::new(), cut);
        }
        let args = bytes.split(|byte| *byte == 0);
        let args = args.map(|arg| String::from_utf8_lossy(arg).into_owned());
        (args.collect(), cut)
    }

    /// Returns the inodes of its sockets, and whether some of its descriptors were not searched, or may not be.
    fn sockets(&mut self, pid: i32) -> (Vec<u64>, bool) {
        let mut inodes = Vec::new();
        let fds = match fs::read_dir(format!("/proc/{pid}/fd")) {
            Ok(fds) => fds,
            Err(error) => return (inodes, error.kind() == io::ErrorKind::PermissionDenied),
        };
        for (looked, fd) in fds.flatten().enumerate() {
            if looked == FDS_MAX || self.fds == FDS_TOTAL_MAX {
                return (inodes, true);
            }
            self.fds += 1;
            inodes.extend(fs::read_link(fd.path()).ok().and_then(|l| socket(&l)));
        }
        (inodes, false)
    }

    /// Returns the ports that it listens on, and whether there are more.
    fn ports(&mut self, pid: i32, inodes: &[u64]) -> (Vec<u16>, bool) {
        if inodes.is_empty() {
            return (Vec::new(), false);
        }
        let Ok(namespace) = fs::read_link(format!("/proc/{pid}/ns/net")) else {
            return (Vec::new(), false);
        };
        let listening = self.listening.entry(namespace);
        let listening = listening.or_insert_with(|| sockets::listening(pid));
        let ports = inodes.iter().filter_map(|inode| listening.get(inode));
        let ports: BTreeSet<u16> = ports.map(SocketAddr::port).collect();
        let has_more = ports.len() > PORTS_MAX;
        (ports.into_iter().take(PORTS_MAX).collect(), has_more)
    }
}

/// Parses the inode in `socket:[123]`.
fn socket(link: &std::path::Path) -> Option<u64> {
    let inode = link.to_str()?.strip_prefix("socket:[")?;
    inode.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    // promise: T-19, RW-160
    #[test]
    fn reused_pid_is_not_described() {
        let pid = std::process::id().cast_signed();
        let socket = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = socket.local_addr().expect("an address").port();
        let stat = procfs::stat(pid).expect("own stat");
        let member = WireMember {
            pid,
            start_ticks: stat.start_ticks,
            holds: Holds::default(),
        };
        let earlier = WireMember {
            start_ticks: stat.start_ticks - 1,
            ..member
        };
        let listing = describe(&WireListing {
            members: vec![earlier, member],
            unlisted: 3,
        });
        assert_eq!((listing.members.len(), listing.unlisted), (1, 3));
        let me = &listing.members[0];
        assert_eq!(me.args, std::env::args().collect::<Vec<_>>());
        assert!(me.rss_bytes > 64 * 1024, "{me:?}");
        assert!(me.cpu_time.is_some(), "{me:?}");
        assert!(me.listening_ports.contains(&port), "{me:?} without {port}");
        assert!(!me.args_cut && !me.ports_cut);
        let at = socket.local_addr().expect("an address");
        let accepting = sockets::accepting(&sockets::listening("self"), at);
        assert_eq!(accepting.len(), 1, "{accepting:?}");
        assert!(me.sockets.contains(&accepting[0]), "{me:?}");
    }
}
