//! The private directory of a run: `runs/<id>` under the data directory, and `tmp` in it for the command.

use crate::{notify_place, private_file, unreadable};
use kennel_lifecycle::RunId;
use kennel_linux::own_file;
use nix::{
    NixPath,
    dir::Dir,
    errno::Errno,
    fcntl::{AT_FDCWD, AtFlags, renameat},
    libc::dev_t,
    sys::stat::{FchmodatFlags, FileStat, Mode, SFlag, fchmodat, fstat, fstatat, mkdirat},
    unistd::{UnlinkatFlags, unlinkat},
};
use std::{
    ffi::{CStr, CString, OsStr},
    fs, io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

/// Levels of a tree that are removed at a time, each with an open descriptor: what lies deeper is moved up first.
const DEPTH_MAX: usize = 64;
/// Most times that parts are moved up in one removal: a process may make deeper ones all the time.
const ROUNDS_MAX: usize = 4096;

/// The one part of a run's directory whose path its command gets.
pub(crate) const TMP: &CStr = c"tmp";

/// The token with which processes of the run may call, beside the others.
const TOKEN: &CStr = c"token";

/// Returns the path of the file with a run's token, where its spec gives it one.
pub fn token_path(run_dir: &Path) -> PathBuf {
    run_dir.join(OsStr::from_bytes(TOKEN.to_bytes()))
}

/// Writes the token of an attempt that has not begun, for the server's user alone.
pub fn write_token(run_dir: &Path, token: &str) -> io::Result<()> {
    private_file::replace(run_dir, TOKEN, token.as_bytes()).map(drop)
}

/// Lets its owner read and change the directory of a run, which the command may have closed. Where that is refused,
/// what follows fails.
pub fn open_run_dir(run_dir: &Path) {
    open_up(AT_FDCWD, run_dir);
}

/// Removes the token, if it exists.
pub fn remove_token(run_dir: &Path) -> io::Result<()> {
    open_run_dir(run_dir);
    for name in [TOKEN, c"token.new"] {
        let path = run_dir.join(OsStr::from_bytes(name.to_bytes()));
        own_file::none_if_absent(fs::remove_file(path))?;
    }
    Ok(())
}

/// Returns the path of the directory of `run`.
pub fn path(data_dir: &Path, run: RunId) -> PathBuf {
    data_dir.join("runs").join(run.to_string())
}

/// Directory of serving locks, one for each keeper, in the data directory.
pub(crate) const SERVERS: &str = "servers";

/// Returns the data directory of a run's directory.
pub(crate) fn data_dir(run_dir: &Path) -> io::Result<&Path> {
    let dir = run_dir.parent().and_then(Path::parent);
    dir.ok_or_else(|| io::ErrorKind::InvalidFilename.into())
}

/// Lists all runs that have a directory.
pub fn all(data_dir: &Path) -> Vec<RunId> {
    let entries = fs::read_dir(data_dir.join("runs")).into_iter().flatten();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter_map(|name| name.parse().ok()).collect()
}

/// Makes `runs/<id>` and `runs/<id>/tmp`, both 0700, and returns the path of the first. An existing directory stays as
/// it is.
pub fn create(data_dir: &Path, run: RunId) -> io::Result<PathBuf> {
    create_with(data_dir, run, |_, _| false)
}

/// Makes them as [`create`] does; `give` may place a directory there under the name of the second, and returns whether
/// it has.
pub(crate) fn create_with(
    data_dir: &Path,
    run: RunId,
    give: impl FnOnce(&OwnedFd, &CStr) -> bool,
) -> io::Result<PathBuf> {
    let dir = path(data_dir, run);
    own_file::make_dir(&dir)?;
    let opened = own_file::open_dir(&dir)?;
    if give(&opened, TMP) {
        return Ok(dir);
    }
    match mkdirat(&opened, TMP, Mode::S_IRWXU) {
        Ok(()) | Err(Errno::EEXIST) => Ok(dir),
        Err(errno) => Err(errno.into()),
    }
}

/// Removes what the processes of one attempt have left there for each other. No process of that attempt is alive.
pub fn forget_attempt(data_dir: &Path, run: RunId) -> io::Result<()> {
    let dir = path(data_dir, run);
    remove_token(&dir)?;
    crate::held::remove(&dir);
    notify_place::remove_left(&dir)?;
    crate::exit_record::remove(&dir)
}

/// Removes `runs/<id>/tmp` and all in it, and a socket beside it, as [`remove_tree`] does.
pub fn remove_tmp(data_dir: &Path, run: RunId) -> io::Result<()> {
    let dir = path(data_dir, run);
    open_up(AT_FDCWD, &dir);
    // A dead keeper may have left a socket.
    notify_place::remove_left(&dir)?;
    remove_tree(&dir.join(OsStr::from_bytes(TMP.to_bytes())))
}

/// Removes `runs/<id>` and all in it, as [`remove_tree`] does, and the run's unreadable files.
pub fn remove(data_dir: &Path, run: RunId) -> io::Result<()> {
    unreadable::purge(data_dir, run);
    remove_tree(&path(data_dir, run))
}

/// Removes a directory and all in it, without following a link or crossing into another mount; directories in it that
/// their owner may not change or read are opened up. A missing directory is no error.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidFilename.into());
    };
    match own_file::none_if_absent(own_file::open_dir(dir))? {
        Some(dir) => remove_below(&dir, &CString::new(name.as_bytes())?),
        None => Ok(()),
    }
}

/// Removes what `dir` has under this name, in the same way.
pub(crate) fn remove_below(dir: &OwnedFd, name: &CStr) -> io::Result<()> {
    let mut removal = Removal {
        device: fstat(dir)?.st_dev,
        top: None,
        moved: 0,
    };
    for _ in 0..ROUNDS_MAX {
        let moved = removal.moved;
        let removed = removal.remove(dir.as_fd(), name, 0);
        if removed.is_ok() || removal.moved == moved {
            return removed;
        }
    }
    Err(Errno::ELOOP.into())
}

/// Removes `runs/<id>` where it is empty.
pub fn remove_empty(data_dir: &Path, run: RunId) -> io::Result<()> {
    match fs::remove_dir(path(data_dir, run)) {
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty => Ok(()),
            _ => Err(error),
        },
        Ok(()) => Ok(()),
    }
}

/// Parent of run directories that wait for their removal, beside the others.
const ASIDE: &str = "removed";

/// Moves `runs/<id>` away in one step, so that no reader finds a part of it; [`remove_set_aside`] removes it. A missing
/// directory is no error. The run's unreadable files go with it.
pub fn set_aside(data_dir: &Path, run: RunId) -> io::Result<()> {
    unreadable::purge(data_dir, run);
    let (dir, aside) = (path(data_dir, run), data_dir.join("runs").join(ASIDE));
    loop {
        own_file::make_dir(&aside)?;
        open_up(AT_FDCWD, &dir);
        let moved = own_file::none_if_absent(fs::rename(&dir, aside.join(run.to_string())))?;
        // Another removal may have removed the parent directory in between.
        if moved.is_some() || !dir.try_exists()? {
            return Ok(());
        }
    }
}

/// Removes the directory of this run, which was moved away.
pub fn remove_one_set_aside(data_dir: &Path, run: RunId) -> io::Result<()> {
    remove_tree(&data_dir.join("runs").join(ASIDE).join(run.to_string()))
}

/// Removes all directories that were moved away, by whichever process, as [`remove`] does.
pub fn remove_set_aside(data_dir: &Path) -> io::Result<()> {
    remove_tree(&data_dir.join("runs").join(ASIDE))
}

/// A removal of a tree.
struct Removal {
    /// Its file system.
    device: dev_t,
    /// The directory to which deep parts are moved; absent: not opened yet.
    top: Option<OwnedFd>,
    /// Number of moved parts.
    moved: usize,
}

impl Removal {
    fn remove(&mut self, parent: BorrowedFd<'_>, name: &CStr, depth: usize) -> io::Result<()> {
        let found = match fstatat(parent, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(found) => found,
            Err(Errno::ENOENT) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        };
        if !is_dir(&found) {
            return own_file::remove_in(parent, name);
        }
        // A mount point shows the device of the mounted file system; rmdir gives EBUSY for a bind mount of the same
        // device.
        if found.st_dev != self.device {
            return Err(Errno::EXDEV.into());
        }
        give_owner_all(parent, name, &found);
        if let (true, Some(top)) = (depth >= DEPTH_MAX, &self.top) {
            renameat(parent, name, top, format!(".{}", found.st_ino).as_str())?;
            self.moved += 1;
            return Ok(());
        }
        let mut dir = Dir::openat(parent, name, own_file::DIR_FLAGS, Mode::empty())?;
        if depth == 0 {
            self.top = Some(dir.as_fd().try_clone_to_owned()?);
        }
        let names: Vec<CString> = dir
            .iter()
            .flatten()
            .map(|entry| entry.file_name().to_owned())
            .filter(|n| n.as_bytes() != b"." && n.as_bytes() != b"..")
            .collect();
        let mut failed = None;
        for child in names {
            if let Err(error) = self.remove(dir.as_fd(), &child, depth + 1) {
                failed.get_or_insert(error);
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        let removed = unlinkat(parent, name, UnlinkatFlags::RemoveDir);
        own_file::none_if_absent(removed.map_err(io::Error::from)).map(drop)
    }
}

/// Lets the owner of a directory read and change it; a link is not followed. Where that is refused, what follows fails.
fn open_up(parent: BorrowedFd<'_>, name: &(impl NixPath + ?Sized)) {
    if let Ok(found) = fstatat(parent, name, AtFlags::AT_SYMLINK_NOFOLLOW)
        && is_dir(&found)
    {
        give_owner_all(parent, name, &found);
    }
}

/// Does the same for a directory that was found there.
fn give_owner_all(parent: BorrowedFd<'_>, name: &(impl NixPath + ?Sized), found: &FileStat) {
    let mode = Mode::from_bits_truncate(found.st_mode);
    if !mode.contains(Mode::S_IRWXU) {
        let no_follow = FchmodatFlags::NoFollowSymlink;
        let _ = fchmodat(parent, name, mode | Mode::S_IRWXU, no_follow);
    }
}

fn is_dir(found: &FileStat) -> bool {
    SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT == SFlag::S_IFDIR
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    use std::os::unix::fs::PermissionsExt;

    // promise: RW-87
    #[test]
    fn writing_the_token_follows_no_symlink() {
        let data = tempfile::tempdir().expect("a directory");
        let run = RunId::from_u128(7);
        let dir = create(data.path(), run).expect("it is made");
        let outside = data.path().join("outside");
        std::os::unix::fs::symlink(&outside, token_path(&dir)).expect("a link");
        write_token(&dir, "one").expect("written");
        assert!(!outside.exists());
        write_token(&dir, "two").expect("written");
        let path = token_path(&dir);
        assert_eq!(fs::read_to_string(&path).expect("it is there"), "two");
        let mode = fs::metadata(&path).expect("metadata").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        forget_attempt(data.path(), run).expect("it goes");
        assert!(!path.exists());
        remove_token(&dir).expect("it is gone");
    }

    // promise: O-32a
    #[test]
    fn link_in_tmp_is_removed_and_not_followed() {
        let data = tempfile::tempdir().expect("a directory");
        let outside = tempfile::tempdir().expect("another");
        fs::write(outside.path().join("kept"), b"x").expect("a file");
        let run = RunId::from_u128(7);
        let dir = create(data.path(), run).expect("it is made");
        let mode = fs::metadata(&dir).expect("metadata").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        std::os::unix::fs::symlink(outside.path(), dir.join("tmp/link")).expect("a link");
        fs::create_dir_all(dir.join("tmp/deep/er")).expect("directories");
        fs::write(dir.join("exit"), b"x").expect("a file");

        remove_tmp(data.path(), run).expect("tmp goes");
        assert!(!dir.join("tmp").exists());
        assert!(dir.join("exit").exists());
        assert!(outside.path().join("kept").exists());

        set_aside(data.path(), run).expect("it is taken away");
        assert!(!dir.exists());
        assert!(
            data.path()
                .join("runs/removed")
                .join(run.to_string())
                .join("exit")
                .exists()
        );
        assert!(all(data.path()).is_empty());
        set_aside(data.path(), run).expect("there is none");
        remove_set_aside(data.path()).expect("it goes");
        assert!(!data.path().join("runs/removed").exists());
        assert!(outside.path().join("kept").exists());
        remove_set_aside(data.path()).expect("there is nothing");

        let dir = create(data.path(), run).expect("it is made");
        remove_empty(data.path(), run).expect("it stays");
        assert!(dir.exists());
        remove_tmp(data.path(), run).expect("tmp goes");
        remove_empty(data.path(), run).expect("it goes");
        assert!(!dir.exists());
        remove_empty(data.path(), run).expect("it is gone");

        create(data.path(), run).expect("it is made");
        remove(data.path(), run).expect("all goes");
        remove(data.path(), run).expect("and is gone");
        assert!(!dir.exists());
    }

    /// Does it as an ordinary user: root may read and change what its owner may not.
    fn on_thread_of_ordinary_user(work: impl FnOnce() + Send + 'static) {
        let work = move || {
            // setfsuid(2) affects only this thread, and drops its file capabilities.
            nix::unistd::setfsuid(nix::unistd::Uid::from_raw(65_534));
            work();
        };
        std::thread::spawn(work).join().expect("it holds");
    }

    fn chmod(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("changed");
    }

    // promise: O-32a, O-32c
    #[test]
    fn closed_directories_are_removed() {
        on_thread_of_ordinary_user(|| {
            for whole in [false, true] {
                let data = tempfile::tempdir().expect("a directory");
                let run = RunId::from_u128(7);
                let dir = create(data.path(), run).expect("it is made");
                let deep = dir.join("tmp/mod/cache");
                fs::create_dir_all(&deep).expect("directories");
                fs::write(deep.join("file"), b"x").expect("a file");
                for (path, mode) in [("tmp/mod/cache", 0o555), ("tmp/mod", 0), ("tmp", 0o100)] {
                    chmod(&dir.join(path), mode);
                }
                chmod(&dir, 0o500);
                if whole {
                    set_aside(data.path(), run).expect("it is taken away");
                    remove_set_aside(data.path()).expect("it goes");
                } else {
                    remove_tmp(data.path(), run).expect("it goes");
                    assert!(!dir.join("tmp").exists());
                    chmod(&dir, 0);
                    remove(data.path(), run).expect("it goes");
                }
                assert!(!dir.exists());
            }
        });
    }

    // promise: O-32a
    #[test]
    fn deep_trees_are_removed() {
        let data = tempfile::tempdir().expect("a directory");
        let run = RunId::from_u128(7);
        let dir = create(data.path(), run).expect("it is made");
        let mut deep = dir.join("tmp");
        for _ in 0..1_500 {
            fs::write(deep.join("f"), b"x").expect("a file");
            deep.push("d");
            fs::create_dir(&deep).expect("a directory");
        }
        // A usual descriptor limit: not every level can be open at once.
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
        setrlimit(Resource::RLIMIT_NOFILE, 1024, hard).expect("a lower limit");
        remove_tmp(data.path(), run).expect("it goes");
        assert!(!dir.join("tmp").exists());
    }
}
