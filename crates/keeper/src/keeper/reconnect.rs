//! Reconnect sockets: shims listen at them for the next keeper. Each run that outlives a keeper has one, in one
//! directory.

use kennel_lifecycle::RunId;
use kennel_linux::{
    capability::{Capability, CapabilityName},
    own_file::{self, remove_in},
};
use nix::{
    dir::Dir,
    errno::Errno,
    fcntl::AtFlags,
    sys::{
        socket::{AddressFamily, SockFlag, SockType, UnixAddr, bind, connect, socket},
        stat::{Mode, SFlag, fchmod, fstatat},
    },
};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::Path,
};

/// The directory below the data directory.
const NAME: &str = "adoptable";
/// Name of the trial socket; it is no run's id.
const TRIAL: &str = "trial";

/// The directory of the sockets, or why there is none.
pub(super) struct ReconnectSockets(Result<OwnedFd, String>);

impl ReconnectSockets {
    /// Makes the directory if it is missing, and tries to make a socket in it.
    pub(super) fn open(data_dir: &Path) -> Self {
        // The kernel kills all processes of a pid namespace with its first process (pid_namespaces(7)).
        if std::process::id() == 1 {
            let why = "this keeper is the first process of its pid namespace, and all in that end with it";
            return Self(Err(why.into()));
        }
        let path = data_dir.join(NAME);
        let opened = own_file::make_dir(&path).and_then(|()| {
            let dir = own_file::open_dir(&path)?;
            remove_in(&dir, TRIAL)?;
            make(&dir, TRIAL)?;
            remove_in(&dir, TRIAL)?;
            Ok(dir)
        });
        Self(
            opened.map_err(|error| format!("no socket can be made in {}: {error}", path.display())),
        )
    }

    /// Returns the result as a capability of the host.
    pub(super) fn capability(&self) -> Capability {
        let tried = self.0.as_ref().map(|_| ()).map_err(Clone::clone);
        Capability::tried(CapabilityName::Adoption, tried)
    }

    /// Whether runs can outlive a keeper here.
    pub(super) fn can_be_made(&self) -> bool {
        self.0.is_ok()
    }

    /// Makes the socket of a run, for its shim to listen at.
    pub(super) fn make(&self, run: RunId) -> io::Result<OwnedFd> {
        let dir = self
            .0
            .as_ref()
            .map_err(|why| io::Error::other(why.clone()))?;
        make(dir, &run.to_string())
    }

    /// Removes the socket of a run: no keeper will connect for it.
    pub(super) fn remove(&self, run: RunId) {
        if let Ok(dir) = &self.0 {
            // A socket that stays is removed by the next keeper.
            let _ = remove_in(dir, run.to_string().as_str());
        }
    }

    /// Lists the runs that have a socket.
    pub(super) fn all(&self) -> Vec<RunId> {
        let Ok(dir) = &self.0 else { return Vec::new() };
        let Ok(mut dir) = Dir::openat(dir, ".", own_file::DIR_FLAGS, Mode::empty()) else {
            return Vec::new();
        };
        let names = dir.iter().flatten();
        let names = names.filter_map(|entry| entry.file_name().to_str().ok()?.parse().ok());
        names.collect()
    }

    /// Connects to the socket of a run. `None`: no process is behind it, or the file is no socket.
    pub(super) fn connect(&self, run: RunId) -> Option<OwnedFd> {
        let dir = self.0.as_ref().ok()?;
        let name = run.to_string();
        let found = fstatat(dir, name.as_str(), AtFlags::AT_SYMLINK_NOFOLLOW).ok()?;
        if SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT != SFlag::S_IFSOCK {
            return None;
        }
        let socket = new_socket().ok()?;
        match connect(socket.as_raw_fd(), &address(dir, &name).ok()?) {
            Ok(()) => Some(socket),
            Err(Errno::ECONNREFUSED) => {
                let _ = remove_in(dir, name.as_str());
                None
            }
            Err(_) => None,
        }
    }
}

fn new_socket() -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
}

/// An address is limited to 108 bytes, and a data directory may be longer.
fn address(dir: &impl AsFd, name: &str) -> nix::Result<UnixAddr> {
    UnixAddr::new(format!("/proc/self/fd/{}/{name}", dir.as_fd().as_raw_fd()).as_str())
}

fn make(dir: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    let socket = new_socket()?;
    // The kernel's unix_bind gives the file the mode of the socket.
    fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
    bind(socket.as_raw_fd(), &address(dir, name)?)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    // promise: R-52
    #[test]
    fn socket_is_private_and_removed_without_a_listener() {
        let data = tempfile::tempdir().expect("a directory");
        let deep = data.path().join("d".repeat(120));
        std::fs::create_dir(&deep).expect("a directory");
        let sockets = ReconnectSockets::open(&deep);
        assert_eq!(sockets.capability().missing, None);
        let (run, other) = (RunId::from_u128(7), RunId::from_u128(8));
        drop(sockets.make(run).expect("a socket"));
        let path = deep.join(NAME).join(run.to_string());
        let mode = std::fs::metadata(&path)
            .expect("it is there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        std::fs::write(deep.join(NAME).join(other.to_string()), "").expect("a file");
        assert_eq!(sockets.all().len(), 2);

        assert!(sockets.connect(run).is_none() && sockets.connect(other).is_none());
        assert_eq!(
            sockets.all(),
            [other],
            "what is no socket is not ours to remove"
        );
    }
}
