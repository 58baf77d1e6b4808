//! The listening sockets. The keeper owns them, so that they outlive a server.

pub(super) mod address;

use super::{KeeperError, passed::PassedSockets};
use crate::{client::SocketSeen, keeper::listen::address::ListenAddress};
use kennel_linux::{fdpass, own_file, peer, procfs};
use nix::{
    errno::Errno,
    sys::{
        socket::{
            AddressFamily, Backlog, SockFlag, SockType, UnixAddr, connect, listen, setsockopt,
            socket, sockopt,
        },
        stat::{Mode, umask},
    },
};
use std::{
    fs::{self, DirBuilder},
    io,
    net::{SocketAddr, TcpListener},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::{
            fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt},
            net::UnixListener,
        },
    },
    path::Path,
    rc::Rc,
    time::{Duration, Instant},
};

/// How long a full queue at a listen path may stay full before the path counts as taken, and between two looks.
const QUEUE_WAIT: Duration = Duration::from_millis(500);
const QUEUE_LOOK: Duration = Duration::from_millis(10);

/// Time for which the server of a dead keeper may hold a port.
const PORT_WAIT: Duration = Duration::from_secs(2);

/// TCP keep-alive: idle seconds before the first probe, seconds between probes, and unanswered probes until the
/// client's host counts as gone.
const KEEP_ALIVE_IDLE_S: u32 = 60;
const KEEP_ALIVE_EVERY_S: u32 = 15;
const KEEP_ALIVE_COUNT: u32 = 4;

/// A listening socket.
pub(super) struct Listening {
    pub(super) socket: Rc<OwnedFd>,
    /// Its address, a port that was 0 replaced by the one that it got.
    address: ListenAddress,
    /// Device and inode of the file of a unix socket, so that no other file is removed in its place.
    file: Option<(u64, u64)>,
    maker: Maker,
}

/// Process that made a socket, and removes its file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Maker {
    Keeper,
    ServiceManager,
}

impl Listening {
    /// Listens at an address, by the socket that was passed for it where there is one.
    pub(super) fn new(
        address: &ListenAddress,
        passed: &mut PassedSockets,
    ) -> Result<Self, KeeperError> {
        let listening = match passed.claim(address)? {
            Some(socket) => adopt(address, socket),
            None => open(address),
        };
        listening.map_err(|source| KeeperError::Listen {
            address: address.clone(),
            source,
        })
    }

    /// Listens anew at the path of a unix socket whose file was removed, and returns whether it has. The old socket
    /// cannot be reached by any new client. A file that is there is not Kennel's to remove, and a service manager's socket is
    /// that one's to bind.
    pub(super) fn bind_again(&mut self) -> io::Result<bool> {
        if self.maker != Maker::Keeper || self.seen() != SocketSeen::Missing {
            return Ok(false);
        }
        // The old socket is dropped after the bind, so the new file cannot get its inode.
        *self = open(&self.address)?;
        Ok(true)
    }

    /// Returns the path of its file, or the port.
    pub(super) fn name(&self) -> String {
        match &self.address {
            ListenAddress::Unix { path, .. } => path.display().to_string(),
            tcp @ ListenAddress::Tcp(_) => tcp.to_string(),
        }
    }

    /// Returns the state of its path now; a port is always in place.
    pub(super) fn seen(&self) -> SocketSeen {
        let ListenAddress::Unix { path, .. } = &self.address else {
            return SocketSeen::InPlace;
        };
        match fs::symlink_metadata(path) {
            Ok(found) if Some((found.dev(), found.ino())) == self.file => SocketSeen::InPlace,
            Ok(_) => SocketSeen::Replaced,
            Err(_) => SocketSeen::Missing,
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let ListenAddress::Unix { path, .. } = &self.address
            && self.maker == Maker::Keeper
            && self.seen() == SocketSeen::InPlace
        {
            let _ = fs::remove_file(path);
        }
    }
}

fn open(address: &ListenAddress) -> io::Result<Listening> {
    match address {
        ListenAddress::Unix { path, mode, gid } => {
            let (socket, file) = open_unix(path, *mode, *gid)?;
            Ok(Listening {
                socket: Rc::new(socket),
                address: address.clone(),
                file: Some(file),
                maker: Maker::Keeper,
            })
        }
        ListenAddress::Tcp(address) => {
            let listener = open_tcp(*address)?;
            listener.set_nonblocking(true)?;
            let address = ListenAddress::Tcp(listener.local_addr()?);
            Ok(Listening {
                socket: Rc::new(listener.into()),
                address,
                file: None,
                maker: Maker::Keeper,
            })
        }
    }
}

/// Listens at a socket that was passed.
fn adopt(address: &ListenAddress, socket: OwnedFd) -> io::Result<Listening> {
    let file = match address {
        ListenAddress::Unix { path, .. } => {
            let file = fs::symlink_metadata(path)?;
            Some((file.dev(), file.ino()))
        }
        ListenAddress::Tcp(_) => {
            keep_alive(&socket)?;
            None
        }
    };
    fdpass::set_nonblocking(&socket)?;
    Ok(Listening {
        socket: Rc::new(socket),
        address: address.clone(),
        file,
        maker: Maker::ServiceManager,
    })
}

/// Binds a port. The server of a killed keeper holds it until it has noticed that.
fn open_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let give_up = Instant::now() + PORT_WAIT;
    loop {
        match TcpListener::bind(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < give_up => {
                std::thread::sleep(QUEUE_LOOK);
            }
            bound => {
                let listener = bound?;
                // The standard library sets a backlog of 128, whatever the host allows.
                listen(&listener, Backlog::MAXALLOWABLE)?;
                keep_alive(&listener)?;
                return Ok(listener);
            }
        }
    }
}

/// Sets keep-alive, so that connections whose host has gone are noticed. An accepted socket inherits these options of
/// its listener.
fn keep_alive(listener: &impl AsFd) -> io::Result<()> {
    setsockopt(listener, sockopt::KeepAlive, &true)?;
    setsockopt(listener, sockopt::TcpKeepIdle, &KEEP_ALIVE_IDLE_S)?;
    setsockopt(listener, sockopt::TcpKeepInterval, &KEEP_ALIVE_EVERY_S)?;
    setsockopt(listener, sockopt::TcpKeepCount, &KEEP_ALIVE_COUNT)?;
    Ok(())
}

fn open_unix(path: &Path, mode: u32, gid: Option<u32>) -> io::Result<(OwnedFd, (u64, u64))> {
    if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        let is_private = mode == mode & 0o700;
        let dir_mode = if is_private { 0o700 } else { 0o711 };
        // Other users must reach the socket, whatever this process's umask.
        let before = umask(Mode::empty());
        let created = DirBuilder::new().recursive(true).mode(dir_mode).create(dir);
        umask(before);
        created?;
    }
    remove_stale(path)?;
    // The file must never be open to others, not even between bind and chmod. This process has one thread.
    let before = umask(Mode::from_bits_truncate(0o177));
    let bound = UnixListener::bind(path);
    umask(before);
    let listener = bound?;
    listener.set_nonblocking(true)?;
    std::os::unix::fs::chown(path, None, gid)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    let file = fs::symlink_metadata(path)?;
    Ok((listener.into(), (file.dev(), file.ino())))
}

/// Removes a stale socket file: one at which no process listens. Any other file at the path is not Kennel's to remove.
fn remove_stale(path: &Path) -> io::Result<()> {
    let Some(found) = own_file::none_if_absent(fs::symlink_metadata(path))? else {
        return Ok(());
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

/// Connects without waiting for space in the queue of the listening process (unix(7): EAGAIN), except for a moment.
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

/// Whether the process that began to listen there is gone: the server of a killed keeper holds its sockets while it
/// drains.
fn is_of_the_dead(stream: &OwnedFd) -> bool {
    // For a listening socket the kernel returns the credentials of the process that called listen(2) (unix(7)).
    let Ok(listener) = peer::credentials(stream) else {
        return false;
    };
    match procfs::stat(listener.pid) {
        Ok(stat) => stat.is_dead(),
        // Pid 0 stands for a process of another pid namespace.
        Err(error) => listener.pid != 0 && error.kind() == io::ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{bind, getsockopt};
    use std::{
        net::TcpStream,
        os::unix::{net::UnixStream, process::CommandExt},
    };

    fn listen_at(path: &Path) -> Result<Listening, KeeperError> {
        Listening::new(
            &ListenAddress::private(path.to_owned()),
            &mut PassedSockets::default(),
        )
    }

    // promise: AC-6, AC-10
    #[test]
    fn socket_gets_the_requested_mode() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("made/too/kennel.sock");
        // The umask of the keeper.
        umask(Mode::from_bits_truncate(0o077));
        let own = nix::unistd::getegid().as_raw();
        let address = ListenAddress::Unix {
            path: path.clone(),
            mode: 0o660,
            gid: Some(own),
        };
        let _listening =
            Listening::new(&address, &mut PassedSockets::default()).expect("it listens");
        let mode = |path: &Path| fs::metadata(path).expect("metadata").mode() & 0o777;
        assert_eq!(mode(&path), 0o660);
        for made in [dir.path().join("made"), dir.path().join("made/too")] {
            assert_eq!(mode(&made), 0o711);
        }
    }

    #[test]
    fn port_accepts_connections_and_taken_port_is_refused() {
        let any = ListenAddress::Tcp(([127, 0, 0, 1], 0).into());
        let mut none = PassedSockets::default();
        let first = Listening::new(&any, &mut none).expect("it listens");
        let ListenAddress::Tcp(address) = &first.address else {
            panic!("it is a port");
        };
        TcpStream::connect(address).expect("it takes connections");
        let (accepted, _) = TcpListener::from(first.socket.try_clone().expect("a descriptor"))
            .accept()
            .expect("a connection");
        assert_eq!(getsockopt(&accepted, sockopt::KeepAlive), Ok(true));
        assert_eq!(getsockopt(&accepted, sockopt::TcpKeepIdle), Ok(60));
        let refused = Listening::new(&first.address, &mut none).err();
        assert!(matches!(
            refused,
            Some(KeeperError::Listen { source, .. }) if source.kind() == io::ErrorKind::AddrInUse
        ));
    }

    #[test]
    fn only_a_stale_socket_is_replaced() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("made/kennel.sock");
        let first = listen_at(&path).expect("it listens");
        let mode = fs::metadata(&path).expect("metadata").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(matches!(
            listen_at(&path),
            Err(KeeperError::Listen { source, .. }) if source.kind() == io::ErrorKind::AddrInUse
        ));
        drop(first);
        assert!(!path.exists());

        drop(UnixListener::bind(&path).expect("a socket file that stays"));
        drop(listen_at(&path).expect("it is replaced"));
        fs::write(&path, b"not a socket").expect("a file");
        let refused = listen_at(&path).err();
        let Some(KeeperError::Listen { source, .. }) = refused else {
            panic!("not refused as a socket");
        };
        assert!(source.to_string().contains("else than a socket"));
        assert!(path.exists());
    }

    // promise: F-7
    #[test]
    fn removed_socket_is_rebound_but_not_replaced_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("made/kennel.sock");
        let mut listening = listen_at(&path).expect("it listens");
        assert!(!listening.bind_again().expect("nothing to do"));
        // Cleaners of temporary directories do this.
        fs::remove_dir_all(dir.path().join("made")).expect("own directory");
        assert!(listening.bind_again().expect("bound"));
        assert_eq!(listening.seen(), SocketSeen::InPlace);
        UnixStream::connect(&path).expect("it listens");
        let mode = fs::metadata(&path).expect("metadata").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::remove_file(&path).expect("own file");
        fs::write(&path, "another's").expect("a file");
        assert!(!listening.bind_again().expect("nothing to do"));
        drop(listening);
        assert!(path.exists());
    }

    // promise: R-61a
    #[test]
    fn listen_path_with_full_backlog_is_refused() {
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
        let refused = listen_at(&path).err();
        let Some(KeeperError::Listen { source, .. }) = refused else {
            panic!("not refused");
        };
        assert_eq!(source.kind(), io::ErrorKind::AddrInUse);
        assert!(source.to_string().contains("queue is full"), "{source}");
        assert!(begun.elapsed() < Duration::from_secs(2));
    }

    // promise: AC-4
    #[test]
    fn port_backlog_is_the_host_maximum() {
        let most = fs::read_to_string("/proc/sys/net/core/somaxconn").expect("a limit");
        let most: usize = most.trim().parse().expect("a number");
        let port = open_tcp(([127, 0, 0, 1], 0).into()).expect("it listens");
        let address = port.local_addr().expect("bound");
        let connect = |_| TcpStream::connect_timeout(&address, Duration::from_secs(30));
        // No process accepts these connections.
        let queued: io::Result<Vec<_>> = (0..most.min(300)).map(connect).collect();
        queued.expect("there is room");
    }

    #[test]
    fn socket_of_dead_keeper_in_server_is_replaced() {
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
        UnixStream::connect(&path).expect("the socket has a listener");
        drop(listen_at(&path).expect("it is replaced"));
    }
}
