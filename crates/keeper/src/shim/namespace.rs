//! A run's private pid namespace, and its first process (init), which is Kennel's.
//!
//! The kernel ends all processes of a pid namespace with its init, and lets init exit as the last of them
//! (`pid_namespaces(7)`): its exit proves that no process is left. The command is no child of init but of the shim,
//! born into the namespace, so its exit is collected like any other's. Init reaps orphaned processes, reports whether
//! any is left, and does nothing else. It exits with the shim: the kernel ensures that (`PR_SET_PDEATHSIG`).

use super::birth::keep_only;
use kennel_lifecycle::{Exit, PidNamespace, Signal, StartFailure, StartStage};
use kennel_linux::{
    fdpass,
    pidfd::PidFd,
    reap::{self, Waited},
    spawn::{self, Cloned, child, failure},
    tree,
};
use nix::{
    errno::Errno,
    fcntl::OFlag,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        prctl,
        signal::{SigSet, Signal as Caught},
        signalfd::{SfdFlags, SignalFd},
        socket::{AddressFamily, SockFlag, SockType, socketpair},
    },
    unistd::{pipe2, read, setsid, write},
};
use std::{
    fs::File,
    io::{self, Read},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    panic::{AssertUnwindSafe, catch_unwind},
};

/// Message of init: it holds nothing but its socket.
const READY: u8 = b'r';
/// Request of the shim: are other processes left? From then on init also reports when the last has gone.
const ASK: u8 = b'?';
/// Message of init: other processes are left.
const OTHERS: u8 = b'o';
/// Message of init: no other process is left.
const ALONE: u8 = b'a';

/// Longest wait for an answer. Init is only slower where a process has stopped it or traces it.
const ANSWER_MS: u16 = 1_000;

/// Exit code of the child of a trial.
const PROBE_CODE: i32 = 42;

/// The first process of a private pid namespace, as its shim sees it.
pub(super) struct Init {
    pid: i32,
    fd: PidFd,
    /// `None`: init has exited, or no more messages can come.
    socket: Option<OwnedFd>,
    asked: bool,
    /// The last message.
    heard: Option<u8>,
}

/// Lets `fork` make its child in such a pid namespace; returns init too, for the shim and for the tree.
pub(super) fn within<T>(
    namespace: PidNamespace,
    fork: impl FnOnce() -> Result<T, StartFailure>,
) -> Result<(T, Option<(Init, tree::Init)>), StartFailure> {
    if namespace == PidNamespace::Shared {
        return Ok((fork()?, None));
    }
    let failed = |error: io::Error| failure(StartStage::Namespace, &error, None);
    let init = make_init().map_err(failed)?;
    let child = init
        .of_tree()
        .map_err(failed)
        .and_then(|of_tree| Ok((fork()?, of_tree)));
    match child {
        Ok((child, of_tree)) => Ok((child, Some((init, of_tree)))),
        Err(failure) => {
            init.discard();
            Err(failure)
        }
    }
}

impl Init {
    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns init for a holder that may signal it.
    fn of_tree(&self) -> io::Result<tree::Init> {
        Ok(tree::Init {
            pid: self.pid,
            fd: PidFd::from_fd(self.fd.as_fd().try_clone_to_owned()?),
        })
    }

    /// Returns the descriptor to wait for.
    pub(super) fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    /// Whether other processes than the leader are left, which was reaped before: its orphans have become init's
    /// children before that. An init that does not answer may have some.
    pub(super) fn has_others(&mut self) -> bool {
        self.ask();
        while self.heard.is_none()
            && let Some(socket) = &self.socket
        {
            let mut wait = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
            if !poll(&mut wait, ANSWER_MS).is_ok_and(|ready| ready > 0) {
                return true;
            }
            self.hear();
        }
        self.heard == Some(OTHERS)
    }

    /// Whether no process but init is left. The leader was reaped before.
    pub(super) fn is_alone(&mut self) -> bool {
        self.ask();
        self.hear();
        self.socket.is_none()
    }

    /// Kills init, and with it all processes of its namespace. No process inside can have made it ignore this.
    pub(super) fn end(&self) {
        self.fd.signal(Signal::KILL);
    }

    /// Kills init where no other process was ever made.
    fn discard(self) {
        self.end();
        let _ = reap::await_end(self.pid);
    }

    fn ask(&mut self) {
        if !std::mem::replace(&mut self.asked, true)
            && let Some(socket) = &self.socket
            && write(socket, &[ASK]).is_err()
        {
            self.socket = None;
        }
    }

    fn hear(&mut self) {
        while let Some(socket) = &self.socket {
            let mut word = [0];
            match read(socket, &mut word) {
                Ok(1) => self.heard = Some(word[0]),
                Err(Errno::EINTR) => continue,
                Err(Errno::EAGAIN) => return,
                // Init has exited, and all processes of the namespace with it.
                Ok(_) | Err(_) => self.heard = Some(ALONE),
            }
            if self.heard == Some(ALONE) {
                self.socket = None;
            }
        }
    }
}

/// Makes a pid namespace for all children that this process makes from here on, and its first process.
fn make_init() -> io::Result<Init> {
    let (ours, its) = socketpair(
        AddressFamily::Unix,
        SockType::SeqPacket,
        None,
        SockFlag::SOCK_CLOEXEC,
    )?;
    enter_new()?;
    match spawn::clone_here()? {
        Cloned::Child => be_init(&its),
        Cloned::Parent(pid, fd) => {
            drop(its);
            let mut word = [0];
            if read(&ours, &mut word) != Ok(1) || word != [READY] {
                fd.signal(Signal::KILL);
                let _ = reap::await_end(pid);
                return Err(io::Error::other("the first process has ended"));
            }
            fdpass::set_nonblocking(&ours)?;
            Ok(Init {
                pid,
                fd,
                socket: Some(ours),
                asked: false,
                heard: None,
            })
        }
    }
}

/// Makes a pid namespace into which children are born from here on; the first of them is its init.
fn enter_new() -> io::Result<()> {
    // SAFETY: unshare takes an integer, and this process has one thread.
    Errno::result(unsafe { libc::unshare(libc::CLONE_NEWPID) })?;
    Ok(())
}

/// Never returns: values in the shim's memory are not this process's to drop.
fn be_init(socket: &OwnedFd) -> ! {
    // However init ends, no process of the namespace outlives it.
    let _ = catch_unwind(AssertUnwindSafe(|| live(socket)));
    // SAFETY: _exit runs no handlers and does not return.
    unsafe { libc::_exit(0) }
}

/// Runs init. Every signal is blocked, as in the shim.
fn live(socket: &OwnedFd) -> io::Result<()> {
    // The kernel kills init with the shim, whatever a process inside does. An earlier death of the shim shows as EOF on
    // its socket.
    prctl::set_pdeathsig(Caught::SIGKILL)?;
    setsid()?;
    let _ = prctl::set_name(c"kennel-init");
    let (socket, _) = keep_only(socket, None)?;
    fdpass::set_nonblocking(&socket)?;
    let mut mask = SigSet::empty();
    mask.add(Caught::SIGCHLD);
    let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    write(&socket, &[READY])?;
    let mut asked = false;
    let mut said_alone = false;
    loop {
        let mut wait = [
            PollFd::new(signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(socket.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut wait, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        while let Ok(Some(_)) = signals.read_signal() {}
        let mut word = [0];
        let asks = match read(&socket, &mut word) {
            Ok(1) => true,
            Err(Errno::EAGAIN | Errno::EINTR) => false,
            // EOF: the shim is gone.
            Ok(_) | Err(_) => return Ok(()),
        };
        let alone = reap_all()?;
        asked |= asks;
        if asked && alone && !said_alone {
            said_alone = true;
            write(&socket, &[ALONE])?;
        } else if asks {
            write(&socket, &[OTHERS])?;
        }
    }
}

/// Reaps all exited children; `true`: none is left.
fn reap_all() -> io::Result<bool> {
    loop {
        match reap::reap_any()? {
            Waited::Ended { .. } => {}
            Waited::Nothing => return Ok(false),
            Waited::NoChild => return Ok(true),
        }
    }
}

/// Whether such a namespace can be made here: makes one with its /proc, and drops it. The caller is single-threaded.
pub(crate) fn try_out() -> io::Result<Result<(), String>> {
    in_child(try_below).map_err(|(_, error)| error)
}

/// Lets a child of this process try something, and returns its result; an error, with the step that failed, where no
/// child could. The caller is single-threaded.
pub(crate) fn in_child(
    trial: impl FnOnce() -> Result<(), String>,
) -> Result<Result<(), String>, (&'static str, io::Error)> {
    let (said, say) = pipe2(OFlag::O_CLOEXEC).map_err(|errno| ("pipe", errno.into()))?;
    match spawn::clone_here().map_err(|error| ("clone", error))? {
        Cloned::Child => {
            let text = trial().err().unwrap_or_default();
            let _ = write(&say, text.as_bytes());
            // SAFETY: _exit runs no handlers and does not return.
            unsafe { libc::_exit(if text.is_empty() { PROBE_CODE } else { 1 }) }
        }
        Cloned::Parent(pid, _) => {
            drop(say);
            let ended = reap::await_end(pid).map_err(|error| ("wait", error))?;
            let mut why = String::new();
            let read = File::from(said).read_to_string(&mut why);
            read.map_err(|error| ("pipe", error))?;
            Ok(judge(&ended, why))
        }
    }
}

/// Judges the child of a trial. A child that ends otherwise and without a message has shown nothing.
fn judge(ended: &Waited, why: String) -> Result<(), String> {
    match ended {
        Waited::Ended { exit, .. } if *exit == Exit::Code(PROBE_CODE) => Ok(()),
        Waited::Ended { exit, .. } if why.is_empty() => Err(format!(
            "the trial of a namespace has ended without a word: {exit:?}"
        )),
        Waited::Ended { .. } | Waited::Nothing | Waited::NoChild => Err(why),
    }
}

fn try_below() -> Result<(), String> {
    enter_new().map_err(|error| format!("unshare(CLONE_NEWPID): {error}"))?;
    in_child(try_proc).map_err(|(step, error)| format!("{step}: {error}"))?
}

fn try_proc() -> Result<(), String> {
    child::mount_own_proc().map_err(|step| {
        let error = io::Error::last_os_error();
        match step {
            child::STEP_NAMESPACE => format!("unshare(CLONE_NEWNS): {error}"),
            _ => format!("mount of /proc: {error}"),
        }
    })?;
    match std::fs::read_link("/proc/self") {
        Ok(own) if own.as_os_str() == "1" => Ok(()),
        seen => Err(format!(
            "a mounted /proc shows the first process as {seen:?}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: N-10b
    #[test]
    fn namespace_probe_needs_its_exit_code() {
        let ended = |exit| Waited::Ended { pid: 7, exit };
        let killed = Exit::Signal {
            signal: Signal::KILL,
            core_dumped: false,
        };
        assert!(judge(&ended(Exit::Code(PROBE_CODE)), String::new()).is_ok());
        for exit in [Exit::Code(0), Exit::Code(1), killed] {
            let why = judge(&ended(exit), String::new()).expect_err("nothing is shown");
            assert!(!why.is_empty());
        }
        let judged = judge(&ended(Exit::Code(1)), "mount".into());
        assert_eq!(judged, Err("mount".to_owned()));
    }
}
