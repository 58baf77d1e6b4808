//! The server's end of the socket to the keeper: how the server process finds it.

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, FdFlag, fcntl},
    sys::socket::{SockType, getsockopt, sockopt},
};
use std::{
    io,
    os::fd::{FromRawFd, OwnedFd},
    sync::atomic::{AtomicBool, Ordering},
};

/// The descriptor that the server inherits.
pub(crate) const SERVER_SOCKET_FD: i32 = 3;

/// Tells the server that it was started by a keeper; the value is the keeper's pid.
pub(crate) const KEEPER_PID_VAR: &str = "KENNEL_KEEPER_PID";

static TAKEN: AtomicBool = AtomicBool::new(false);

/// Takes the server's end of the socket to the keeper, once per process, and makes the process undumpable: a command
/// of the same uid must not read its memory or environment. Call it first thing, before any thread or file.
/// `NotConnected` where this process was not started by a keeper.
pub fn server_socket() -> io::Result<OwnedFd> {
    let parent = std::os::unix::process::parent_id().to_string();
    let born_so = std::env::var(KEEPER_PID_VAR).is_ok_and(|pid| pid == parent);
    if !born_so || TAKEN.swap(true, Ordering::SeqCst) {
        return Err(io::ErrorKind::NotConnected.into());
    }
    nix::sys::prctl::set_dumpable(false)?;
    #[cfg(debug_assertions)]
    kennel_linux::crash_point::i_am_server();
    // SAFETY: the keeper, which is our parent and named us in the environment, has put the socket at this number
    // before exec, and `TAKEN` lets only one owner be made of it.
    let socket = unsafe { OwnedFd::from_raw_fd(SERVER_SOCKET_FD) };
    if getsockopt(&socket, sockopt::SockType) != Ok(SockType::SeqPacket) {
        // An unexpected descriptor is not this code's to close.
        std::mem::forget(socket);
        return Err(Errno::ENOTSOCK.into());
    }
    fcntl(&socket, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    Ok(socket)
}
