//! The private directory of a run: `runs/<id>` under the data directory, and `tmp` in it for the command.

use crate::{notify_place, private_file};
use kennel_lifecycle::RunId;
use kennel_linux::own_file;
use nix::{
    dir::Dir,
    errno::Errno,
    fcntl::AtFlags,
    sys::stat::{FileStat, Mode, SFlag, fstat, fstatat, mkdirat},
    unistd::{UnlinkatFlags, unlinkat},
};
use std::{
    ffi::{CStr, CString, OsStr},
    fs, io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

/// Deepest tree that is removed; what lies deeper stays, and is reported.
const DEPTH_MAX: usize = 256;

/// The one part of a run's directory whose path its command gets.
pub(crate) const TMP: &CStr = c"tmp";

/// The token with which processes of the run may call, beside the others.
const TOKEN: &CStr = c"token";
/// The token until it is whole.
const TOKEN_NEW: &CStr = c"token.new";

/// Returns the path of the file with a run's token, where its spec gives it one.
#[must_use]
pub fn token_path(run_dir: &Path) -> PathBuf {
    run_dir.join(OsStr::from_bytes(TOKEN.to_bytes()))
}

/// Writes the token of an attempt that has not begun, for the server's user alone.
pub fn write_token(run_dir: &Path, token: &str) -> io::Result<()> {
    private_file::replace(run_dir, TOKEN, TOKEN_NEW, token.as_bytes()).map(drop)
}

/// Removes the token, if it exists.
pub fn remove_token(run_dir: &Path) -> io::Result<()> {
    for name in [TOKEN, TOKEN_NEW] {
        let path = run_dir.join(OsStr::from_bytes(name.to_bytes()));
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// Returns the path of the directory of `run`.
#[must_use]
pub fn path(data_dir: &Path, run: RunId) -> PathBuf {
    data_dir.join("runs").join(run.to_string())
}

/// Returns the data directory of a run's directory.
pub(crate) fn data_dir(run_dir: &Path) -> io::Result<&Path> {
    let dir = run_dir.parent().and_then(Path::parent);
    dir.ok_or_else(|| io::ErrorKind::InvalidFilename.into())
}

/// Lists all runs that have a directory.
#[must_use]
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
    crate::held::remove(&dir);
    remove_token(&dir)?;
    notify_place::remove_left(&dir)?;
    crate::exit_record::remove(&dir)
}

/// Removes `runs/<id>/tmp` and all in it, and a socket beside it, without following a link or crossing into another mount.
pub fn remove_tmp(data_dir: &Path, run: RunId) -> io::Result<()> {
    // Left by a keeper that died.
    notify_place::remove_left(&path(data_dir, run))?;
    remove_at(&path(data_dir, run), TMP)
}

/// Removes `runs/<id>` and all in it, in the same way.
pub fn remove(data_dir: &Path, run: RunId) -> io::Result<()> {
    let name = CString::new(run.to_string()).expect("a run id has no NUL");
    remove_at(&data_dir.join("runs"), &name)
}

/// Removes what a directory has under this name, where there is such a directory, in the same way.
fn remove_at(dir: &Path, name: &CStr) -> io::Result<()> {
    match own_file::open_dir(dir) {
        Ok(dir) => remove_below(&dir, name),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Removes what `dir` has under this name, in the same way.
pub(crate) fn remove_below(dir: &OwnedFd, name: &CStr) -> io::Result<()> {
    remove_entry(dir, name, &fstat(dir)?, 0)
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
/// directory is no error.
pub fn set_aside(data_dir: &Path, run: RunId) -> io::Result<()> {
    let runs = data_dir.join("runs");
    let aside = runs.join(ASIDE);
    own_file::make_dir(&aside)?;
    match fs::rename(path(data_dir, run), aside.join(run.to_string())) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        moved => moved,
    }
}

/// Removes all directories that were moved away, by whichever process, as [`remove`] does.
pub fn remove_set_aside(data_dir: &Path) -> io::Result<()> {
    let name = CString::new(ASIDE).expect("it has no NUL");
    remove_at(&data_dir.join("runs"), &name)
}

fn remove_entry(parent: &impl AsFd, name: &CStr, root: &FileStat, depth: usize) -> io::Result<()> {
    let found = match fstatat(parent, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(found) => found,
        Err(Errno::ENOENT) => return Ok(()),
        Err(errno) => return Err(errno.into()),
    };
    if SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT != SFlag::S_IFDIR {
        return gone_is_fine(unlinkat(parent, name, UnlinkatFlags::NoRemoveDir));
    }
    // A mount point shows the device of the mounted file system; rmdir gives EBUSY for a bind mount of the same device.
    if found.st_dev != root.st_dev {
        return Err(Errno::EXDEV.into());
    }
    if depth >= DEPTH_MAX {
        return Err(Errno::ELOOP.into());
    }
    let mut failed = None;
    match Dir::openat(parent, name, own_file::DIR_FLAGS, Mode::empty()) {
        Ok(mut dir) => {
            let names: Vec<CString> = dir
                .iter()
                .flatten()
                .map(|entry| entry.file_name().to_owned())
                .filter(|n| n.as_bytes() != b"." && n.as_bytes() != b"..")
                .collect();
            for child in names {
                if let Err(error) = remove_entry(&dir, &child, root, depth + 1) {
                    failed.get_or_insert(error);
                }
            }
        }
        Err(errno) => failed = Some(errno.into()),
    }
    match failed {
        Some(error) => Err(error),
        None => gone_is_fine(unlinkat(parent, name, UnlinkatFlags::RemoveDir)),
    }
}

fn gone_is_fine(removed: nix::Result<()>) -> io::Result<()> {
    match removed {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn token_replaces_files_and_follows_no_link() {
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
}
