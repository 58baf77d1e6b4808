//! The listening sockets. The keeper owns them, so that they outlive a server.

use super::KeeperError;
use crate::client::SocketSeen;
use kennel_linux::{peer, procfs};
use nix::{
    errno::Errno,
    sys::{
        socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket},
        stat::{Mode, umask},
    },
};
use std::{
    fs::{self, DirBuilder},
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{
            fs::{DirBuilderExt, FileTypeExt, MetadataExt},
            net::UnixListener,
        },
    },
    path::{Path, PathBuf},
    rc::Rc,
    time::{Duration, Instant},
};

/// How long a full queue at a listen path may stay full before the path counts as taken, and between two looks.
const QUEUE_WAIT: Duration = Duration::from_millis(500);
const QUEUE_LOOK: Duration = Duration::from_millis(10);

/// A socket and the file that stands for it.
pub(super) struct Listening {
    pub(super) socket: Rc<OwnedFd>,
    path: PathBuf,
    /// Device and inode, so that no other file is removed in its place.
    file: (u64, u64),
}

impl Listening {
    /// Listens at `path`; only this uid can connect.
    pub(super) fn new(path: &Path) -> Result<Self, KeeperError> {
        open(path).map_err(|source| KeeperError::Listen {
            path: path.to_owned(),
            source,
        })
    }
}

impl Listening {
    /// Where its file is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// What stands there now.
    pub(super) fn seen(&self) -> SocketSeen {
        match fs::symlink_metadata(&self.path) {
            Ok(found) if (found.dev(), found.ino()) == self.file => SocketSeen::InPlace,
            Ok(_) => SocketSeen::Replaced,
            Err(_) => SocketSeen::Missing,
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let found = fs::symlink_metadata(&self.path);
        if found.is_ok_and(|f| (f.dev(), f.ino()) == self.file) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn open(path: &Path) -> io::Result<Listening> {
    if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    }
    remove_stale(path)?;
    // The file must never be open to others, not even between bind and chmod. This process has one thread.
    let before = umask(Mode::from_bits_truncate(0o177));
    let bound = UnixListener::bind(path);
    umask(before);
    let listener = bound?;
    listener.set_nonblocking(true)?;
    let file = fs::symlink_metadata(path)?;
    Ok(Listening {
        socket: Rc::new(listener.into()),
        path: path.to_owned(),
        file: (file.dev(), file.ino()),
    })
}

/// A socket file is stale when nobody listens on it. Anything else at the path is not ours to remove.
fn remove_stale(path: &Path) -> io::Result<()> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !found.file_type().is_socket() {
        let error = "something else than a socket is there";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, error));
    }
    match try_connect(path) {
        Ok(socket) if is_of_the_dead(&socket) => fs::remove_file(path),
        Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
        Err(Errno::ECONNREFUSED) => fs::remove_file(path),
        Err(Errno::EAGAIN) => {
            let why = "another process listens there and takes no connections: its queue is full";
            Err(io::Error::new(io::ErrorKind::AddrInUse, why))
        }
        Err(errno) => Err(errno.into()),
    }
}

/// Connects without waiting for room in the queue of who listens there (unix(7): EAGAIN), but for a moment.
fn try_connect(path: &Path) -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    let address = UnixAddr::new(path)?;
    let give_up = Instant::now() + QUEUE_WAIT;
    loop {
        match connect(socket.as_raw_fd(), &address) {
            Ok(()) => return Ok(socket),
            Err(Errno::EAGAIN) if Instant::now() < give_up => std::thread::sleep(QUEUE_LOOK),
            Err(errno) => return Err(errno),
        }
    }
}

/// Whether who began to listen there is gone: the server of a keeper that was killed holds its sockets while it drains.
fn is_of_the_dead(stream: &OwnedFd) -> bool {
    // Of a socket that listens it is the credentials of who called listen(2) (unix(7)).
    let Ok(listener) = peer::credentials(stream) else {
        return false;
    };
    match procfs::stat(listener.pid) {
        Ok(stat) => stat.is_dead(),
        // 0 stands for a process of another pid namespace.
        Err(error) => listener.pid != 0 && error.kind() == io::ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{Backlog, bind, listen};
    use std::os::unix::{fs::PermissionsExt, net::UnixStream, process::CommandExt};

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("made/kennel.sock");
        let first = Listening::new(&path).expect("it listens");
        let mode = fs::metadata(&path).expect("metadata").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(matches!(
            Listening::new(&path),
            Err(KeeperError::Listen { source, .. }) if source.kind() == io::ErrorKind::AddrInUse
        ));
        drop(first);
        assert!(!path.exists());

        drop(UnixListener::bind(&path).expect("a socket file that stays"));
        drop(Listening::new(&path).expect("it is replaced"));
        fs::write(&path, b"not a socket").expect("a file");
        let refused = Listening::new(&path).err();
        let Some(KeeperError::Listen { source, .. }) = refused else {
            panic!("not refused as a socket");
        };
        assert!(source.to_string().contains("else than a socket"));
        assert!(path.exists());
    }

    #[test]
    fn full_queue_at_listen_path_is_refused_soon() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("kennel.sock");
        let kind = SockType::Stream;
        let listener = socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC, None);
        let listener = listener.expect("a socket");
        let address = UnixAddr::new(&path).expect("an address");
        bind(listener.as_raw_fd(), &address).expect("it is bound");
        listen(&listener, Backlog::new(0).expect("a number")).expect("it listens");
        let _queued = UnixStream::connect(&path).expect("there is room for one");
        let begun = Instant::now();
        let refused = Listening::new(&path).err();
        let Some(KeeperError::Listen { source, .. }) = refused else {
            panic!("not refused");
        };
        assert_eq!(source.kind(), io::ErrorKind::AddrInUse);
        assert!(source.to_string().contains("queue is full"), "{source}");
        assert!(begun.elapsed() < Duration::from_secs(2));
    }

    #[test]
    fn a_socket_that_outlives_its_keeper_in_a_server_is_replaced() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("kennel.sock");
        let socket = socket(
            AddressFamily::Unix,
            SockType::Stream,
            SockFlag::SOCK_CLOEXEC,
            None,
        )
        .expect("a socket");
        let address = UnixAddr::new(&path).expect("an address");
        bind(socket.as_raw_fd(), &address).expect("it is bound");
        let same = socket.try_clone().expect("a descriptor");
        let mut keeper = std::process::Command::new("true");
        let listens = move || Ok(listen(&same, Backlog::new(1)?)?);
        // SAFETY: `listens` makes one system call: no allocation, no lock.
        unsafe { keeper.pre_exec(listens) };
        keeper.status().expect("it starts and ends");
        UnixStream::connect(&path).expect("somebody listens");
        drop(Listening::new(&path).expect("it is replaced"));
    }
}
