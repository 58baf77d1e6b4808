//! A listening unix socket that only its own user can connect to, from the moment it exists.

use nix::sys::{
    socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket},
    stat::{Mode, fchmod},
};
use std::{io, os::unix::net::UnixListener, path::Path};

/// Listens at `path` without blocking; the file has mode 0600.
pub fn bind_private(path: &Path) -> io::Result<UnixListener> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    // bind(2) gives the file the mode of the socket, less the umask. A change of the umask would affect all threads.
    fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
    bind(
        std::os::fd::AsRawFd::as_raw_fd(&socket),
        &UnixAddr::new(path)?,
    )?;
    listen(&socket, Backlog::MAXCONN)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt};

    // promise: M-22
    #[test]
    fn private_socket_has_mode_0600() {
        let dir = tempfile::TempDir::new().expect("a directory");
        let path = dir.path().join("socket");
        let _listener = bind_private(&path).expect("bound");
        let mode = fs::metadata(&path)
            .expect("it is there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        std::os::unix::net::UnixStream::connect(&path).expect("it listens");
        let again = bind_private(&path).expect_err("it is taken");
        assert_eq!(again.kind(), io::ErrorKind::AddrInUse);
    }
}
