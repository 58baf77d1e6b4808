//! Mount, network and user namespace of a child. The rules of its parent module hold; nothing here reports a failure by
//! itself, so that the keeper can try it.

use super::{
    super::{
        raw::{self, call},
        sandbox::mounts::{EMPTY_DIR, EMPTY_FILE, Kind, Mounts, RestoredMount},
    },
    STEP_NETWORK, STEP_SANDBOX, wide,
};
use libc::{c_int, c_long};
use nix::unistd::{getegid, geteuid};
use std::{ffi::CStr, mem::MaybeUninit, sync::atomic::Ordering};

/// Namespaces of a command.
#[derive(Debug)]
pub(in crate::spawn) struct Namespaces {
    /// Its mounts; absent: those of the host.
    mounts: Option<Mounts>,
    /// Whether it has a network of its own.
    has_network: bool,
    /// Its line in `uid_map` and `gid_map`, where it needs a user namespace: its user alone.
    ids: [String; 2],
}

/// A failed step, with its errno.
pub(in crate::spawn) type FailedStep = (u8, c_int);

/// `FSCONFIG_SET_STRING` and `FSCONFIG_CMD_CREATE`.
const SET_STRING: usize = 1;
const CREATE: usize = 6;
/// `MOUNT_ATTR_RDONLY`, and `MOUNT_ATTR_NOSUID`, `_NODEV`, `_NOEXEC`.
const READ_ONLY: u64 = 1;
const PLAIN: usize = 2 | 4 | 8;
/// `MOVE_MOUNT_F_EMPTY_PATH` and `MOVE_MOUNT_T_EMPTY_PATH`.
const BY_DESCRIPTORS: usize = 0x4 | 0x40;
/// Directories in a cover can be passed, and not be listed.
const DIRECTORY_MODE: usize = 0o711;
/// Most attempts to cover a place that is replaced again and again.
const COVER_TRIES_MAX: u32 = 100;
const EMPTY_PATH: c_int = libc::AT_EMPTY_PATH;
const HERE: c_int = libc::AT_FDCWD;

impl Namespaces {
    /// Plans them for a command with this user and group, else those of this process; absent: it needs none.
    pub(in crate::spawn) fn new(
        mounts: Option<Mounts>,
        has_network: bool,
        ids: Option<[u32; 2]>,
    ) -> Option<Self> {
        if mounts.is_none() && !has_network {
            return None;
        }
        let own = || [geteuid().as_raw(), getegid().as_raw()];
        let ids = ids.unwrap_or_else(own);
        Some(Self {
            mounts,
            has_network,
            ids: ids.map(|id| format!("{id} {id} 1")),
        })
    }

    fn flags(&self) -> c_int {
        let mounts = self.mounts.as_ref().map_or(0, |_| libc::CLONE_NEWNS);
        mounts
            | if self.has_network {
                libc::CLONE_NEWNET
            } else {
                0
            }
    }

    /// Makes them with this process's capabilities. `Ok(false)`: it lacks them, and needs a user namespace.
    pub(in crate::spawn) fn enter(&self, has_mounts: bool) -> Result<bool, FailedStep> {
        // A private pid namespace already has its own mounts.
        let made = if has_mounts { libc::CLONE_NEWNS } else { 0 };
        match unshare(self.flags() & !made) {
            Err(libc::EPERM) => return Ok(false),
            Err(errno) => return Err(self.step()(errno)),
            Ok(_) => {}
        }
        self.set_up()?;
        Ok(true)
    }

    /// Makes them in a user namespace, in which this process has its own user and all capabilities.
    pub(in crate::spawn) fn enter_as_user(&self) -> Result<(), FailedStep> {
        let step = self.step();
        unshare(libc::CLONE_NEWUSER | self.flags()).map_err(step)?;
        // The /proc files of a process that is not dumpable belong to root.
        let dumpable = |is: usize| {
            // SAFETY: this prctl takes integers.
            unsafe { call(libc::SYS_prctl, [wide(libc::PR_SET_DUMPABLE), is, 0, 0, 0]) }
        };
        dumpable(1).map_err(step)?;
        let [uid, gid] = &self.ids;
        write(c"/proc/self/setgroups", "deny").map_err(step)?;
        write(c"/proc/self/uid_map", uid).map_err(step)?;
        write(c"/proc/self/gid_map", gid).map_err(step)?;
        dumpable(0).map_err(step)?;
        self.set_up()
    }

    fn step(&self) -> impl Fn(c_int) -> FailedStep + Copy {
        let step = self.mounts.as_ref().map_or(STEP_NETWORK, |_| STEP_SANDBOX);
        move |errno| (step, errno)
    }

    fn set_up(&self) -> Result<(), FailedStep> {
        if self.has_network {
            start_loopback().map_err(|errno| (STEP_NETWORK, errno))?;
        }
        let mounts = self.mounts.as_ref();
        let made = mounts.map_or(Ok(()), Mounts::make);
        made.map_err(|errno| (STEP_SANDBOX, errno))
    }
}

impl Mounts {
    /// Makes all file systems read-only but the command's own places, and covers Kennel's.
    fn make(&self) -> Result<(), c_int> {
        // Later mounts and unmounts of the host propagate here; none propagates back.
        let follow = [0, 0, libc::MS_SLAVE, 0];
        set_attributes(HERE, c"/", libc::AT_RECURSIVE, follow)?;
        for place in self.writable.iter().chain(&self.own) {
            place.take()?;
        }
        set_attributes(HERE, c"/", libc::AT_RECURSIVE, [READ_ONLY, 0, 0, 0])?;
        for place in &self.writable {
            place.put_back()?;
        }
        let cover = self.cover_data_dir()?;
        for place in &self.own {
            place.put_back()?;
        }
        for (path, kind) in &self.covered {
            cover_by(cover, path, *kind)?;
        }
        close(cover);
        renew_null()
    }

    /// Mounts a file system with nothing but mount points over the data directory, and returns it.
    fn cover_data_dir(&self) -> Result<usize, c_int> {
        let tmpfs = c"tmpfs".as_ptr() as usize;
        let fs = system(libc::SYS_fsopen, [tmpfs, 1, 0, 0, 0])?;
        let (key, mode) = (c"mode".as_ptr() as usize, c"711".as_ptr() as usize);
        system(libc::SYS_fsconfig, [fs, SET_STRING, key, mode, 0])?;
        system(libc::SYS_fsconfig, [fs, CREATE, 0, 0, 0])?;
        let cover = system(libc::SYS_fsmount, [fs, 1, PLAIN, 0, 0])?;
        close(fs);
        for (point, kind) in &self.points {
            let point = point.as_ptr() as usize;
            match kind {
                Kind::Directory => {
                    system(libc::SYS_mkdirat, [cover, point, DIRECTORY_MODE, 0, 0])?;
                    // The umask does not affect fchmodat.
                    system(libc::SYS_fchmodat, [cover, point, DIRECTORY_MODE, 0, 0])?;
                }
                Kind::File => {
                    let file = wide(libc::S_IFREG);
                    system(libc::SYS_mknodat, [cover, point, file, 0, 0])?;
                }
            }
        }
        set_attributes(signed(cover), c"", EMPTY_PATH, [READ_ONLY, 0, 0, 0])?;
        attach(cover, open(HERE, &self.data_dir)?)?;
        Ok(cover)
    }
}

/// Covers a place with an empty one of this file system. A place that is missing, or that this user cannot reach, stays
/// as it is.
fn cover_by(cover: usize, path: &CStr, kind: Kind) -> Result<(), c_int> {
    let Some(at) = reachable(path)? else {
        return Ok(());
    };
    let name = match kind {
        Kind::Directory => EMPTY_DIR,
        Kind::File => EMPTY_FILE,
    };
    let empty = open(signed(cover), name)?;
    let mount = copy_tree(empty)?;
    cover_with(mount, path, at)?;
    close(empty);
    close(mount);
    Ok(())
}

/// Mounts a copy over a place that was opened; where that was replaced meanwhile, over what is there instead.
fn cover_with(mount: usize, path: &CStr, mut at: usize) -> Result<(), c_int> {
    for _ in 0..COVER_TRIES_MAX {
        match attach(mount, at) {
            Err(libc::ENOENT) => close(at),
            covered => return covered,
        }
        match reachable(path)? {
            Some(there) => at = there,
            None => return Ok(()),
        }
    }
    Err(libc::ENOENT)
}

impl RestoredMount {
    /// Takes a copy of its mounts, as they are.
    fn take(&self) -> Result<(), c_int> {
        let Some(opened) = reachable(&self.path)? else {
            return Ok(());
        };
        let copied = copy_tree(opened);
        close(opened);
        let mount = match copied {
            Ok(mount) => signed(mount),
            // The path was removed meanwhile.
            Err(libc::ENOENT) => return Ok(()),
            Err(errno) => return Err(errno),
        };
        if !self.is_writable {
            set_attributes(mount, c"", EMPTY_PATH, [READ_ONLY, 0, 0, 0])?;
        }
        self.mount.store(mount, Ordering::Relaxed);
        Ok(())
    }

    /// Mounts the copy where it was taken.
    fn put_back(&self) -> Result<(), c_int> {
        let Ok(mount) = usize::try_from(self.mount.load(Ordering::Relaxed)) else {
            return Ok(());
        };
        let placed = open(HERE, &self.path).and_then(|at| attach(mount, at));
        close(mount);
        match placed {
            // An entry of /tmp may be removed at any moment: a replacement stays inaccessible.
            Err(libc::ENOENT | libc::ENOTDIR | libc::ELOOP) => Ok(()),
            placed => placed,
        }
    }
}

/// Opens the standard streams that are /dev/null anew: a descriptor of the host's mount could change its attributes.
fn renew_null() -> Result<(), c_int> {
    for fd in 0..3 {
        let mut about = MaybeUninit::<libc::stat>::uninit();
        let stat = [wide(fd), about.as_mut_ptr() as usize, 0, 0, 0];
        system(libc::SYS_fstat, stat)?;
        // SAFETY: fstat has filled `about`.
        let about = unsafe { about.assume_init() };
        let is_device = about.st_mode & libc::S_IFMT == libc::S_IFCHR;
        if !is_device || about.st_rdev != libc::makedev(1, 3) {
            continue;
        }
        let flags = system(libc::SYS_fcntl, [wide(fd), wide(libc::F_GETFL), 0, 0, 0])?;
        let path = c"/dev/null".as_ptr() as usize;
        let access = flags & wide(libc::O_ACCMODE) | wide(libc::O_CLOEXEC);
        let fresh = system(libc::SYS_openat, [wide(HERE), path, access, 0, 0])?;
        system(libc::SYS_dup3, [fresh, wide(fd), 0, 0, 0])?;
        close(fresh);
    }
    Ok(())
}

/// Starts the loopback interface of this network namespace.
fn start_loopback() -> Result<(), c_int> {
    let kind = wide(libc::SOCK_DGRAM | libc::SOCK_CLOEXEC);
    let socket = system(libc::SYS_socket, [wide(libc::AF_INET), kind, 0, 0, 0])?;
    // The kernel's ifreq: a name of 16 bytes, then the flags.
    let mut request = [0u8; 40];
    request[..2].copy_from_slice(b"lo");
    request[16..20].copy_from_slice(&libc::IFF_UP.to_ne_bytes());
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the kernel reads 32 bits of it"
    )]
    let set = libc::SIOCSIFFLAGS as usize;
    let started = [socket, set, request.as_ptr() as usize, 0, 0];
    system(libc::SYS_ioctl, started)?;
    close(socket);
    Ok(())
}

fn unshare(flags: c_int) -> Result<usize, c_int> {
    system(libc::SYS_unshare, [wide(flags), 0, 0, 0, 0])
}

/// Writes to a file of /proc.
fn write(path: &CStr, text: &str) -> Result<(), c_int> {
    let flags = wide(libc::O_WRONLY | libc::O_CLOEXEC);
    let fd = system(
        libc::SYS_openat,
        [wide(HERE), path.as_ptr() as usize, flags, 0, 0],
    )?;
    let bytes = [fd, text.as_ptr() as usize, text.len(), 0, 0];
    let written = system(libc::SYS_write, bytes);
    close(fd);
    written.map(|_| ())
}

/// Opens a place, over no link.
fn open(dir: c_int, path: &CStr) -> Result<usize, c_int> {
    let flags = wide(libc::O_PATH | libc::O_CLOEXEC) as u64;
    let how = [flags, 0, libc::RESOLVE_NO_SYMLINKS];
    let (path, size) = (path.as_ptr() as usize, size_of_val(&how));
    system(
        libc::SYS_openat2,
        [wide(dir), path, how.as_ptr() as usize, size, 0],
    )
}

/// Opens a place; absent: it is missing, or closed to this user.
fn reachable(path: &CStr) -> Result<Option<usize>, c_int> {
    match open(HERE, path) {
        Ok(opened) => Ok(Some(opened)),
        Err(libc::ENOENT | libc::ENOTDIR | libc::ELOOP | libc::EACCES) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Returns a copy of the mounts at and below a place, which has no position yet.
fn copy_tree(place: usize) -> Result<usize, c_int> {
    let flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC;
    let flags = flags as usize | wide(EMPTY_PATH | libc::AT_RECURSIVE);
    let empty = c"".as_ptr() as usize;
    system(libc::SYS_open_tree, [place, empty, flags, 0, 0])
}

/// Mounts such a copy at a place, which is closed.
fn attach(mount: usize, at: usize) -> Result<(), c_int> {
    let empty = c"".as_ptr() as usize;
    system(
        libc::SYS_move_mount,
        [mount, empty, at, empty, BY_DESCRIPTORS],
    )?;
    close(at);
    Ok(())
}

/// Changes the mounts at a place: what is set, cleared, and the propagation (the kernel's `mount_attr`).
fn set_attributes(dir: c_int, path: &CStr, flags: c_int, change: [u64; 4]) -> Result<(), c_int> {
    let (path, at) = (path.as_ptr() as usize, change.as_ptr() as usize);
    let size = size_of_val(&change);
    system(
        libc::SYS_mount_setattr,
        [wide(dir), path, wide(flags), at, size],
    )?;
    Ok(())
}

fn signed(fd: usize) -> c_int {
    c_int::try_from(fd).unwrap_or(-1)
}

fn close(fd: usize) {
    let _ = system(libc::SYS_close, [fd, 0, 0, 0, 0]);
}

/// Calls the kernel.
fn system(number: c_long, arguments: raw::Arguments) -> Result<usize, c_int> {
    // SAFETY: the callers above pass integers, and pointers to values that outlive the call, as each call requires.
    unsafe { call(number, arguments) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::{
        sys::wait::{WaitStatus, waitpid},
        unistd::{ForkResult, fork},
    };
    use std::{ffi::CString, fs, os::unix::ffi::OsStrExt, path::Path, sync::atomic::AtomicI32};

    /// Exit code of a child that this host gives no mounts of its own.
    const NONE: c_int = 255;

    /// Runs `act` in a child with mounts of its own; returns its errno, or 0.
    fn in_child(act: impl FnOnce() -> Result<(), c_int>) -> c_int {
        // SAFETY: the child makes only system calls, and exits.
        match unsafe { fork() }.expect("a child") {
            ForkResult::Child => {
                let made = unshare(libc::CLONE_NEWNS)
                    .or_else(|_| unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS));
                let code = made.map_or(NONE, |_| act().err().unwrap_or(0));
                // SAFETY: _exit takes an integer.
                unsafe { libc::_exit(code) }
            }
            ForkResult::Parent { child } => match waitpid(child, None).expect("own child") {
                WaitStatus::Exited(_, code) => code,
                other => panic!("{other:?}"),
            },
        }
    }

    fn c_path(path: &Path) -> CString {
        CString::new(path.as_os_str().as_bytes()).expect("no NUL")
    }

    // promise: AC-21
    #[test]
    fn hidden_path_replaced_meanwhile_stays_hidden() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = |name| c_path(&dir.path().join(name));
        let [private, next, empty] = ["private", "next", "empty"].map(place);
        for (name, text) in [("private", "old"), ("next", "new"), ("empty", "")] {
            fs::write(dir.path().join(name), text).expect("own directory");
        }
        let code = in_child(|| {
            let at = reachable(&private)?.ok_or(libc::EBUSY)?;
            // SAFETY: both paths are C strings.
            let replaced = unsafe { libc::rename(next.as_ptr(), private.as_ptr()) };
            let mount = copy_tree(open(HERE, &empty)?)?;
            cover_with(mount, &private, at)?;
            let shown = [open(HERE, &private)?, open(HERE, &empty)?].map(inode);
            let is_covered = replaced == 0 && shown[0] == shown[1];
            is_covered.then_some(()).ok_or(libc::EEXIST)
        });
        if code != NONE {
            assert_eq!(code, 0, "errno");
        }
    }

    fn inode(fd: usize) -> Option<u64> {
        let mut about = MaybeUninit::<libc::stat>::uninit();
        let stat = [fd, about.as_mut_ptr() as usize, 0, 0, 0];
        system(libc::SYS_fstat, stat).ok()?;
        // SAFETY: fstat has filled `about`.
        Some(unsafe { about.assume_init() }.st_ino)
    }

    #[test]
    fn path_removed_meanwhile_stays_inaccessible() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("place");
        fs::create_dir(&path).expect("own directory");
        let place = RestoredMount {
            path: c_path(&path),
            is_writable: true,
            mount: AtomicI32::new(-1),
        };
        let code = in_child(|| {
            place.take()?;
            // SAFETY: the path is a C string.
            let removed = unsafe { libc::rmdir(place.path.as_ptr()) };
            if removed != 0 {
                return Err(libc::EBUSY);
            }
            place.put_back()
        });
        if code != NONE {
            assert_eq!(code, 0, "errno");
            assert!(!path.exists());
        }
    }
}
