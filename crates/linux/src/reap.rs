//! Wait statuses: read first, reaped after that.

use kennel_lifecycle::{Exit, Signal};
use nix::errno::Errno;
use std::{io, mem::MaybeUninit};

/// Result of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// This child has exited.
    Ended {
        /// Its process id, which is not reused until it is reaped.
        pid: i32,
        /// Its exit.
        exit: Exit,
    },
    /// There are children, and none of those asked for has exited.
    Nothing,
    /// There is no child (of those asked for).
    NoChild,
}

/// Returns a child that has exited, left unreaped. `__WALL` also sees children that do not send SIGCHLD.
pub fn peek_any() -> io::Result<Waited> {
    wait(libc::P_ALL, 0, libc::WNOWAIT | libc::WNOHANG)
}

/// Whether this child has exited. It is left unreaped.
pub fn has_ended(pid: i32) -> bool {
    peek(pid).is_some()
}

/// Returns the exit of this child. It is left unreaped.
pub fn peek(pid: i32) -> Option<Exit> {
    let extra = libc::WNOWAIT | libc::WNOHANG;
    match wait(libc::P_PID, pid.cast_unsigned(), extra) {
        Ok(Waited::Ended { exit, .. }) => Some(exit),
        Ok(Waited::Nothing | Waited::NoChild) | Err(_) => None,
    }
}

/// Returns a child that was stopped by a signal, this one or any; each stop is reported once, and only while it lasts.
pub fn stopped(child: Option<i32>) -> Option<i32> {
    let (kind, id) = match child {
        Some(pid) => (libc::P_PID, pid.cast_unsigned()),
        None => (libc::P_ALL, 0),
    };
    let flags = libc::WSTOPPED | libc::__WALL | libc::WNOHANG;
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: `info` is a local of the right type that outlives the call; the other arguments are integers.
    let waited = unsafe { libc::waitid(kind, id, info.as_mut_ptr(), flags) };
    Errno::result(waited).ok()?;
    // SAFETY: all zeroes is a valid siginfo_t, and waitid has written over it if a child was stopped.
    let info = unsafe { info.assume_init() };
    // SAFETY: waitid fills the SIGCHLD fields, and zeroes are a valid pid.
    let pid = unsafe { info.si_pid() };
    (pid != 0).then_some(pid)
}

/// Reaps any child that has exited.
pub fn reap_any() -> io::Result<Waited> {
    wait(libc::P_ALL, 0, libc::WNOHANG)
}

/// Reaps this child if it has exited.
pub fn reap(pid: i32) -> io::Result<Waited> {
    wait(libc::P_PID, pid.cast_unsigned(), libc::WNOHANG)
}

/// Waits for the exit of this child, which is sure to come, and reaps it.
pub fn await_end(pid: i32) -> io::Result<Waited> {
    wait(libc::P_PID, pid.cast_unsigned(), 0)
}

fn wait(kind: libc::idtype_t, id: libc::id_t, extra: i32) -> io::Result<Waited> {
    let flags = libc::WEXITED | libc::__WALL | extra;
    loop {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: `info` is a local of the right type that outlives the call; the other arguments are integers.
        let waited = unsafe { libc::waitid(kind, id, info.as_mut_ptr(), flags) };
        match Errno::result(waited) {
            Ok(_) => {
                // SAFETY: all zeroes is a valid siginfo_t, and waitid has written over it if a child had ended.
                return Ok(decode(&unsafe { info.assume_init() }));
            }
            Err(Errno::EINTR) => {}
            Err(Errno::ECHILD) => return Ok(Waited::NoChild),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Decodes a wait status of wait(2).
pub fn of_status(status: i32) -> Exit {
    if libc::WIFEXITED(status) {
        return Exit::Code(libc::WEXITSTATUS(status));
    }
    let signal = Signal::from_number(libc::WTERMSIG(status));
    signal.map_or(Exit::Unknown, |signal| Exit::Signal {
        signal,
        core_dumped: libc::WCOREDUMP(status),
    })
}

fn decode(info: &libc::siginfo_t) -> Waited {
    // SAFETY: waitid fills the SIGCHLD fields, and zeroes are a valid pid.
    let pid = unsafe { info.si_pid() };
    if pid == 0 {
        return Waited::Nothing;
    }
    // SAFETY: waitid fills the SIGCHLD fields.
    let status = unsafe { info.si_status() };
    let exit = match info.si_code {
        libc::CLD_EXITED => Exit::Code(status),
        code => Signal::from_number(status).map_or(Exit::Unknown, |signal| Exit::Signal {
            signal,
            core_dumped: code == libc::CLD_DUMPED,
        }),
    };
    Waited::Ended { pid, exit }
}
