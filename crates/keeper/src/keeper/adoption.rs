//! Adoption of runs that have outlived an earlier keeper: their shims are contacted at their sockets before a server
//! starts.
//!
//! An answer counts as far as the kernel confirms it. A shim that does not answer in time is awaited while a server
//! works. A process with a wrong answer is left as it is: recovery looks at the row, as it does where no process
//! listens at the socket.

use super::reconnect::ReconnectSockets;
use crate::{
    rundir,
    wire::{self, Decoded, FromShim, ToShim, adoption::WireAdoptable, versions::SHIM},
};
use kennel_lifecycle::{HostIdentity, RunId, RunIdentity};
use kennel_linux::{
    fdpass::{self, Received},
    identity, peer,
    pidfd::PidFd,
    procfs, tree,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Time for which a server waits for the next shim to answer.
const ANSWERS_WAIT: Duration = Duration::from_secs(5);

/// A process behind a socket that has not answered yet.
pub(super) struct AwaitedShim {
    pub(super) run: RunId,
    pub(super) socket: OwnedFd,
    pid: i32,
    process: PidFd,
}

/// A run that can be adopted.
pub(super) struct Adoptable {
    pub(super) id: RunId,
    /// Kinds of messages that its shim does not know.
    pub(super) missing: Vec<&'static str>,
    pub(super) socket: OwnedFd,
    /// The shim, which is no child of this process.
    pub(super) shim: PidFd,
    pub(super) identity: RunIdentity,
    /// What the shim has said of it.
    pub(super) said: WireAdoptable,
    pub(super) run_dir: PathBuf,
    pub(super) leader: PidFd,
    pub(super) init: Option<tree::Init>,
    pub(super) outputs: (OwnedFd, OwnedFd),
    /// Write end of standard input, where that is an open pipe.
    pub(super) input: Option<OwnedFd>,
    /// Socket for the reports of its processes.
    pub(super) notify: Option<OwnedFd>,
}

/// Answer of a process behind a socket.
pub(super) enum Heard {
    Adoptable(Box<Adoptable>),
    /// It is of a version that this one has no level of messages in common with: it is awaited until it exits.
    OtherLevel(AwaitedShim),
    /// No credible answer, or the process is gone.
    Nothing,
}

impl AwaitedShim {
    /// Connects to the socket of a run. `None`: no process of this uid is behind it, or the file is no socket.
    fn connect(sockets: &ReconnectSockets, run: RunId) -> Option<Self> {
        Self::new(run, sockets.connect(run)?).ok()
    }

    /// Identifies the listening process; only a process of this uid can be a shim of this installation.
    pub(super) fn new(run: RunId, socket: OwnedFd) -> io::Result<Self> {
        let (who, process) = peer::process(&socket)?;
        let other = || io::Error::from(io::ErrorKind::PermissionDenied);
        if who.uid != nix::unistd::geteuid().as_raw() || who.pid <= 0 {
            return Err(other());
        }
        Ok(Self {
            run,
            socket,
            pid: who.pid,
            process,
        })
    }

    /// Receives the answer.
    pub(super) fn hear(self, data_dir: &Path, host: &HostIdentity) -> Heard {
        let Ok(Received::Message(bytes, mut fds)) = fdpass::receive(&self.socket) else {
            return Heard::Nothing;
        };
        match wire::decode::<FromShim>(&bytes, &mut fds) {
            Ok(Decoded::Known {
                head,
                message: FromShim::Adoptable(said),
                ..
            }) if said.versions.speaks.common(SHIM).is_some() => {
                if head.run != Some(self.run) {
                    return Heard::Nothing;
                }
                let found = self.believe(*said, fds, data_dir, host);
                found.map_or(Heard::Nothing, |found| Heard::Adoptable(Box::new(found)))
            }
            Ok(
                Decoded::Known {
                    message: FromShim::Adoptable(_),
                    ..
                }
                | Decoded::Later { .. },
            ) => self.leave_to_itself(),
            Ok(_) | Err(_) => Heard::Nothing,
        }
    }

    /// Leaves the run to its shim, with which this keeper has no level in common: the shim sees the end of the socket,
    /// and continues as without a keeper. Its exit is awaited.
    fn leave_to_itself(self) -> Heard {
        match self.process.as_fd().try_clone_to_owned() {
            Ok(socket) => Heard::OtherLevel(Self { socket, ..self }),
            Err(_) => Heard::Nothing,
        }
    }

    fn believe(
        self,
        said: WireAdoptable,
        fds: Vec<OwnedFd>,
        data_dir: &Path,
        host: &HostIdentity,
    ) -> Option<Adoptable> {
        let missing = said.versions.missing::<ToShim>();
        let identity = RunIdentity {
            command: said.command,
            shim: said.shim,
            cgroup: said.cgroup.clone(),
            host: said.keepsake.host.clone(),
        };
        // The kernel's credentials of the listening process are compared with the answer.
        let is_shim = identity.shim.pid == self.pid
            && identity::of(self.pid, &self.process).ok()? == identity.shim;
        if !identity.host.is_same_as(host) || !is_shim {
            return None;
        }
        let mut fds = fds.into_iter();
        let leader = PidFd::from_fd(fds.next()?);
        let is_leader = leader.handle() == identity.command.pidfs_handle
            && (!leader.is_unreaped()
                || procfs::stat(identity.command.pid).is_ok_and(|stat| {
                    stat.start_ticks == identity.command.start_ticks && stat.ppid == self.pid
                }));
        if !is_leader {
            return None;
        }
        let init = match said.init {
            Some(pid) => Some(tree::Init {
                pid,
                fd: PidFd::from_fd(fds.next()?),
            }),
            None => None,
        };
        Some(Adoptable {
            id: self.run,
            missing,
            socket: self.socket,
            shim: self.process,
            identity,
            run_dir: rundir::path(data_dir, self.run),
            leader,
            init,
            outputs: (fds.next()?, fds.next()?),
            input: if said.input { Some(fds.next()?) } else { None },
            notify: if said.notify { Some(fds.next()?) } else { None },
            said,
        })
    }
}

/// Returns all runs that can be adopted, and the sockets whose processes have not answered yet.
pub(super) fn collect(
    sockets: &ReconnectSockets,
    data_dir: &Path,
    host: &HostIdentity,
) -> (Vec<Adoptable>, Vec<AwaitedShim>) {
    let connected = sockets
        .all()
        .into_iter()
        .filter_map(|run| AwaitedShim::connect(sockets, run));
    let mut waiting: Vec<AwaitedShim> = connected.collect();
    let (mut found, mut of_other_levels) = (Vec::new(), Vec::new());
    let mut give_up = Instant::now() + ANSWERS_WAIT;
    while !waiting.is_empty() {
        let left = give_up.saturating_duration_since(Instant::now());
        let answered = answered(&waiting, left);
        if !answered.contains(&true) {
            break;
        }
        let mut answered = answered.into_iter();
        let here = waiting.extract_if(.., |_| answered.next().unwrap_or(false));
        for awaited in here {
            match awaited.hear(data_dir, host) {
                Heard::Adoptable(adoptable) => found.push(*adoptable),
                Heard::OtherLevel(awaited) => of_other_levels.push(awaited),
                Heard::Nothing => {}
            }
        }
        // On a busy host many answers come: each extends the wait for the next.
        give_up = Instant::now() + ANSWERS_WAIT;
    }
    waiting.extend(of_other_levels);
    (found, waiting)
}

/// Marks the processes that have answered after at most this time.
fn answered(waiting: &[AwaitedShim], wait: Duration) -> Vec<bool> {
    let sockets = waiting.iter().map(|awaited| awaited.socket.as_fd());
    let mut fds: Vec<PollFd<'_>> = sockets
        .map(|socket| PollFd::new(socket, PollFlags::POLLIN))
        .collect();
    let wait = PollTimeout::try_from(wait);
    // An interrupted wait counts as one without an answer: signals are blocked here.
    if poll(&mut fds, wait.unwrap_or(PollTimeout::ZERO)).is_err() {
        return Vec::new();
    }
    let ready = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
    fds.iter().map(ready).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        sleeper::Sleeper,
        values::Levels,
        wire::{
            Head,
            adoption::{WireKeepsake, WireMemory},
            versions::Versions,
        },
    };
    use kennel_lifecycle::{Containment, Held, Recovery};
    use nix::sys::socket::{SockFlag, accept4};
    use std::os::fd::{AsRawFd, FromRawFd};

    fn run() -> RunId {
        RunId::from_u128(7)
    }

    /// This process as a shim, with a child.
    struct Shim {
        sockets: ReconnectSockets,
        data: tempfile::TempDir,
        /// No process answers at it by itself.
        listener: OwnedFd,
        leader: Sleeper,
    }

    impl Shim {
        fn new() -> Self {
            let data = tempfile::tempdir().expect("a directory");
            let sockets = ReconnectSockets::open(data.path());
            let listener = sockets.make(run()).expect("a socket");
            let backlog = nix::sys::socket::Backlog::new(8).expect("a number");
            nix::sys::socket::listen(&listener, backlog).expect("it listens");
            Self {
                sockets,
                data,
                listener,
                leader: Sleeper::new(),
            }
        }

        fn says(&self) -> WireAdoptable {
            let policy = kennel_lifecycle::Policy {
                recovery: Some(Recovery::Adopt),
                ..kennel_lifecycle::Policy::default()
            };
            WireAdoptable {
                versions: Versions::of_shim(),
                command: self.leader.identity(),
                shim: identity::own().expect("own identity"),
                init: None,
                cgroup: None,
                policy: policy.into(),
                keepsake: WireKeepsake {
                    held: Held {
                        by: Containment::Subreaper,
                        gaps: Vec::new(),
                    },
                    host: identity::host().expect("this host"),
                },
                memory: WireMemory::default(),
                leader_left_at: None,
                stopping_since: None,
                input: false,
                notify: false,
            }
        }

        /// Whether this answer is accepted, with a descriptor of `leader`.
        fn is_believed(&self, said: WireAdoptable, leader: &PidFd) -> bool {
            let awaited = AwaitedShim::connect(&self.sockets, run()).expect("a shim listens");
            let (out, err) = nix::unistd::pipe().expect("a pipe");
            let leader = leader.as_fd().try_clone_to_owned().expect("a copy");
            let host = identity::host().expect("this host");
            let believed = awaited.believe(said, vec![leader, out, err], self.data.path(), &host);
            believed.is_some()
        }
    }

    // promise: R-52
    #[test]
    fn shim_claims_are_verified_with_the_kernel() {
        let shim = Shim::new();
        let leader = || shim.leader.pidfd();
        assert!(shim.is_believed(shim.says(), &leader()));

        let lie = |change: fn(&mut WireAdoptable)| {
            let mut said = shim.says();
            change(&mut said);
            shim.is_believed(said, &leader())
        };
        assert!(!lie(|said| said.shim.pid += 1), "not who listens");
        assert!(
            !lie(|said| said.shim.start_ticks += 1),
            "its number came again"
        );
        assert!(
            !lie(|said| said.keepsake.host.pidns_inode += 1),
            "other numbers"
        );
        assert!(
            !lie(|said| said.keepsake.host.init_start_ticks = Some(1)),
            "a former namespace of the same inode"
        );
        assert!(
            !lie(|said| said.keepsake.host.boot_id.push('x')),
            "another boot"
        );
        assert!(
            !lie(|said| said.command.start_ticks += 1),
            "another command"
        );
        let own = identity::own().expect("own identity");
        let mut said = shim.says();
        said.command = own;
        let fd = PidFd::open(own.pid).expect("it lives");
        assert!(!shim.is_believed(said, &fd), "no child of the shim");
    }

    /// What is heard of a shim of other versions, and whether its socket is closed then.
    fn heard_of(change: impl FnOnce(&mut Versions)) -> (Heard, bool) {
        let shim = Shim::new();
        let awaited = AwaitedShim::connect(&shim.sockets, run()).expect("a shim listens");
        let fd = accept4(shim.listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC).expect("a keeper");
        // SAFETY: accept4 has just returned this descriptor, and nothing else owns it.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut said = shim.says();
        change(&mut said.versions);
        let said = FromShim::Adoptable(Box::new(said));
        let (out, err) = nix::unistd::pipe().expect("a pipe");
        let leader = shim.leader.pidfd();
        let fds = [leader.as_fd(), out.as_fd(), err.as_fd()];
        wire::send(&socket, Head::of_run(run()), &said, &fds).expect("it is sent");
        let heard = awaited.hear(shim.data.path(), &identity::host().expect("this host"));
        fdpass::set_nonblocking(&socket).expect("a socket");
        let is_closed = matches!(fdpass::receive(&socket), Ok(Received::Eof));
        (heard, is_closed)
    }

    // promise: A-22i
    #[test]
    fn shim_without_common_level_is_not_adopted() {
        let Levels { min, max } = SHIM;
        for (min, max) in [(min, max + 1), (min - 1, max)] {
            let (heard, is_closed) = heard_of(|of| of.speaks = Levels { min, max });
            assert!(matches!(heard, Heard::Adoptable(_)) && !is_closed);
        }
        for (min, max) in [(max + 1, max + 2), (min - 1, min - 1)] {
            let (heard, is_closed) = heard_of(|of| of.speaks = Levels { min, max });
            let Heard::OtherLevel(awaited) = heard else {
                panic!("it is {min}-{max}");
            };
            // The keeper awaits this shim's exit like that of a silent shim.
            assert!(is_closed && awaited.run == run());
            let host = identity::host().expect("this host");
            let next = awaited.hear(Path::new("/"), &host);
            assert!(matches!(next, Heard::Nothing), "it has exited");
        }
    }

    #[test]
    fn message_kinds_that_a_shim_lacks_are_reported() {
        let (heard, _) = heard_of(|of| of.knows.retain(|kind| kind != "leave"));
        let Heard::Adoptable(found) = heard else {
            panic!("it has a level in common");
        };
        assert_eq!(found.missing, ["leave"]);
    }

    // promise: R-52
    #[test]
    fn silent_shim_is_reported_as_late() {
        let shim = Shim::new();
        let host = identity::host().expect("this host");
        let (found, late) = collect(&shim.sockets, shim.data.path(), &host);
        assert!(found.is_empty());
        let late: Vec<RunId> = late.iter().map(|awaited| awaited.run).collect();
        assert_eq!(late, [run()], "and not given up either");
        assert_eq!(shim.sockets.all(), [run()], "a shim listens");
    }
}
