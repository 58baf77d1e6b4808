//! Place of the notification socket of a run: in the run's directory, or, where the command has another user, below a
//! directory that every user can pass.

use kennel_lifecycle::{NodeId, Policy, RunId, RunUser};
use kennel_linux::{
    notify_socket::{self, NotifySocket},
    own_file,
};
use nix::{
    errno::Errno,
    fcntl::openat,
    sys::stat::{Mode, fchmod, fstat, mkdirat},
    unistd::geteuid,
};
use std::{
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

/// Parent and name of the directory that every user can pass, and none can list.
const SHARED: (&str, &str) = ("/run", "kennel-notify");
/// Name of the socket in a run's directory.
const IN_RUN_DIR: &str = "notify";
/// Mode of a directory that other users can pass, and neither list nor change.
const PASSABLE: Mode = Mode::from_bits_truncate(0o711);

/// Place of the socket of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotifyPlace {
    dir: PathBuf,
    name: String,
    /// User of the run's processes, where it is not that of the service.
    user: Option<u32>,
}

impl NotifyPlace {
    /// Returns the place for a run with this directory.
    pub fn of(node: NodeId, run: RunId, run_dir: &Path, policy: &Policy) -> Self {
        let (parent, shared) = SHARED;
        Self::below(&Path::new(parent).join(shared), node, run, run_dir, policy)
    }

    fn below(shared: &Path, node: NodeId, run: RunId, run_dir: &Path, policy: &Policy) -> Self {
        let user = policy.privileges.user.as_ref();
        match user.map(|RunUser { uid, .. }| *uid) {
            None => Self {
                dir: run_dir.to_owned(),
                name: IN_RUN_DIR.to_owned(),
                user: None,
            },
            user => Self {
                dir: shared.join(node.to_string()),
                name: run.to_string(),
                user,
            },
        }
    }

    /// Returns the path that processes of the run connect to.
    pub fn path(&self) -> PathBuf {
        self.dir.join(&self.name)
    }

    /// Returns why processes of the run could not reach the socket.
    pub fn fault(&self) -> Option<String> {
        let (bytes, most) = (self.path().as_os_str().len(), notify_socket::PATH_BYTES_MAX);
        if bytes > most {
            return Some(format!(
                "a socket below the data directory: its path has {bytes} bytes, and a socket at most {most}"
            ));
        }
        self.user?;
        let (parent, shared) = SHARED;
        let error = open_passable(Path::new(parent), shared).err()?;
        Some(format!(
            "a socket that the command's user can reach, in {parent}/{shared}: {error}"
        ))
    }

    /// Binds the socket, for its user alone. Directories that other users have to pass are made.
    pub(crate) fn bind(&self) -> io::Result<NotifySocket> {
        if self.user.is_some() {
            let mut ancestors = self.dir.ancestors();
            let (node, shared) = (ancestors.next(), ancestors.next());
            for dir in [shared, node].into_iter().flatten() {
                let name = dir.file_name().and_then(|name| name.to_str());
                let (Some(parent), Some(name)) = (dir.parent(), name) else {
                    return Err(io::ErrorKind::InvalidInput.into());
                };
                open_passable(parent, name)?;
            }
        }
        NotifySocket::bind(&self.dir, &self.name, self.user)
    }

    /// Removes the socket, and the directory that it was the last one in.
    pub(crate) fn remove(&self) {
        // A file that stays is removed with the run's directory, or by the next keeper.
        let _ = notify_socket::remove(&self.dir, &self.name);
        if self.user.is_some() {
            let _ = fs::remove_dir(&self.dir);
        }
    }
}

/// Removes a socket that a dead keeper has left in a run's directory.
pub(crate) fn remove_left(run_dir: &Path) -> io::Result<()> {
    notify_socket::remove(run_dir, IN_RUN_DIR)
}

/// Removes the sockets that a dead keeper of this node has left where all users can pass, except for those of runs that
/// live.
pub(crate) fn sweep(node: NodeId, lives: impl Fn(RunId) -> bool) {
    let (parent, shared) = SHARED;
    sweep_below(&Path::new(parent).join(shared), node, lives);
}

fn sweep_below(shared: &Path, node: NodeId, lives: impl Fn(RunId) -> bool) {
    let dir = shared.join(node.to_string());
    for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let run = name.to_str().and_then(|name| name.parse().ok());
        if !run.is_some_and(&lives) {
            let _ = fs::remove_file(dir.join(name));
        }
    }
    // The directory stays while a run lives.
    let _ = fs::remove_dir(&dir);
}

/// Opens a directory that others can pass, and makes it where it is missing. Another user's is refused: that user could
/// put a socket in the place of a run's.
fn open_passable(parent: &Path, name: &str) -> io::Result<OwnedFd> {
    let parent = own_file::open_dir(parent)?;
    match mkdirat(&parent, name, PASSABLE) {
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    let dir = openat(&parent, name, own_file::DIR_FLAGS, Mode::empty())?;
    let found = fstat(&dir)?;
    let mode = Mode::from_bits_truncate(found.st_mode);
    if found.st_uid != geteuid().as_raw() || mode.intersects(Mode::S_IWGRP | Mode::S_IWOTH) {
        let (owner, mode) = (found.st_uid, mode.bits() & 0o777);
        let why =
            format!("another user can change it: its owner is uid {owner}, its mode {mode:o}");
        return Err(io::Error::other(why));
    }
    if !mode.contains(Mode::S_IXOTH) {
        // The umask cleared these bits.
        fchmod(&dir, PASSABLE)?;
    }
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_lifecycle::Privileges;
    use std::os::unix::{fs::PermissionsExt, net::UnixDatagram};

    fn place(shared: &Path, run: u128, user: Option<u32>) -> NotifyPlace {
        let user = user.map(|uid| RunUser {
            uid,
            ..RunUser::default()
        });
        let policy = Policy {
            privileges: Privileges {
                user,
                ..Privileges::default()
            },
            ..Policy::default()
        };
        let run_dir = shared.join("runs");
        NotifyPlace::below(shared, node(), RunId::from_u128(run), &run_dir, &policy)
    }

    fn node() -> NodeId {
        NodeId::from_u128(9)
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path)
            .expect("it is there")
            .permissions()
            .mode()
            & 0o777
    }

    // promise: RW-101
    #[test]
    fn dead_keepers_sockets_are_swept_except_live_ones() {
        let base = tempfile::tempdir().expect("a directory");
        let shared = base.path().join("shared");
        let own = geteuid().as_raw();
        let [dead, live] = [1, 2].map(|run| place(&shared, run, Some(own)));
        for place in [&dead, &live] {
            place.bind().expect("bound");
            assert_eq!(mode(&place.path()), 0o600);
            assert_eq!(mode(&place.dir), 0o711);
        }
        assert_eq!(mode(&shared), 0o711);
        sweep_below(&shared, node(), |run| run == RunId::from_u128(2));
        assert!(!dead.path().exists() && live.path().exists());
        let again = live.bind().expect("in the place of the former");
        let sender = UnixDatagram::unbound().expect("a socket");
        sender.send_to(b"READY=1", live.path()).expect("it is sent");
        assert!(again.peek().expect("it can be read").is_some());
        live.remove();
        assert!(!live.dir.exists() && shared.exists());
        sweep_below(&shared, node(), |_| false);
    }

    // promise: RW-101
    #[test]
    fn notify_directory_writable_by_others_is_refused() {
        let base = tempfile::tempdir().expect("a directory");
        let shared = base.path().join("shared");
        fs::create_dir(&shared).expect("a directory");
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o777)).expect("own directory");
        let place = place(&shared, 1, Some(geteuid().as_raw()));
        place.bind().expect_err("everybody can change it");
        fs::remove_dir(&shared).expect("it is empty");
        std::os::unix::fs::symlink(base.path(), &shared).expect("a link");
        place.bind().expect_err("it is a link");
    }
}
