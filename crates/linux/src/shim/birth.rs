//! The first steps of a shim, just after fork.

use super::Shim;
use crate::{attributes::UMASK, signal_set::SignalSet};
use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    sys::{
        prctl,
        stat::{Mode, umask},
    },
    unistd::{chdir, setsid},
};
use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
};

/// Where the socket to the keeper is.
const KEEPER_FD: RawFd = 3;

/// Becomes a shim, in a process that the single-threaded keeper has just forked. Never returns: what the keeper had in
/// memory is not this process's to drop.
pub(crate) fn be_born(socket: &OwnedFd, base: Option<PathBuf>) -> ! {
    let lived = catch_unwind(AssertUnwindSafe(|| birth(socket, base)?.live()));
    let code = match lived {
        Ok(Ok(())) => 0,
        _ => 1,
    };
    // SAFETY: _exit runs no handlers and does not return.
    unsafe { libc::_exit(code) }
}

fn birth(socket: &OwnedFd, base: Option<PathBuf>) -> io::Result<Shim> {
    SignalSet::ALL.block()?;
    // A session of its own: no terminal and no group signal meant for the keeper reaches it.
    setsid()?;
    prctl::set_child_subreaper(true)?;
    prctl::set_dumpable(false)?;
    let _ = prctl::set_name(c"kennel-shim");
    // A run may last for weeks; where the service was started must not be held that long. All paths are absolute.
    chdir(c"/")?;
    // What commands inherit; the files of this process have modes of their own.
    umask(Mode::from_bits_truncate(UMASK));
    let keeper = keep_only(socket)?;
    Ok(Shim {
        keeper: Some(keeper),
        signals: SignalSet::exits().descriptor()?,
        work: None,
        base,
    })
}

/// Closes everything but the socket. What the parent holds, the keeper for other runs (the write ends of their gates above all)
/// must not live on here: a gate that is held by a sibling never shuts.
pub(super) fn keep_only(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let staged = fcntl(socket, FcntlArg::F_DUPFD_CLOEXEC(KEEPER_FD + 1))?;
    place(staged, KEEPER_FD, libc::O_CLOEXEC)?;
    let null = nix::fcntl::open(
        c"/dev/null",
        OFlag::O_RDWR | OFlag::O_CLOEXEC,
        Mode::empty(),
    )?;
    for standard in 0..KEEPER_FD {
        place(null.as_raw_fd(), standard, 0)?;
    }
    // It goes with the rest.
    std::mem::forget(null);
    // SAFETY: close_range takes integers. All other owners of descriptors in this memory belong to the keeper and are
    // never dropped or used here.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, KEEPER_FD + 1, RawFd::MAX, 0) };
    if closed != 0 {
        close_each()?;
    }
    // SAFETY: `place` has put the socket there, and no other owner of this number is ever used again.
    Ok(unsafe { OwnedFd::from_raw_fd(KEEPER_FD) })
}

fn place(from: RawFd, to: RawFd, flags: i32) -> io::Result<()> {
    // SAFETY: dup3 takes integers; whatever `to` was is not used again in this process.
    let placed = unsafe { libc::dup3(from, to, flags) };
    nix::errno::Errno::result(placed)?;
    Ok(())
}

/// For kernels before 5.9 and filters that refuse `close_range(2)`.
fn close_each() -> io::Result<()> {
    let end = crate::limits::open_files()?.soft;
    for fd in KEEPER_FD + 1..RawFd::try_from(end).unwrap_or(RawFd::MAX) {
        // SAFETY: as for close_range.
        unsafe { libc::close(fd) };
    }
    Ok(())
}
