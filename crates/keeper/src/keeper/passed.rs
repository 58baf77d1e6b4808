//! Listening sockets that a service manager has made and passed to this process, as `sd_listen_fds(3)` describes.
//!
//! A passed socket takes the place of the one that the keeper would bind for the same address, under the rules of that
//! address: no option of `--listen` is accepted and ignored.

use super::{KeeperError, ListenAddress};
use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, SockType, SockaddrLike as _, SockaddrStorage, getsockname, getsockopt,
        sockopt,
    },
    unistd::{getegid, geteuid},
};
use std::{
    fs, io,
    net::SocketAddr,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
        unix::fs::{FileTypeExt, MetadataExt},
    },
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
};

/// The descriptor of the first one.
const FIRST_FD: RawFd = 3;

static TAKEN: AtomicBool = AtomicBool::new(false);

/// Passed sockets that no address has claimed yet.
#[derive(Default)]
pub(super) struct PassedSockets(Vec<NamedSocket>);

struct NamedSocket {
    /// Its name in `LISTEN_FDNAMES`.
    name: String,
    bound: Bound,
    socket: OwnedFd,
}

/// Address of a socket, as the kernel reports it.
#[derive(Debug, PartialEq, Eq)]
enum Bound {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

impl PassedSockets {
    /// Takes the sockets with these names, in the order of their descriptors, once per process. They are closed at
    /// execve(2) from here on: no run inherits one.
    pub(super) fn take(names: &[String]) -> Result<Self, KeeperError> {
        if names.is_empty() || TAKEN.swap(true, Ordering::SeqCst) {
            return Ok(Self::default());
        }
        let sockets = (FIRST_FD..).zip(names);
        let taken = sockets.map(|(fd, name)| take(fd, name).map_err(unusable(name)));
        Ok(Self(taken.collect::<Result<_, _>>()?))
    }

    /// Returns the socket that is bound to this address; `None`: none is.
    pub(super) fn claim(
        &mut self,
        address: &ListenAddress,
    ) -> Result<Option<OwnedFd>, KeeperError> {
        let found = self.0.iter().position(|passed| passed.bound.is(address));
        let Some(NamedSocket { name, socket, .. }) = found.map(|at| self.0.swap_remove(at)) else {
            return Ok(None);
        };
        check_file(address).map_err(unusable(&name))?;
        Ok(Some(socket))
    }

    /// Refuses a socket that no address has claimed: clients would connect to it and wait for ever.
    pub(super) fn all_claimed(&self) -> Result<(), KeeperError> {
        let Some(NamedSocket { name, bound, .. }) = self.0.first() else {
            return Ok(());
        };
        let bound = match bound {
            Bound::Unix(path) => format!("unix:{}", path.display()),
            Bound::Tcp(address) => format!("tcp:{address}"),
        };
        let why = format!("it is bound to {bound}, and --listen does not name that address");
        Err(unusable(name)(io::Error::other(why)))
    }
}

impl Bound {
    fn is(&self, address: &ListenAddress) -> bool {
        match (self, address) {
            (Self::Unix(own), ListenAddress::Unix { path, .. }) => own == path,
            (Self::Tcp(own), ListenAddress::Tcp(address)) => own == address,
            (Self::Unix(_), ListenAddress::Tcp(_)) | (Self::Tcp(_), ListenAddress::Unix { .. }) => {
                false
            }
        }
    }
}

fn unusable(name: &str) -> impl FnOnce(io::Error) -> KeeperError + use<> {
    let name = name.to_owned();
    move |source| KeeperError::PassedSocket { name, source }
}

fn take(fd: RawFd, name: &str) -> io::Result<NamedSocket> {
    // SAFETY: fcntl takes integers.
    let found = Errno::result(unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) });
    found.map_err(|_| io::Error::other(format!("descriptor {fd} is not open")))?;
    // SAFETY: the service manager has passed this open descriptor to this process, which has not used it before, and
    // `TAKEN` lets only one owner be made of it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    match bound(&socket)? {
        Some(bound) => Ok(NamedSocket {
            name: name.to_owned(),
            bound,
            socket,
        }),
        None => Err(io::Error::other(
            "it is not a listening stream socket with a path or a port",
        )),
    }
}

/// Returns the address of a listening socket; `None`: it is something else.
fn bound(socket: &OwnedFd) -> io::Result<Option<Bound>> {
    let is_stream = getsockopt(socket, sockopt::SockType) == Ok(SockType::Stream);
    if !is_stream || getsockopt(socket, sockopt::AcceptConn) != Ok(true) {
        return Ok(None);
    }
    let address: SockaddrStorage = getsockname(socket.as_raw_fd())?;
    Ok(match address.family() {
        Some(AddressFamily::Unix) => {
            let path = address.as_unix_addr().and_then(|address| address.path());
            path.map(|path| Bound::Unix(path.to_owned()))
        }
        Some(AddressFamily::Inet) => address
            .as_sockaddr_in()
            .map(|address| Bound::Tcp(SocketAddr::V4((*address).into()))),
        Some(AddressFamily::Inet6) => address
            .as_sockaddr_in6()
            .map(|address| Bound::Tcp(SocketAddr::V6((*address).into()))),
        _ => None,
    })
}

/// Checks that the file of a socket is what the keeper would have made of it.
fn check_file(address: &ListenAddress) -> io::Result<()> {
    let ListenAddress::Unix { path, mode, gid } = address else {
        return Ok(());
    };
    let file = fs::symlink_metadata(path)?;
    if !file.file_type().is_socket() {
        return Err(io::Error::other("its file is gone, another one is there"));
    }
    let (own, found) = (geteuid().as_raw(), file.uid());
    if found != own {
        let why = format!(
            "its file belongs to user {found}, and the service runs as user {own} (SocketUser=)"
        );
        return Err(io::Error::other(why));
    }
    let found = file.mode() & 0o777;
    if found != *mode {
        let why =
            format!("its file has mode {found:04o}, and --listen says {mode:04o} (SocketMode=)");
        return Err(io::Error::other(why));
    }
    // The group matters only if its members may connect.
    let (wanted, found) = (gid.unwrap_or_else(|| getegid().as_raw()), file.gid());
    if mode & 0o070 != 0 && found != wanted {
        let why =
            format!("its file belongs to group {found}, and --listen says {wanted} (SocketGroup=)");
        return Err(io::Error::other(why));
    }
    Ok(())
}
