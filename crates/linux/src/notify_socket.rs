//! The notify socket of a run: its processes send datagrams, each with its sender as the kernel reports it.

use crate::{
    fdpass::{self, Datagram},
    own_file::{open_dir, remove_in},
};
use nix::{
    errno::Errno,
    fcntl::AtFlags,
    sys::{
        socket::{AddressFamily, SockFlag, SockType, UnixAddr, bind, setsockopt, socket, sockopt},
        stat::{Mode, fchmod},
    },
    unistd::{Uid, fchownat},
};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::Path,
};

/// Longest path that a process can send to: `sun_path` of unix(7) with its NUL.
pub const PATH_BYTES_MAX: usize = 107;

/// `SO_PASSPIDFD` of the kernel's `asm-generic/socket.h`.
const SO_PASSPIDFD: libc::c_int = 76;

/// A bound socket.
#[derive(Debug)]
pub struct NotifySocket(OwnedFd);

impl NotifySocket {
    /// Binds `name` in `dir`, replacing an earlier socket of that name. The file has mode 0600, and belongs to `owner`
    /// where that is given.
    pub fn bind(dir: &Path, name: &str, owner: Option<u32>) -> io::Result<Self> {
        let dir = open_dir(dir)?;
        remove_in(&dir, name)?;
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Unix, SockType::Datagram, flags, None)?;
        // The kernel's unix_bind gives the file the mode of the socket.
        fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
        setsockopt(&socket, sockopt::PassCred, &true)?;
        pass_processes(&socket)?;
        // A socket address has at most 108 bytes, and the path of a data directory may be longer.
        let path = format!("/proc/self/fd/{}/{name}", dir.as_raw_fd());
        bind(socket.as_raw_fd(), &UnixAddr::new(path.as_str())?)?;
        if let Some(owner) = owner.map(Uid::from_raw) {
            let flags = AtFlags::AT_SYMLINK_NOFOLLOW;
            let given = fchownat(&dir, name, Some(owner), None, flags);
            if let Err(errno) = given {
                remove_in(&dir, name)?;
                return Err(errno.into());
            }
        }
        Ok(Self(socket))
    }

    /// Takes a socket that was bound before.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Reads the first datagram, and leaves it there.
    pub fn peek(&self) -> io::Result<Option<Datagram>> {
        fdpass::peek_datagram(&self.0)
    }

    /// Removes the first datagram. Descriptors that came with it are closed.
    pub fn drop_first(&self) {
        // A datagram that cannot be received stays queued.
        let _ = fdpass::receive_datagram(&self.0);
    }
}

impl AsFd for NotifySocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Removes `name` from `dir`; a missing file is no error.
pub fn remove(dir: &Path, name: &str) -> io::Result<()> {
    match open_dir(dir) {
        Ok(dir) => remove_in(&dir, name),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Requests the sender with each datagram. Linux 6.5 passes the process itself. Before, its number has to suffice.
fn pass_processes(socket: &OwnedFd) -> io::Result<()> {
    let on: libc::c_int = 1;
    let len = libc::socklen_t::try_from(size_of_val(&on)).map_err(io::Error::other)?;
    let fd = socket.as_raw_fd();
    // SAFETY: `on` is an int of the given length, and outlives the call.
    let set = unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            SO_PASSPIDFD,
            (&raw const on).cast(),
            len,
        )
    };
    match Errno::result(set) {
        Ok(_) | Err(Errno::ENOPROTOOPT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::Descent;
    use std::os::unix::{fs::PermissionsExt, net::UnixDatagram};

    // promise: RW-71
    #[test]
    fn peeked_datagram_has_its_sender_until_taken() {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = NotifySocket::bind(dir.path(), "notify", None).expect("bound");
        let path = dir.path().join("notify");
        let mode = std::fs::metadata(&path).expect("it is there").permissions();
        assert_eq!(mode.mode() & 0o777, 0o600);
        assert!(socket.peek().expect("it can be read").is_none());
        let sender = UnixDatagram::unbound().expect("a socket");
        sender.send_to(b"READY=1", &path).expect("it is sent");
        sender.send_to(b"STATUS=x", &path).expect("it is sent");
        let me = std::process::id().cast_signed();
        for (text, taken) in [("READY=1", false), ("READY=1", true), ("STATUS=x", true)] {
            let datagram = socket.peek().expect("it can be read").expect("it is there");
            assert_eq!(datagram.bytes, text.as_bytes());
            let sender = datagram.sender.expect("the kernel names it");
            assert_eq!(sender.pid, me);
            assert_eq!(sender.descent(&(&[][..], &[me][..])), Descent::Member);
            assert_eq!(sender.descent(&(&[][..], &[i32::MAX][..])), Descent::Other);
            if taken {
                socket.drop_first();
            }
        }
    }

    #[test]
    fn notify_socket_replaces_an_earlier_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let former = NotifySocket::bind(dir.path(), "notify", None).expect("bound");
        let socket = NotifySocket::bind(dir.path(), "notify", None).expect("bound again");
        let sender = UnixDatagram::unbound().expect("a socket");
        let path = dir.path().join("notify");
        sender.send_to(b"READY=1", &path).expect("it is sent");
        assert!(former.peek().expect("it can be read").is_none());
        assert!(socket.peek().expect("it can be read").is_some());
        remove(dir.path(), "notify").expect("it goes");
        remove(dir.path(), "notify").expect("it is gone");
        assert!(sender.send_to(b"x", &path).is_err());
    }

    // promise: RW-71
    #[test]
    fn reaped_sender_is_known_by_its_group() {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = NotifySocket::bind(dir.path(), "notify", None).expect("bound");
        let path = dir.path().join("notify").display().to_string();
        let script = format!(
            "import socket; socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'READY=1', '{path}')"
        );
        let mut python = std::process::Command::new("python3");
        assert!(
            python
                .args(["-c", &script])
                .status()
                .expect("it runs")
                .success()
        );
        let sender = socket
            .peek()
            .expect("it can be read")
            .expect("it is there")
            .sender;
        let (sender, me) = (sender.expect("named"), std::process::id().cast_signed());
        assert_eq!(sender.descent(&(&[][..], &[me][..])), Descent::Ended);
        let group = crate::cgroup::read_path_of(me).expect("own groups");
        let group = group.map(|path| crate::cgroup::identify(&path).expect("it is there"));
        let kernel = nix::sys::utsname::uname().expect("a name");
        let mut release = kernel.release().to_str().expect("text").split(['.', '-']);
        let mut number = || release.next().and_then(|part| part.parse::<u32>().ok());
        let is_known = (number(), number()) >= (Some(6), Some(16));
        if let Some(group) = group {
            assert_eq!(sender.ended_in(group.inode), is_known);
            assert!(!sender.ended_in(group.inode + 1));
        }
    }
}
