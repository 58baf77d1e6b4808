//! The first steps of a shim, just after fork.

use super::{RUNS_MAX, Shim};
use kennel_linux::{attributes::UMASK, identity, own_state::OwnState, signal_set::SignalSet};
use nix::{
    fcntl::OFlag,
    sys::{
        prctl,
        stat::{Mode, umask},
    },
    unistd::{chdir, setsid},
};
use std::{
    fs::File,
    io,
    mem::ManuallyDrop,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    rc::Rc,
};

/// Descriptor of the socket to the keeper: this process has no input.
pub(super) const KEEPER_FD: RawFd = libc::STDIN_FILENO;
/// Descriptor of the file of exit records, if there is one.
const EXITS_FD: RawFd = libc::STDERR_FILENO + 1;

/// Becomes a shim, in a process that the single-threaded zygote or keeper has just forked. Never returns: values in
/// their memory are not this process's to drop.
pub(crate) fn be_born(socket: &OwnedFd, exits: Option<&File>, base: Option<PathBuf>) -> ! {
    // Never dropped: the kernel closes all descriptors when the process exits.
    let lived = catch_unwind(AssertUnwindSafe(|| {
        ManuallyDrop::new(birth(socket, exits, base)?).live()
    }));
    let code = match lived {
        Ok(Ok(())) => 0,
        _ => 1,
    };
    // SAFETY: _exit runs no handlers and does not return.
    unsafe { libc::_exit(code) }
}

fn birth(socket: &OwnedFd, exits: Option<&File>, base: Option<PathBuf>) -> io::Result<Shim> {
    SignalSet::ALL.block()?;
    // Reset once for all commands.
    SignalSet::reset()?;
    // In a separate session, the keeper's terminal and group signals do not reach the shim.
    setsid()?;
    prctl::set_child_subreaper(true)?;
    prctl::set_dumpable(false)?;
    let _ = prctl::set_name(c"kennel-shim");
    // A run may last for weeks and must not pin the directory in which the service was started. All paths are absolute.
    chdir(c"/")?;
    // Commands inherit this umask; the shim's own files have explicit modes.
    umask(Mode::from_bits_truncate(UMASK));
    let (keeper, exits) = keep_only(socket, exits)?;
    // The shim has no output either: its signalfd gets this number.
    nix::unistd::close(libc::STDOUT_FILENO)?;
    Ok(Shim {
        keeper: Some(keeper),
        exits: exits.map(|exits| Rc::new(File::from(exits))),
        signals: SignalSet::exits().descriptor()?,
        work: None,
        base,
        // Without a baseline the shim is not reused.
        as_born: OwnState::take().ok(),
        runs_left: RUNS_MAX,
        identity: identity::own().ok(),
    })
}

/// Closes everything but the socket, and the file of exit records where there is one. Descriptors that the keeper holds
/// for other runs (the write ends of their gates above all) must not stay open here: a gate that a sibling holds never
/// shuts. INV-13.
pub(super) fn keep_only(
    socket: &OwnedFd,
    exits: Option<&File>,
) -> io::Result<(OwnedFd, Option<OwnedFd>)> {
    let stage = |fd: RawFd| -> io::Result<RawFd> {
        // Already above all reserved numbers.
        if fd > EXITS_FD {
            return Ok(fd);
        }
        // SAFETY: fcntl takes integers; close_range below closes the copy.
        let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, EXITS_FD + 1) };
        Ok(nix::errno::Errno::result(copy)?)
    };
    // Socket and file are staged before either is placed: one may be where the other belongs.
    let staged = stage(socket.as_raw_fd())?;
    let exits = exits.map(|file| stage(file.as_raw_fd())).transpose()?;
    place(staged, KEEPER_FD, libc::O_CLOEXEC)?;
    if let Some(exits) = exits {
        place(exits, EXITS_FD, libc::O_CLOEXEC)?;
    }
    let null = nix::fcntl::open(
        c"/dev/null",
        OFlag::O_RDWR | OFlag::O_CLOEXEC,
        Mode::empty(),
    )?;
    for standard in [libc::STDOUT_FILENO, libc::STDERR_FILENO] {
        place(null.as_raw_fd(), standard, 0)?;
    }
    // `close_range` below closes `null`.
    std::mem::forget(null);
    let others = EXITS_FD + RawFd::from(exits.is_some());
    // SAFETY: close_range takes integers. All other owners of descriptors in this address space belong to the keeper
    // and are never dropped or used here.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, others, RawFd::MAX, 0) };
    if closed != 0 {
        close_each(others)?;
    }
    // SAFETY: `place` has put the socket there, and no other owner of this number is ever used again.
    let keeper = unsafe { OwnedFd::from_raw_fd(KEEPER_FD) };
    // SAFETY: as for the socket, `place` put the file there.
    let exits = exits.map(|_| unsafe { OwnedFd::from_raw_fd(EXITS_FD) });
    Ok((keeper, exits))
}

fn place(from: RawFd, to: RawFd, flags: i32) -> io::Result<()> {
    // SAFETY: dup3 takes integers; whatever `to` was is not used again in this process.
    let placed = unsafe { libc::dup3(from, to, flags) };
    nix::errno::Errno::result(placed)?;
    Ok(())
}

/// For kernels before 5.9 and filters that refuse `close_range(2)`.
fn close_each(from: RawFd) -> io::Result<()> {
    let end = kennel_linux::limits::open_files()?;
    for fd in from..RawFd::try_from(end).unwrap_or(RawFd::MAX) {
        // SAFETY: close takes an integer; owners of these numbers are never used.
        unsafe { libc::close(fd) };
    }
    Ok(())
}
